//! The cases on the simulated cluster, with one test for each.

use crate::support;
use platform::Platform;
use semantics::CASES;
use sim::Cluster;
use std::time::Duration;

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

/// Runs a case on three nodes and on four, in orders of tasks that two seeds determine. It must succeed on
/// all nodes and leave no memory allocated.
fn check(name: &str) {
    let case = *CASES.iter().find(|case| case.name == name).expect("a case of the list");
    for (seed, nodes) in [(1, 3), (2, 4)] {
        let mut cluster = support::cluster(seed, nodes);
        let free = |cluster: &Cluster| -> Vec<u64> {
            (1..=cluster.joined()).map(|i| cluster.host(i).memory().stats().free).collect()
        };
        let before = free(&cluster);
        let ended = support::run(&mut cluster, case);
        assert!(ended.iter().all(Result::is_ok), "seed {seed}: {ended:?}");
        cluster.world.run_for(Duration::from_secs(1));
        assert_eq!(free(&cluster), before, "seed {seed}: memory is left behind");
    }
}
