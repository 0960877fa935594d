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

/// Kills the manager at some moment, and restarts it. All members go on.
fn round(c: &mut Cluster, crash: Crash, pause: Duration) {
    let members: Vec<(usize, NodeId, Incarnation)> = (1..=c.joined())
        .filter(|i| c.lite(*i).is_member())
        .map(|i| (i, c.lite(i).node_id(), c.lite(i).incarnation()))
        .collect();
    let back = c.world.now() + Duration::from_millis(700);
    c.manager.crash(crash, back);
    assert!(!c.manager.is_up());
    // The manager dies once more, while it reads its store, reserves numbers or has just begun.
    c.world.run_until(back + pause, || false);
    c.manager.crash(Crash::Machine, back + LEASE);
    c.world.run_for(3 * LEASE);
    for (i, node, incarnation) in members {
        let lite = c.lite(i);
        assert!(lite.is_member() && !lite.is_suspended(), "node {i}: {:?}", c.manager.log());
        assert_eq!((lite.node_id(), lite.incarnation()), (node, incarnation));
    }
}

#[test]
fn a_manager_that_comes_back_gives_no_number_twice_and_loses_nobody() {
    let mut torn = 0;
    for seed in 0..12 {
        let mut c = Cluster::new(options(seed));
        let mut lives: BTreeSet<_> = (1..=4).map(|i| life(&c.lite(i)).1).collect();
        for n in 0..6u64 {
            let crash = if (seed + n).is_multiple_of(2) { Crash::Machine } else { Crash::Process };
            // Sometimes it dies in the middle of a join, and of its saved records.
            let hasty = n % 3 == 1;
            let restarts = 1 + (n % 4) as usize;
            let node = (1..=c.joined()).rfind(|i| c.lite(*i).node_id().0 == restarts as u16).unwrap();
            c.host(node).kill();
            c.begin_join(Some(node));
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
            round(&mut c, crash, Duration::from_micros(700 * n * seed));
            for i in all_join(&mut c) {
                lives.insert(life(&c.lite(i)).1);
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
        // The node gets no answer, because nothing of it can be saved, and nobody hears of it.
        c.world.run_for(LEASE);
        c.begin_join(None);
        c.world.run_for(3 * LEASE);
        let full = faults.full;
        assert!(!full || c.poll_joins().is_empty());
        assert!(!full || (c.joining(), c.lite(1).members().len()) == (2, 4), "{:?}", c.manager.log());
        c.manager.disk().set_faults(DiskFaults::default());
        all_join(&mut c);
        c.world.run_for(LEASE);
        assert_eq!(c.joined(), 6);
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
fn a_connection_that_breaks_ends_nothing() {
    let mut c = Cluster::new(options(1));
    let before = life(&c.lite(3));
    c.manager.sever(NodeId(3));
    c.world.run_for(Duration::from_millis(10));
    assert!(c.manager.log().iter().any(|line| line.ends_with("is silent: connection lost")));
    assert!((1..=4).all(|i| c.lite(i).is_member() && c.lite(i).members().len() == 4));
    c.world.run_for(LEASE / 2);
    assert!(c.manager.log().iter().any(|line| line.contains("resumes from")));
    c.world.run_for(2 * LEASE);
    assert_eq!(life(&c.lite(3)), before);
    assert!(!c.lite(3).is_suspended());
    // A machine that has died and whose connection has broken is dead when its lease ends.
    c.host(3).kill();
    c.manager.sever(NodeId(3));
    c.world.run_for(LEASE / 2);
    assert_eq!(c.lite(1).members().len(), 4);
    c.world.run_for(LEASE);
    assert_eq!(c.lite(1).members().len(), 3);
    // Or at once, when it joins again.
    c.host(2).kill();
    c.manager.sever(NodeId(2));
    c.begin_join(Some(2));
    c.world.run_for(LEASE / 4);
    assert_eq!(all_join(&mut c), [5]);
    assert_eq!(c.lite(5).node_id(), NodeId(2), "a new life with the id of the former");
}

#[test]
fn a_question_that_is_lost_with_the_managers_machine_is_asked_again_in_time() {
    let mut c = Cluster::new(options(1));
    let before = life(&c.lite(3));
    c.manager.sever(NodeId(3));
    // The node asks to resume once it hears of the end. The question and the manager's machine are lost.
    let is_silent = |c: &Cluster| c.manager.log().iter().any(|line| line.ends_with("connection lost"));
    while !is_silent(&c) {
        c.world.run_for(Duration::from_micros(500));
    }
    c.manager.crash(Crash::Machine, c.world.now() + LEASE / 10);
    c.world.run_for(3 * LEASE);
    assert_eq!(life(&c.lite(3)), before);
    assert!(c.lite(3).is_member() && !c.lite(3).is_suspended(), "{:?}", c.manager.log());
}

#[test]
fn a_node_that_is_not_heard_dies_and_hears_of_it() {
    let mut c = Cluster::new(options(1));
    c.manager.hold(NodeId(2), Direction::ToManager, true);
    c.world.run_for(LEASE + LEASE / 2);
    assert!(!c.lite(2).is_member(), "it hears that it is dead");
    assert_eq!(c.lite(1).members().len(), 3);
}

#[test]
fn a_membership_that_lite_has_ended_is_not_resumed() {
    let mut config = Options::default().config;
    config.silence = Some(2 * LEASE);
    let mut c = Cluster::new(Options { config, ..options(1) });
    // The node hears no answer to its heartbeats, but the manager hears them.
    c.manager.hold(NodeId(2), Direction::FromManager, true);
    c.world.run_for(2 * LEASE + LEASE / 2);
    assert!(c.lite(2).is_member());
    // The node's last words are lost with the connection.
    c.manager.hold(NodeId(2), Direction::ToManager, true);
    c.world.run_for(LEASE * 3 / 4);
    assert!(!c.lite(2).is_member());
    assert_eq!(c.lite(1).members().len(), 4);
    c.manager.sever(NodeId(2));
    c.manager.release_all();
    c.world.run_for(3 * LEASE);
    assert_eq!(c.lite(1).members().len(), 3, "{:?}", c.manager.log());
}
