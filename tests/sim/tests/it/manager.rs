//! The manager as a process: it dies and restarts, its disk is slow, full or fails, and its links take time.

use lite::{Lite, NodeId};
use proto::Incarnation;
use sim::{Cluster, ControlLinks, Crash, Direction, DiskFaults, Options};
use std::collections::BTreeSet;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(1);

fn options(seed: u64) -> Options {
    let control = ControlLinks { latency: Duration::from_millis(2), rate: 1000 };
    Options { seed, lease: LEASE, control, keep_ids: true, ..Options::default() }
}

/// Runs until all machines that join are members, and returns their positions.
fn all_join(c: &mut Cluster) -> Vec<usize> {
    let mut joined = Vec::new();
    for _ in 0..20_000 {
        joined.extend(c.poll_joins());
        if c.joining() == 0 {
            return joined;
        }
        c.world.run_for(Duration::from_millis(5));
    }
    panic!("{} machines do not join: {:?}", c.joining(), c.manager.log());
}

fn life(lite: &Lite) -> (NodeId, Incarnation) {
    (lite.node_id(), lite.incarnation())
}

/// Kills the manager at some moment, restarts it, and lets all machines join again.
fn round(c: &mut Cluster, crash: Crash, pause: Duration) {
    // A node that was welcomed by a manager that died meanwhile learns of the death.
    c.world.run_for(LEASE / 2);
    let members: Vec<usize> = (1..=c.joined()).filter(|i| c.lite(*i).is_member()).collect();
    let back = c.world.now() + Duration::from_millis(700);
    c.manager.crash(crash, back);
    assert!(!c.manager.is_up());
    c.world.run_for(Duration::from_millis(20));
    let told = members.iter().filter(|i| !c.lite(**i).is_member()).count();
    assert_eq!(told, if crash == Crash::Process { members.len() } else { 0 });
    // The manager dies once more, while it reads its store, reserves numbers or has just begun.
    c.world.run_until(back + pause, || false);
    c.manager.crash(Crash::Machine, back + LEASE);
    c.world.run_for(4 * LEASE);
    for i in members {
        assert!(!c.lite(i).is_member(), "node {i} knows that the manager does not know it");
        c.host(i).kill();
        c.begin_join(Some(i));
    }
}

#[test]
fn a_manager_that_comes_back_gives_no_number_twice_and_forgets_no_name() {
    let mut torn = 0;
    for seed in 0..12 {
        let mut c = Cluster::new(options(seed));
        let mut lives: BTreeSet<_> = (1..=4).map(|i| life(&c.lite(i)).1).collect();
        for n in 0..6u64 {
            let crash = if (seed + n).is_multiple_of(2) { Crash::Machine } else { Crash::Process };
            // Sometimes it dies in the middle of the joins, and of their saved records.
            let hasty = n % 3 == 1;
            round(&mut c, crash, Duration::from_micros(700 * n * seed));
            if !hasty {
                let last = *lives.last().unwrap();
                for i in all_join(&mut c) {
                    let (node, incarnation) = life(&c.lite(i));
                    assert!(
                        incarnation > last && lives.insert(incarnation),
                        "{incarnation:?} after {last:?}"
                    );
                    assert!(node.0 <= 4, "it keeps its id: {node}");
                }
            }
            assert_eq!(c.manager.violation(), None, "seed {seed}");
        }
        all_join(&mut c);
        assert_eq!(c.manager.crashes(), 12);
        torn += c.manager.disk().torn();
    }
    assert!(torn > 0, "no crash tore a write");
}

#[test]
fn a_full_or_failing_disk_refuses_the_new_and_ends_nobody() {
    for faults in [
        DiskFaults { full: true, ..DiskFaults::default() },
        DiskFaults { failing: true, ..DiskFaults::default() },
    ] {
        let mut c = Cluster::new(options(1));
        // All names so far are saved.
        c.world.run_for(LEASE);
        c.manager.disk().set_faults(faults);
        c.begin_join(None);
        // The node is accepted, because no save has failed yet. Its name cannot be saved.
        all_join(&mut c);
        c.world.run_for(LEASE);
        c.begin_join(None);
        c.world.run_for(3 * LEASE);
        assert!(c.poll_joins().is_empty());
        assert_eq!((c.joining(), c.lite(1).members().len()), (1, 5), "{:?}", c.manager.log());
        c.manager.disk().set_faults(DiskFaults::default());
        assert_eq!(all_join(&mut c), [6]);
        assert!((1..=6).all(|i| c.lite(i).is_member()));
        assert_eq!(c.manager.violation(), None);
    }
}

#[test]
fn what_a_slow_disk_has_not_saved_is_lost_and_no_number_with_it() {
    let mut c = Cluster::new(options(3));
    c.manager.disk().set_faults(DiskFaults { slow: true, ..DiskFaults::default() });
    c.begin_join(None);
    all_join(&mut c);
    let last = life(&c.lite(5)).1;
    c.manager.crash(Crash::Machine, c.world.now() + LEASE);
    c.world.run_for(20 * LEASE);
    assert!(c.manager.is_up(), "{:?}", c.manager.log());
    c.begin_join(None);
    let new = all_join(&mut c)[0];
    assert!(life(&c.lite(new)).1 > last);
    assert_eq!(c.manager.violation(), None);
}

#[test]
fn a_manager_that_stands_still_for_several_leases_ends_nobody() {
    let mut c = Cluster::new(options(1));
    c.manager.pause(true);
    c.world.run_for(3 * LEASE);
    assert!((1..=4).all(|i| c.lite(i).is_suspended() && c.lite(i).is_member()));
    c.manager.pause(false);
    c.world.run_for(LEASE / 2);
    assert!((1..=4).all(|i| c.lite(i).is_member() && !c.lite(i).is_suspended()), "{:?}", c.manager.log());
}

#[test]
fn a_connection_that_breaks_is_a_death_at_once() {
    let mut c = Cluster::new(options(1));
    c.manager.sever(NodeId(3));
    c.world.run_for(Duration::from_millis(10));
    assert!(!c.lite(3).is_member());
    assert_eq!(c.lite(1).members().len(), 3);
    assert!(c.manager.log().iter().any(|line| line.ends_with("is gone: connection lost")));
    c.host(3).kill();
    c.begin_join(Some(3));
    all_join(&mut c);
    assert_eq!(c.lite(5).node_id(), NodeId(3), "a new life with the id of the former");
}

#[test]
fn a_node_that_is_not_heard_dies_and_hears_of_it() {
    let mut c = Cluster::new(options(1));
    c.manager.hold(NodeId(2), Direction::ToManager, true);
    c.world.run_for(LEASE + LEASE / 2);
    assert!(!c.lite(2).is_member(), "it hears that it is dead");
    assert_eq!(c.lite(1).members().len(), 3);
}
