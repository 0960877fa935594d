//! The semantics of LITE's calls on nodes with cards: all of `tests/semantics`, once for each profile of the
//! emulated card, and once on a cluster in which one node has no card.

use crate::common::lite::{Cluster, cluster};
use connectx3::device::Profile;
use lite::Lite;
use platform::Platform;
use semantics::{CASES, Case, Session, Verdict};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The memory of each node, in bytes. One case needs a region of 128 MB.
const MEMORY: u64 = 192 << 20;
/// More virtual time than all cases take.
const LIMIT: Duration = Duration::from_secs(100_000);

/// The verdicts of each node, with the node's index.
type Ended = Arc<Mutex<Vec<(usize, Vec<Verdict>)>>>;

/// Runs the cases on all nodes, and returns the verdicts of the first.
fn run(cluster: Cluster, cases: &'static [Case]) -> Vec<Verdict> {
    let Cluster { mut world, nodes, .. } = cluster;
    let ids: Vec<_> = nodes.iter().map(|(_, lite)| lite.node_id()).collect();
    let ended = Arc::new(Mutex::new(Vec::<(usize, Vec<Verdict>)>::new()));
    for (rank, (host, lite)) in nodes.iter().enumerate() {
        let (lite, ids, ended): (Lite, _, Ended) = (lite.clone(), ids.clone(), ended.clone());
        let part = async move {
            let mut session = Session::begin(&lite, &ids, "mlx4", cases).await.unwrap();
            let mut verdicts = Vec::new();
            while let Some(verdict) = session.next().await.unwrap() {
                verdicts.push(verdict);
            }
            ended.lock().unwrap().push((rank, verdicts));
        };
        host.spawn("cases", Box::pin(part));
    }
    let end = world.now() + LIMIT;
    assert!(world.run_until(end, || ended.lock().unwrap().len() == nodes.len()), "not all nodes have ended");
    let ended = core::mem::take(&mut *ended.lock().unwrap());
    ended.into_iter().find(|(rank, _)| *rank == 0).map(|(_, verdicts)| verdicts).unwrap()
}

/// Checks all cases on nodes with cards of the given profiles and, if `with_soft`, on one more node without a
/// card.
fn check(profiles: &[&str], with_soft: bool) {
    let verdicts = run(cluster(profiles, with_soft, 0, MEMORY), CASES);
    assert_eq!(verdicts.len(), CASES.len());
    let failed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.failures.is_empty()).collect();
    assert!(failed.is_empty(), "{profiles:?}: {failed:#?}");
}

macro_rules! profiles {
    ($($test:ident: $profile:literal,)*) => {
        $(#[test]
        fn $test() {
            check(&[$profile; 3], false);
        })*

        #[test]
        fn each_profile_has_its_test() {
            let here = [$($profile),*];
            for name in Profile::NAMES {
                assert!(here.contains(&name), "{name}");
            }
        }
    };
}

profiles! {
    pro: "pro",
    pro_with_two_ports: "pro-2port",
    by_the_first_roce: "cx3",
    either_link: "vpi",
    either_link_on_two_ports: "vpi-2port",
    event_queues_of_the_system: "sys-eqs",
    completion_queues_that_are_marked: "sw-cq-init",
    large_entries: "large-entries",
    blueflame: "blueflame",
    slow: "slow",
    virtual_functions: "vf",
    torn_atomics: "torn-atomics",
    steering_by_addresses: "a0",
    infiniband: "ib",
}

#[test]
fn cards_beside_a_node_without() {
    check(&["pro", "large-entries"], true);
}

#[test]
fn a_virtual_function_a_physical_one_and_a_node_without() {
    check(&["vf", "cx3"], true);
}
