//! In a session all nodes learn the result of a case, and a failure somewhere blocks no other node.

use crate::support;
use lite::Error;
use semantics::{Case, Context, Failure, Outcome, Running, Session};

fn case(name: &'static str, run: for<'a> fn(&'a Context) -> Running<'a>) -> Case {
    Case { name, run }
}

async fn fails_on(cx: &Context, rank: usize) -> Outcome {
    if cx.rank() == rank { Err(Failure::new("as it should")) } else { Ok(()) }
}

/// The first node learns all failures: of a case that fails, of one that does not end, and of one whose nodes
/// do not meet. The next cases run normally.
#[test]
fn failures_are_told_and_keep_nobody() {
    let cases = [
        case("passes", |cx| Box::pin(fails_on(cx, 9))),
        case("fails", |cx| Box::pin(fails_on(cx, 1))),
        case("does not end", |cx| {
            Box::pin(async { if cx.rank() == 2 { core::future::pending().await } else { Ok(()) } })
        }),
        case("meets nobody", |cx| Box::pin(async { if cx.rank() == 0 { Ok(()) } else { cx.meet().await } })),
        case("passes again", |cx| Box::pin(async { cx.meet().await })),
    ];
    let mut cluster = support::cluster(1, 3);
    let lites: Vec<_> = (1..=3).map(|i| cluster.lite(i)).collect();
    let nodes: Vec<_> = lites.iter().map(lite::Lite::node_id).collect();
    let verdicts = support::on_each(&mut cluster, |rank| {
        let (lite, nodes) = (lites[rank].clone(), nodes.clone());
        async move {
            let mut session = Session::begin(&lite, &nodes, "session", &cases).await?;
            let mut verdicts = Vec::new();
            while let Some(verdict) = session.next().await? {
                verdicts.push(verdict);
            }
            Ok::<_, Error>(verdicts)
        }
    });
    for (rank, verdicts) in verdicts.into_iter().enumerate() {
        let verdicts = verdicts.expect("the nodes stay together");
        let failed: Vec<Vec<usize>> =
            verdicts.iter().map(|v| v.failures.iter().map(|(rank, _)| *rank).collect()).collect();
        let all = [vec![], vec![1], vec![2], vec![1, 2], vec![]];
        let own = |ranks: &Vec<usize>| ranks.iter().copied().filter(|r| rank == 0 || *r == rank).collect();
        assert_eq!(failed, all.iter().map(own).collect::<Vec<Vec<usize>>>(), "rank {rank}: {verdicts:?}");
        if rank == 0 {
            let reason = &verdicts[1].failures[0].1;
            assert!(reason.starts_with("session.rs:") && reason.ends_with("as it should"), "{reason}");
        }
    }
}

#[test]
fn two_nodes_are_too_few() {
    let mut cluster = support::cluster(1, 2);
    let (lite, nodes) = (cluster.lite(1), [cluster.lite(1).node_id(), cluster.lite(2).node_id()]);
    let begun =
        cluster.world.run(support::LIMIT, async move { Session::begin(&lite, &nodes, "few", &[]).await });
    assert!(matches!(begun, Err(Error::Refused(_))));
}
