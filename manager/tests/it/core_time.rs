//! Ticks that come late: no node suffers from messages that the manager could not receive.

use crate::support::{Harness, submit};
use manager::core::{ConnId, Event};
use proto::*;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(5);
/// The interval of a daemon's ticks.
const TICK: Duration = Duration::from_millis(50);

/// Ticks for the given time, with a heartbeat of each of the nodes `beating` every second.
fn run(h: &mut Harness, time: Duration, beating: &[ConnId]) {
    let end = h.now + time;
    let mut since_beat = Duration::ZERO;
    while h.now < end {
        h.now = h.now + TICK.min(end - h.now);
        since_beat += TICK;
        if since_beat >= Duration::from_secs(1) {
            since_beat = Duration::ZERO;
            beat(h, beating);
        }
        h.event(Event::Tick);
    }
}

fn beat(h: &mut Harness, nodes: &[ConnId]) {
    for &conn in nodes {
        if !h.closed.contains(&conn) {
            h.say(conn, &ToManager::Heartbeat { seq: 1 });
        }
    }
}

#[test]
fn a_pause_of_the_manager_ends_no_lease() {
    for seconds in [4, 6, 30, 3000] {
        let mut h = Harness::new();
        let nodes = ["a", "b", "c"].map(|name| h.join(name).0);
        run(&mut h, Duration::from_secs(7), &nodes);
        // The manager is paused. After that it ticks before it handles the messages that have arrived
        // meanwhile.
        h.now = h.now + Duration::from_secs(seconds);
        h.event(Event::Tick);
        assert!(h.closed.is_empty(), "a pause of {seconds} s");
        run(&mut h, LEASE * 3, &nodes[..2]);
        assert!(h.closed.contains(&nodes[2]), "who is silent afterwards is dead a lease later");
        assert!(!h.closed.contains(&nodes[0]) && !h.closed.contains(&nodes[1]));
    }
}

#[test]
fn who_is_silent_after_a_pause_is_dead_one_lease_later() {
    for seconds in [1, 4, 6, 30] {
        let mut h = Harness::new();
        let (silent, _) = h.join("a");
        run(&mut h, Duration::from_secs(2), &[silent]);
        h.now = h.now + Duration::from_secs(seconds);
        h.event(Event::Tick);
        assert!(!h.closed.contains(&silent));
        run(&mut h, LEASE, &[]);
        assert!(h.closed.contains(&silent), "a pause of {seconds} s");
    }
}

#[test]
fn a_manager_that_is_always_late_still_finds_the_dead() {
    for late in [100, 300, 700, 1000, 2500, 4900] {
        let mut h = Harness::new();
        let (silent, _) = h.join("a");
        let mut ticks = 0;
        while !h.closed.contains(&silent) {
            h.now = h.now + Duration::from_millis(late);
            h.event(Event::Tick);
            ticks += 1;
            assert!(ticks < 100, "ticks {late} ms apart find nobody dead");
        }
    }
}

#[test]
fn a_tick_in_time_extends_no_lease() {
    let mut h = Harness::new();
    let (silent, _) = h.join("a");
    run(&mut h, LEASE - TICK, &[]);
    assert!(!h.closed.contains(&silent));
    run(&mut h, TICK, &[]);
    assert!(h.closed.contains(&silent));
}

#[test]
fn a_pause_of_the_manager_fails_no_job_and_no_newcomer() {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &submit(0, &[10]));
    let newcomer = h.open();
    run(&mut h, Duration::from_secs(1), &[node]);
    // This is longer than a new connection may be silent, and longer than a node may take to accept a job.
    h.now = h.now + Duration::from_secs(45);
    h.event(Event::Tick);
    assert!(h.closed.is_empty(), "{:?}", h.log);
    run(&mut h, Duration::from_secs(40), &[node]);
    assert!(h.closed.contains(&newcomer));
    assert_eq!(h.failure(client), "did not accept the job in time: node 1 (a)");
}
