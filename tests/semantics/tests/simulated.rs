//! The cases on the simulated cluster: a test for each.

use platform::Platform;
use semantics::{CASES, Case, Context, Outcome};
use sim::{Cluster, Options};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of memory of each node: as much as an appliance has in QEMU.
const MEMORY: u64 = 192 << 20;
/// Longer than any case may take.
const LIMIT: Duration = Duration::from_secs(300);

macro_rules! tests {
    ($($subject:ident: $($case:ident),* $(,)?;)*) => {
        $(mod $subject {
            $(#[test]
            fn $case() {
                super::check(concat!(stringify!($subject), "::", stringify!($case)));
            })*
        })*
    };
}
semantics::each_case!(tests);

fn cluster(seed: u64, nodes: u16) -> Cluster {
    let mut cluster = Cluster::new(Options { seed, nodes, memory: MEMORY, ..Options::default() });
    // Connected, so that what connections take is taken already.
    let lites: Vec<_> = (1..=usize::from(nodes)).map(|i| cluster.lite(i)).collect();
    cluster.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                let one = lite.alloc(other.node_id(), 1, lite::Permissions::READ).await;
                one.expect("memory").free().await.expect("freed");
            }
        }
    });
    cluster
}

/// Runs a case on three nodes and on four, in orders of tasks that two seeds decide. It must hold on all, and leave nothing behind.
fn check(name: &str) {
    let case = *CASES.iter().find(|case| case.name == name).expect("a case of the list");
    for (seed, nodes) in [(1, 3), (2, 4)] {
        let mut cluster = cluster(seed, nodes);
        let free = |cluster: &Cluster| -> Vec<u64> {
            (1..=usize::from(nodes)).map(|i| cluster.host(i).memory().stats().free).collect()
        };
        let before = free(&cluster);
        let ended = run(&mut cluster, nodes, case);
        assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "seed {seed}: {ended:?}");
        cluster.world.run_for(Duration::from_secs(1));
        assert_eq!(free(&cluster), before, "seed {seed}: memory is left behind");
    }
}

type Ended = Vec<(usize, Outcome)>;

fn run(cluster: &mut Cluster, nodes: u16, case: Case) -> Ended {
    let all: Vec<_> = (1..=usize::from(nodes)).map(|i| cluster.lite(i).node_id()).collect();
    let ended: Arc<Mutex<Ended>> = Arc::default();
    for i in 1..=all.len() {
        let context = Context::new(&cluster.lite(i), &all, case.name.into(), 0).expect("a node of the case");
        let ended = ended.clone();
        let task = async move {
            let outcome = case.run(&context).await;
            ended.lock().expect("no task panics").push((i, outcome));
        };
        cluster.host(i).spawn("case", Box::pin(task));
    }
    let end = cluster.world.now() + LIMIT;
    let done = cluster.world.run_until(end, || ended.lock().expect("no task panics").len() == all.len());
    assert!(done, "the case has not ended: {ended:?}");
    let ended = ended.lock().expect("no task panics").clone();
    ended
}
