//! Connections are set up by datagrams on the fabric, each with a voucher of the manager. Whatever else an
//! intruder sends there makes no connection and ends none.

use lite::testing::take_accepted;
use lite::{Config, Lite, Lmr, NodeId, Permissions, RpcOptions};
use platform::Platform;
use proto::Attempt;
use sim::{Cluster, ControlLinks, Direction, Nics, Options, with_payload};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
/// The time of a message to the manager, or from it.
const TO_MANAGER: Duration = Duration::from_micros(100);

fn options() -> Options {
    let control = ControlLinks { latency: TO_MANAGER, rate: 10_000_000 };
    let config = Config { idle: None, ..Options::default().config };
    Options {
        nodes: 3,
        memory: 16 << 20,
        control,
        config,
        nics: "softroce".parse().unwrap(),
        ..Options::default()
    }
}

fn counter(lite: &Lite, name: &str) -> u64 {
    let mut count = 0;
    lite.counters(&mut |(counter, n)| {
        if counter == name {
            count = n;
        }
    });
    count
}

fn refused(c: &Cluster, node: usize) -> u64 {
    counter(&c.lite(node), "lite_set_ups_refused")
}

/// Allocates a region of node 2 for node 1, which connects them.
fn connect(c: &mut Cluster) -> Lmr {
    let a = c.lite(1);
    c.world.run(LIMIT, async move { a.alloc(NodeId(2), 4096, RW).await.unwrap() })
}

fn write(c: &mut Cluster, lmr: &Lmr) {
    let lmr = lmr.clone();
    c.world.run(LIMIT, async move { lmr.write(0, &[7; 64]).await.unwrap() });
}

/// Returns the attempts that a node has accepted since the last call.
fn accepted(c: &Cluster, node: usize) -> Vec<Attempt> {
    take_accepted(&c.lite(node)).into_iter().map(|(attempt, _)| attempt).collect()
}

/// Delivers frames again, and returns the number of datagrams that nodes have refused.
fn deliver(c: &mut Cluster, frames: &[Vec<u8>]) -> u64 {
    let all = 1..=c.joined();
    let before: u64 = all.clone().map(|i| refused(c, i)).sum();
    for frame in frames {
        c.wire.inject(frame);
        c.world.run_for(Duration::from_micros(100));
    }
    c.world.run_for(Duration::from_millis(50));
    all.map(|i| refused(c, i)).sum::<u64>() - before
}

#[test]
fn the_first_use_connects_over_the_fabric() {
    let mut c = Cluster::new(options());
    c.wire.record_datagrams();
    let lmr = connect(&mut c);
    write(&mut c, &lmr);
    assert_eq!(c.wire.datagrams().len(), 3, "request, reply, ready");
    assert_eq!(accepted(&c, 2).len(), 1);
    for node in 1..=2 {
        assert_eq!(counter(&c.lite(node), "lite_set_ups_relayed"), 0);
        assert_eq!(counter(&c.lite(node), "lite_connections"), 1);
        assert_eq!(refused(&c, node), 0);
    }
}

#[test]
fn the_manager_carries_what_the_fabric_does_not() {
    let mut c = Cluster::new(options());
    c.wire.lose_datagrams(true);
    let lmr = connect(&mut c);
    write(&mut c, &lmr);
    let relayed = |c: &Cluster, node| counter(&c.lite(node), "lite_set_ups_relayed");
    // The reply goes the way of the request.
    assert_eq!((relayed(&c, 1), relayed(&c, 2)), (2, 1));
    assert_eq!(accepted(&c, 2).len(), 1);
}

#[test]
fn lost_datagrams_are_repeated() {
    // Each of the three messages is lost in turn, once: the wire loses everything for that time.
    for lost in 0..3 {
        let mut c = Cluster::new(options());
        c.wire.record_datagrams();
        let a = c.lite(1);
        let done = Arc::new(AtomicU64::new(0));
        let count = done.clone();
        let task = async move {
            let lmr = a.alloc(NodeId(2), 4096, RW).await.unwrap();
            lmr.write(0, &[7; 64]).await.unwrap();
            count.store(1, Ordering::SeqCst);
        };
        c.lite(1).platform().spawn("test", Box::pin(task));
        let limit = c.world.now() + LIMIT;
        let wire = c.wire.clone();
        wire.lose_datagrams(lost == 0);
        c.world.run_until(limit, || wire.datagrams().len() == lost);
        wire.lose_datagrams(true);
        c.world.run_until(limit, || wire.datagrams().len() > lost);
        wire.lose_datagrams(false);
        assert!(c.world.run_until(limit, || done.load(Ordering::SeqCst) == 1), "message {lost}");
        c.world.run_for(Duration::from_millis(20));
        for node in 1..=2 {
            assert_eq!(counter(&c.lite(node), "lite_set_ups_relayed"), 0, "message {lost}");
            assert_eq!(counter(&c.lite(node), "lite_connections"), 1);
        }
    }
}

#[test]
fn a_replayed_set_up_changes_nothing() {
    let mut c = Cluster::new(Options {
        config: Config { idle: Some(Duration::from_millis(50)), ..options().config },
        ..options()
    });
    c.wire.record_datagrams();
    let lmr = connect(&mut c);
    write(&mut c, &lmr);
    let frames = c.wire.datagrams();
    assert_eq!(accepted(&c, 2).len(), 1);
    // While the connection is open: only the reply has an answer, another `Ready`.
    deliver(&mut c, &frames);
    write(&mut c, &lmr);
    assert_eq!(counter(&c.lite(1), "lite_connections"), 1, "the connection is the same");
    // After its end.
    c.world.run_for(Duration::from_millis(500));
    assert_eq!(counter(&c.lite(1), "lite_closed"), 1);
    deliver(&mut c, &frames);
    assert!(accepted(&c, 1).is_empty() && accepted(&c, 2).is_empty());
    assert_eq!(c.lite(2).queue_pairs(), 1, "the one for datagrams");
    // While a later connection is open.
    write(&mut c, &lmr);
    assert_eq!(accepted(&c, 2).len(), 1);
    deliver(&mut c, &frames);
    write(&mut c, &lmr);
    assert!(accepted(&c, 1).is_empty() && accepted(&c, 2).is_empty());
    assert_eq!(counter(&c.lite(1), "lite_connections"), 2);
}

/// Two nodes ask each other at once, and the request that has given way comes again: it must not replace the
/// connection that the other one has made. Which of the two vouchers is newer depends on the pause.
#[test]
fn a_request_that_has_given_way_stays_refused() {
    let mut crossed = 0;
    for pause in (0..60).step_by(2).map(Duration::from_micros) {
        let mut c = Cluster::new(options());
        c.wire.record_datagrams();
        let (a, b) = (c.lite(1), c.lite(2));
        let other = async move {
            b.sleep(pause).await;
            b.alloc(NodeId(1), 4096, RW).await.unwrap().free().await.unwrap();
        };
        c.host(2).spawn("other", Box::pin(other));
        let lmr = c.world.run(LIMIT, async move { a.alloc(NodeId(2), 4096, RW).await.unwrap() });
        c.world.run_for(Duration::from_millis(50));
        let frames = c.wire.datagrams();
        // One attempt has a request, a reply, and the message that the connection is ready.
        crossed += usize::from(frames.len() > 3);
        let made = |c: &Cluster| [1, 2].map(|i| counter(&c.lite(i), "lite_connections"));
        assert_eq!(made(&c), [1, 1], "{pause:?}");
        deliver(&mut c, &frames);
        write(&mut c, &lmr);
        assert_eq!(made(&c), [1, 1], "the connection is the same, {pause:?}");
    }
    assert!(crossed > 3, "both nodes asked at once in {crossed} runs");
}

#[test]
fn a_changed_or_truncated_set_up_is_refused() {
    let mut c = Cluster::new(options());
    c.wire.record_datagrams();
    c.wire.lose_datagrams(true);
    let lmr = connect(&mut c);
    write(&mut c, &lmr);
    // No datagram has arrived so far: what follows is new to the nodes. The first is the request.
    let request = c.wire.datagrams().swap_remove(0);
    accepted(&c, 2);
    let len = {
        let mut len = 0;
        drop(with_payload(&request, |payload| len = payload.len()));
        len
    };
    let bent = (0..len).map(|at| with_payload(&request, |payload| payload[at] ^= 1));
    let short = (0..len).map(|to| with_payload(&request, |payload| payload.truncate(to)));
    let forged: Vec<_> = bent.chain(short).collect();
    assert_eq!(deliver(&mut c, &forged), forged.len() as u64, "each is counted");
    assert!(accepted(&c, 1).is_empty() && accepted(&c, 2).is_empty());
    write(&mut c, &lmr);
    assert_eq!(counter(&c.lite(1), "lite_connections"), 1);
}

/// A request that comes late, as a datagram or through the manager, is refused because of its voucher's age.
#[test]
fn a_late_set_up_is_refused() {
    for (late, expected) in [(Duration::from_secs(1), 1), (Duration::from_secs(6), 0)] {
        let mut c = Cluster::new(Options { lease: Duration::from_secs(60), ..options() });
        c.wire.record_datagrams();
        c.wire.lose_datagrams(true);
        let a = c.lite(1).with_deadline(Duration::from_millis(5));
        c.world.run(LIMIT, async move { drop(a.alloc(NodeId(2), 8, RW).await) });
        let frames = c.wire.datagrams();
        // The messages of the requester come to the manager late too.
        c.manager.hold(NodeId(1), Direction::ToManager, true);
        c.world.run_for(late);
        assert!(accepted(&c, 2).is_empty());
        c.manager.hold(NodeId(1), Direction::ToManager, false);
        c.world.run_for(Duration::from_millis(1));
        assert_eq!(accepted(&c, 2).len(), expected, "through the manager after {late:?}");
        assert_eq!(deliver(&mut c, &frames[..1]), 1, "as a datagram after {late:?}");
        assert!(accepted(&c, 2).is_empty());
    }
}

#[test]
fn a_set_up_of_a_former_incarnation_is_refused() {
    for restarted in [1, 2] {
        let mut c = Cluster::new(Options { keep_ids: true, ..options() });
        c.wire.record_datagrams();
        let lmr = connect(&mut c);
        write(&mut c, &lmr);
        let frames = c.wire.datagrams();
        accepted(&c, 2);
        c.host(restarted).kill();
        c.manager.dies(NodeId(restarted as u16));
        c.begin_join(Some(restarted));
        let limit = c.world.now() + LIMIT;
        let node = loop {
            c.world.run_for(Duration::from_millis(10));
            if let [node] = c.poll_joins()[..] {
                break node;
            }
            assert!(c.world.now() < limit);
        };
        assert_eq!(c.lite(node).node_id(), NodeId(restarted as u16));
        c.world.run_for(Duration::from_millis(10));
        deliver(&mut c, &frames);
        for i in 1..=c.joined() {
            assert!(accepted(&c, i).is_empty(), "node {i} after a restart of {restarted}");
        }
    }
}

/// A flood of forged datagrams delays neither operations nor heartbeats. Set-ups may need the manager.
#[test]
fn a_flood_of_forged_datagrams_starves_nobody() {
    let mut c = Cluster::new(options());
    c.wire.record_datagrams();
    let lmr = connect(&mut c);
    let frame = with_payload(&c.wire.datagrams()[0], |payload| payload[50] ^= 1);
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let far = lmr.clone();
    let task = async move {
        loop {
            far.write(0, &[1; 8]).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    c.lite(1).platform().spawn("writer", Box::pin(task));
    // Half a second: node 2 gets 1,000 forged datagrams in each millisecond, and serves the writes.
    for _ in 0..500 {
        (0..1000).for_each(|_| c.wire.inject(&frame));
        c.world.run_for(Duration::from_millis(1));
    }
    assert!(written.load(Ordering::SeqCst) > 10_000, "{written:?}");
    let checked = refused(&c, 2);
    assert!((1000..50_000).contains(&checked), "{checked} of 500,000 were checked");
    assert!(c.lite(2).is_member() && !c.lite(2).is_suspended());
    // A third node still reaches the flooded one.
    let other = c.lite(3);
    for _ in 0..20 {
        (0..1000).for_each(|_| c.wire.inject(&frame));
        c.world.run_for(Duration::from_millis(1));
    }
    c.world.run(LIMIT, async move { other.alloc(NodeId(2), 8, RW).await.unwrap() });
}

/// The first operation to a new peer takes at most five times as long as one to a connected peer, and a
/// message to the manager and back.
#[test]
fn the_first_operation_is_quick() {
    let mut c = Cluster::new(Options { nodes: 4, ..options() });
    let b = c.lite(2);
    let server = b.register(1, RpcOptions::default()).unwrap();
    b.platform().spawn(
        "echo",
        Box::pin(async move {
            while let Ok(call) = server.receive().await {
                drop(call.reply(b"").await);
            }
        }),
    );
    let a = c.lite(1);
    let mut timed = |asks_manager: bool| {
        let (from, a) = (c.world.now(), a.clone());
        c.world.run(LIMIT, async move {
            if asks_manager {
                a.map("no such name", RW).await.unwrap_err();
            } else {
                a.call(NodeId(2), 1, b"x", 8).await.unwrap();
            }
        });
        c.world.now() - from
    };
    let first = timed(false);
    let connected = (0..10).map(|_| timed(false)).min().unwrap();
    let manager = timed(true);
    println!("the first call takes {first:?}, the next {connected:?}, the manager {manager:?}");
    assert!(first <= 5 * connected + manager, "{first:?}, and then {connected:?}");
}

/// One node connects to 99 others, one after the other, in less than a millisecond each.
#[test]
fn a_node_makes_a_thousand_connections_a_second() {
    const PEERS: u16 = 99;
    let config = Config {
        queue_pairs: 2,
        operations: 64,
        bounce: [(256, 8), (1024, 4), (4096, 4)],
        ring: 16 << 10,
        calls: 2,
        reply_slot: 256,
        peers: 128,
        ..options().config
    };
    let lease = Duration::from_secs(60);
    let mut c = Cluster::new(Options { nodes: PEERS + 1, memory: 8 << 20, lease, config, ..options() });
    let (a, from) = (c.lite(1), c.world.now());
    c.world.run(LIMIT, async move {
        for node in 2..=PEERS + 1 {
            // No such function: the answer shows that the connection works.
            a.call(NodeId(node), 1, b"x", 8).await.unwrap_err();
        }
    });
    let took = c.world.now() - from;
    let made = counter(&c.lite(1), "lite_connections");
    println!("{made} connections in {took:?}");
    assert_eq!(made, u64::from(PEERS));
    assert_eq!(counter(&c.lite(1), "lite_set_ups_relayed"), 0);
    assert!(took < Duration::from_millis(PEERS.into()), "{took:?}");
}

#[test]
fn a_card_that_recovers_receives_datagrams_again() {
    let nics: Nics = "cx3".parse().unwrap();
    let mut c = Cluster::new(Options { nics, ..options() });
    let lmr = connect(&mut c);
    write(&mut c, &lmr);
    c.wire.record_datagrams();
    assert!(c.fail_card(2));
    c.world.run_for(Duration::from_secs(2));
    let before = counter(&c.lite(1), "lite_set_ups_relayed");
    write(&mut c, &lmr);
    assert_eq!(c.wire.datagrams().len(), 3, "request, reply, ready");
    assert_eq!(counter(&c.lite(1), "lite_set_ups_relayed"), before);
}
