//! Membership, leases, relay and names, on a virtual clock.

use crate::support::{Harness, join};
use manager::core::{Config, Event, Record, Rules, Saved};
use proto::*;
use std::time::Duration;
use verbs::{Gid, LinkKind, MacAddr, QpNum};

fn refusal(h: &mut Harness, wish: Join) -> String {
    let (conn, answer) = h.try_join(wish);
    assert!(h.closed.contains(&conn));
    match answer {
        ToNode::Refused { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_learn_of_each_other() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, second) = h.join("b");
    assert_eq!((first.node, second.node), (NodeId(1), NodeId(2)));
    assert!(second.incarnation > first.incarnation);
    assert_eq!(first.gid, Gid::from_ipv4([10, 77, 0, 1]));
    assert_eq!(second.gid, Gid::from_ipv4([10, 77, 0, 2]));
    assert_eq!(first.members, []);
    assert_eq!(second.members.len(), 1);
    assert_eq!((second.members[0].node, second.members[0].gid), (first.node, first.gid));
    let joined = h.node_heard(a);
    assert!(matches!(&joined[..], [ToNode::Joined(m)] if m.node == second.node && m.name == "b"));
    h.say(b, &ToManager::Leave);
    let left = ToNode::Left { node: second.node, incarnation: second.incarnation, reason: "left".into() };
    assert_eq!(h.node_heard(a), [left]);
    assert!(h.closed.contains(&b));
}

#[test]
fn a_node_that_wants_so_is_the_same_node_in_a_new_life() {
    let mut h = Harness::new();
    let (a, first) = h.join_keeping("a");
    h.join("b");
    h.dies(a);
    // No other node gets its id meanwhile.
    let (_, other) = h.join("c");
    let (_, again) = h.join_keeping("a");
    assert_eq!((again.node, again.gid), (first.node, first.gid));
    assert_eq!(other.node, NodeId(3));
    assert!(again.incarnation > first.incarnation);
}

#[test]
fn others_get_any_free_id_and_nothing_of_them_is_kept() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    h.join("b");
    h.dies(a);
    let (_, other) = h.join("c");
    assert_eq!(other.node, first.node);
    assert!(other.incarnation > first.incarnation);
    let (_, again) = h.join("a");
    assert_eq!(again.node, NodeId(3));
    assert!(!h.saved.iter().any(|record| matches!(record, Record::Node(..))));
}

#[test]
fn whoever_does_not_ask_for_a_kept_id_does_not_get_it() {
    let mut h = Harness::new();
    let (a, first) = h.join_keeping("a");
    h.dies(a);
    let (a, fresh) = h.join("a");
    assert_ne!(fresh.node, first.node);
    h.dies(a);
    assert_eq!(h.join_keeping("a").1.node, first.node);
}

#[test]
fn each_refusal_has_its_reason() {
    let mut h = Harness::new();
    h.join("a");
    assert!(refusal(&mut h, join("a")).contains("the name a is in use by node 1 (a)"));
    assert!(refusal(&mut h, join("")).contains("1 to 64 bytes"));
    assert!(refusal(&mut h, join(&"x".repeat(65))).contains("1 to 64 bytes"));
    assert!(refusal(&mut h, join("b\nc")).contains("control characters"));
    assert!(refusal(&mut h, Join { version: 99, ..join("b") }).contains("version 99"));

    let with = |change: fn(&mut RnicOffer)| {
        let mut wish = join("b");
        change(&mut wish.rnic);
        wish
    };
    let reason = refusal(&mut h, with(|rnic| rnic.links = vec![LinkKind::InfiniBand]));
    assert_eq!(reason, "b speaks InfiniBand and node 1 (a) speaks RoCE v2, RoCE v1: no link in common");
    assert!(refusal(&mut h, with(|rnic| rnic.links.clear())).contains("no link type"));
    assert!(refusal(&mut h, with(|rnic| rnic.physical = false)).contains("b is a process on a host"));
    let taken = refusal(&mut h, with(|rnic| rnic.gid = Some(Gid::from_ipv4([10, 77, 0, 1]))));
    assert_eq!(taken, "node 1 (a) already has the GID ::ffff:10.77.0.1");
    let mut twin = join("b");
    twin.rnic.mac = join("a").rnic.mac;
    assert!(refusal(&mut h, twin).contains("already has the Ethernet address"));

    let mut infiniband = with(|rnic| rnic.links = vec![LinkKind::InfiniBand, LinkKind::RoceV1]);
    infiniband.rnic.mac = MacAddr([0; 6]);
    assert!(matches!(h.try_join(infiniband).1, ToNode::Welcome(_)), "one shared kind is enough");
}

#[test]
fn each_pair_must_have_a_kind_of_link_in_common() {
    let mut h = Harness::new();
    let with = |name: &str, links: &[LinkKind], last: u8| {
        let mut wish = join(name);
        (wish.rnic.links, wish.rnic.mac) = (links.to_vec(), MacAddr([2, 0, 0, 0, 0, last]));
        wish
    };
    for wish in
        [with("a", &[LinkKind::RoceV2, LinkKind::RoceV1], 1), with("function", &[LinkKind::RoceV1], 2)]
    {
        assert!(matches!(h.try_join(wish).1, ToNode::Welcome(_)));
    }
    let reason = refusal(&mut h, with("linux", &[LinkKind::RoceV2], 3));
    assert_eq!(reason, "linux speaks RoCE v2 and node 2 (function) speaks RoCE v1: no link in common");
}

#[test]
fn a_refusal_is_clear_even_if_the_layout_has_changed() {
    let mut h = Harness::new();
    let other = u8::try_from(PROTOCOL_VERSION).unwrap() + 1;
    let named = format!("version {other}");
    let node = h.open();
    h.event(Event::Received { conn: node, bytes: &[0, other, 0xff, 0xff] });
    assert!(matches!(&h.node_heard(node)[..], [ToNode::Refused { reason }] if reason.contains(&named)));
    let client = h.open();
    h.event(Event::Received { conn: client, bytes: &[1, other, 0xff, 0xff] });
    assert!(h.failure(client).contains(&named));
    let noise = h.open();
    h.event(Event::Received { conn: noise, bytes: &[0xff; 9] });
    assert!(h.closed.contains(&noise));
}

#[test]
fn hosts_are_trusted_if_the_operator_says_so() {
    let mut h = Harness::with(
        Config { rules: Rules { trust_hosts: true, ..Rules::default() }, ..Config::default() },
        Saved::default(),
    );
    h.join("a");
    let mut host = join("b");
    host.rnic.physical = false;
    assert!(matches!(h.try_join(host).1, ToNode::Welcome(_)));
}

#[test]
fn processes_of_one_host_share_its_port() {
    let mut h = Harness::with(
        Config { rules: Rules { trust_hosts: true, ..Rules::default() }, ..Config::default() },
        Saved::default(),
    );
    let process = |name: &str| {
        let mut wish = join(name);
        wish.rnic.mac = MacAddr([2, 0, 0, 0, 0, 9]);
        wish.rnic.gid = Some(Gid::from_ipv4([10, 77, 255, 1]));
        wish.rnic.physical = false;
        wish
    };
    for name in ["a", "b"] {
        assert!(matches!(h.try_join(process(name)).1, ToNode::Welcome(_)));
    }
    // Another machine is refused, an appliance too, and a process whose address differs by mistake.
    let mut other = process("c");
    other.rnic.mac = MacAddr([2, 0, 0, 0, 0, 8]);
    assert!(refusal(&mut h, other).contains("already has the GID"));
    let mut appliance = process("c");
    appliance.rnic.physical = true;
    assert!(refusal(&mut h, appliance).contains("already has the GID"));
    let mut assigned = process("c");
    assigned.rnic.gid = None;
    assert!(refusal(&mut h, assigned).contains("already has the Ethernet address"));
}

#[test]
fn a_gid_that_is_no_ports_is_refused() {
    let mut h = Harness::new();
    for bytes in [[0; 16], [0xff; 16], Gid::from_ipv4([0; 4]).0, Gid::from_ipv4([224, 0, 0, 1]).0] {
        let mut wish = join("a");
        wish.rnic.gid = Some(Gid(bytes));
        assert!(refusal(&mut h, wish).contains("GID"));
    }
}

#[test]
fn assigned_gids_avoid_brought_ones() {
    let mut h = Harness::new();
    let mut brought = join("a");
    brought.rnic.gid = Some(Gid::from_ipv4([10, 77, 0, 2]));
    h.try_join(brought);
    let (_, b) = h.join("b");
    assert_eq!(b.node, NodeId(2));
    assert_eq!(b.gid, Gid::from_ipv4([10, 77, 16, 2]));
}

#[test]
fn a_lease_ends_without_heartbeats() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let (b, second) = h.join("b");
    for seq in 0..10 {
        h.pass(Duration::from_millis(1500));
        h.say(a, &ToManager::Heartbeat { seq });
        if seq < 2 {
            h.say(b, &ToManager::Heartbeat { seq });
        }
    }
    let heard = h.node_heard(a);
    let acks = heard.iter().filter(|m| matches!(m, ToNode::HeartbeatAck { .. })).count();
    assert_eq!(acks, 10);
    let left =
        ToNode::Left { node: second.node, incarnation: second.incarnation, reason: "lease expired".into() };
    assert!(heard.contains(&left));
    assert!(h.closed.contains(&b));
    assert!(!h.closed.contains(&a));
    h.say(b, &ToManager::Heartbeat { seq: 3 });
    assert!(h.node_heard(b).iter().all(|m| !matches!(m, ToNode::HeartbeatAck { seq: 3, .. })), "too late");
}

#[test]
fn silence_ends_a_new_connection() {
    let mut h = Harness::new();
    let conn = h.open();
    h.pass(Duration::from_millis(4999));
    assert!(!h.closed.contains(&conn));
    h.pass(Duration::from_millis(1));
    assert!(h.closed.contains(&conn));
}

#[test]
fn last_words_reach_the_peers() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let (b, _) = h.join("b");
    h.node_heard(a);
    h.say(b, &ToManager::LastWords { reason: "panic at x.rs:1:\nindex out of bounds".into() });
    assert!(matches!(&h.node_heard(a)[..], [ToNode::Left { reason, .. }]
        if reason == "died: panic at x.rs:1: index out of bounds"));
}

#[test]
fn the_former_end_of_a_machine_ends_nothing() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let (b, _) = h.join("b");
    h.node_heard(a);
    h.say(b, &ToManager::FormerEnd { reason: "panic at x.rs:1:\nindex out of bounds".into() });
    h.say(b, &ToManager::FormerEnd { reason: "again".into() });
    assert_eq!(h.node_heard(a), []);
    assert!(!h.closed.contains(&b));
}

#[test]
fn the_hardware_of_a_machine_is_logged_once() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, _) = h.join("b");
    h.node_heard(a);
    let report = |lines: &str| ToManager::HardwareReport { lines: lines.into() };
    h.say(a, &report("hardware report: begin\npci 00:03.0: \x1b[2J\n"));
    h.say(a, &report("again"));
    h.say(b, &report(&"x\n".repeat(ToManager::MAX_REPORT / 2)));
    assert_eq!((h.node_heard(a), h.node_heard(b)), (vec![], vec![]));
    let hardware: Vec<_> = h.log.iter().filter(|line| line.contains(": hardware: ")).collect();
    let of_a: Vec<_> =
        hardware.iter().filter_map(|line| line.strip_prefix(&*format!("{} (a)", first.node))).collect();
    assert_eq!(of_a, [": hardware: hardware report: begin", ": hardware: pci 00:03.0:  [2J"]);
    assert_eq!(hardware.len(), 2 + 1000, "the lines of a report are limited");
}

#[test]
fn a_node_that_does_not_start_is_logged_once_and_is_no_member() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    h.node_heard(a);
    let conn = h.open();
    let reason = "initrd: unknown key `manger`\nin `manger=x`".into();
    h.say(conn, &Hello::Unfit { version: PROTOCOL_VERSION, name: "b".into(), reason });
    assert!(h.closed.contains(&conn));
    assert_eq!((h.node_heard(a), h.node_heard(conn)), (vec![], vec![]));
    let line = "test: the node b does not start: initrd: unknown key `manger` in `manger=x`";
    assert_eq!(h.log.iter().filter(|said| *said == line).count(), 1, "{:?}", h.log);
}

#[test]
fn relay_reaches_only_the_life_it_is_meant_for() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, old) = h.join("b");
    let relay = |incarnation, to| ToManager::Relay { to, incarnation, body: vec![1, 2] };
    h.say(a, &relay(old.incarnation, old.node));
    let relayed = ToNode::Relayed { from: first.node, incarnation: first.incarnation, body: vec![1, 2] };
    assert_eq!(h.node_heard(b), std::slice::from_ref(&relayed));
    h.dies(b);
    h.say(a, &relay(old.incarnation, old.node));
    let (b, new) = h.join("b");
    h.say(a, &relay(old.incarnation, old.node));
    h.say(a, &relay(old.incarnation, NodeId(77)));
    assert_eq!(h.node_heard(b), []);
    h.say(a, &relay(new.incarnation, new.node));
    assert_eq!(h.node_heard(b), [relayed]);
    h.say(a, &ToManager::Relay { to: new.node, incarnation: new.incarnation, body: vec![0; 4097] });
    assert!(h.closed.contains(&a));
}

#[test]
fn a_voucher_is_for_two_members_and_used_by_none_else() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, old) = h.join("b");
    assert_ne!(first.key, old.key);
    let ask = |welcome: &Welcome| ToManager::AskVoucher {
        request: 5,
        to: welcome.node,
        incarnation: welcome.incarnation,
    };
    let voucher = |h: &mut Harness, by: &Welcome, of: &Welcome| {
        let [ToNode::Voucher { request: 5, to, stamp, key, queue_pair }] = &h.node_heard(a)[..] else {
            panic!("no voucher")
        };
        assert_eq!(*to, of.node);
        let (requester, responder) = ((by.node, by.incarnation), (of.node, of.incarnation));
        assert_eq!(*key, of.key.voucher(&Attempt { requester, responder, stamp: *stamp }));
        (*stamp, *queue_pair)
    };
    h.node_heard(a);
    h.say(a, &ask(&old));
    let (one, none) = voucher(&mut h, &first, &old);
    let queue_pair = Some(QpNum::new(0x77));
    h.say(b, &ToManager::Datagrams { queue_pair });
    h.say(a, &ask(&old));
    let (two, there) = voucher(&mut h, &first, &old);
    assert!(one < two, "no stamp twice, although no time has passed");
    assert_eq!((none, there), (None, queue_pair));
    h.dies(b);
    h.node_heard(a);
    h.say(a, &ask(&old));
    assert_eq!(h.node_heard(a), [], "for an incarnation that has ended");
    let (_, new) = h.join("b");
    assert_ne!(new.key, old.key);
    h.node_heard(a);
    h.pass(Duration::from_secs(1));
    h.say(a, &ask(&old));
    h.say(a, &ask(&new));
    let (three, none) = voucher(&mut h, &first, &new);
    assert_eq!((three, none), (h.now.as_nanos(), None));
}

#[test]
fn names_live_as_long_as_their_owner() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, second) = h.join("b");
    h.node_heard(a);
    let ask = |h: &mut Harness, conn, message: ToManager| {
        h.say(conn, &message);
        match &h.node_heard(conn)[..] {
            [ToNode::Name { request: 5, result }] => result.clone(),
            other => panic!("{other:?}"),
        }
    };
    let bind =
        |name: &str, value: &[u8]| ToManager::NameBind { request: 5, name: name.into(), value: value.into() };
    let lookup = |name: &str| ToManager::NameLookup { request: 5, name: name.into() };
    let unbind = |name: &str| ToManager::NameUnbind { request: 5, name: name.into() };
    let number = |bound: Result<(NodeId, Vec<u8>), NameError>, owner: NodeId| {
        let (by, number) = bound.unwrap();
        assert_eq!(by, owner);
        u64::from_le_bytes(number.try_into().unwrap())
    };
    let earlier = number(ask(&mut h, a, bind("n", b"v")), first.node);
    assert_eq!(ask(&mut h, b, lookup("n")), Ok((first.node, b"v".to_vec())));
    assert_eq!(ask(&mut h, b, bind("n", b"w")), Err(NameError::Taken));
    assert_eq!(ask(&mut h, b, unbind("n")), Err(NameError::NotOwner));
    assert_eq!(ask(&mut h, b, unbind("m")), Err(NameError::NotFound));
    assert_eq!(ask(&mut h, b, bind("", b"")), Err(NameError::Length));
    assert_eq!(ask(&mut h, b, bind(&"x".repeat(257), b"")), Err(NameError::Length));
    assert_eq!(ask(&mut h, b, bind("x", &[0; 1025])), Err(NameError::Length));
    assert_eq!(ask(&mut h, a, unbind("n")), Ok((first.node, vec![])));
    let later = number(ask(&mut h, b, bind("n", b"w")), second.node);
    assert!(later > earlier, "{later} {earlier}");
    h.dies(b);
    h.node_heard(a);
    assert_eq!(ask(&mut h, a, lookup("n")), Err(NameError::NotFound));
}

#[test]
fn malformed_messages_end_the_sender() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    h.event(Event::Received { conn: a, bytes: &[99] });
    assert!(h.closed.contains(&a));
    let client = h.client();
    h.event(Event::Received { conn: client, bytes: &[] });
    assert_eq!(h.failure(client), "malformed control message");
}

#[test]
fn numbers_never_repeat_after_a_restart() {
    let bind = |h: &mut Harness, conn| {
        h.say(conn, &ToManager::NameBind { request: 1, name: "n".into(), value: Vec::new() });
        match &h.node_heard(conn)[..] {
            [ToNode::Name { result: Ok((_, number)), .. }] => {
                u64::from_le_bytes(number.as_slice().try_into().unwrap())
            }
            other => panic!("{other:?}"),
        }
    };
    let mut h = Harness::new();
    let (conn, before) = h.join_keeping("a");
    let bound = bind(&mut h, conn);
    let saved = h.restart();
    let mut h = Harness::with(Config::default(), saved);
    h.pass(Config::default().lease);
    let (_, other) = h.join("z");
    let (conn, again) = h.join_keeping("a");
    assert!(bind(&mut h, conn) > bound, "the number of a binding, too");
    assert_eq!(again.node, before.node);
    assert_ne!(other.node, before.node);
    assert!(other.incarnation > before.incarnation);
}

#[test]
fn ids_of_the_departed_serve_again_when_none_are_left() {
    let nodes = (1..=4095).map(|id| (format!("old{id:04}"), NodeId(id))).collect();
    let mut h = Harness::with(Config::default(), Saved { nodes, ..Saved::default() });
    let (_, kept) = h.join_keeping("old0001");
    let (_, new) = h.join("new");
    assert_eq!((kept.node, new.node), (NodeId(1), NodeId(2)));
    assert!(h.saved.contains(&Record::Forget("old0002".into())));
}

#[test]
fn clients_can_wait_for_nodes() {
    let mut h = Harness::new();
    let client = h.client();
    h.say(client, &FromClient::WaitNodes { count: 2, timeout_ms: 1000 });
    h.join("a");
    assert_eq!(h.client_heard(client), []);
    h.join("b");
    assert!(
        matches!(&h.client_heard(client)[..], [ToClient::Nodes { nodes, more: false }] if nodes.len() == 2)
    );
    h.say(client, &FromClient::WaitNodes { count: 3, timeout_ms: 1000 });
    h.pass(Duration::from_secs(1));
    assert_eq!(h.failure(client), "2 of 3 nodes joined in time");
}

#[test]
fn shutdown_waits_for_all_to_leave() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let (b, _) = h.join("b");
    let client = h.client();
    h.say(client, &FromClient::Shutdown);
    assert!(h.node_heard(a).contains(&ToNode::Shutdown));
    assert!(refusal(&mut h, join("c")).contains("shutting down"));
    h.say(a, &ToManager::Leave);
    assert_eq!(h.client_heard(client), []);
    h.say(b, &ToManager::Leave);
    assert!(matches!(&h.client_heard(client)[..], [ToClient::Done { .. }]));
    h.join("c");
}

#[test]
fn a_node_that_does_not_leave_is_named() {
    let config = Config { lease: Duration::from_secs(60), ..Config::default() };
    let mut h = Harness::with(config, Saved::default());
    h.join("a");
    let client = h.client();
    h.say(client, &FromClient::Shutdown);
    h.pass(Duration::from_secs(10));
    assert_eq!(h.failure(client), "did not leave in time: node 1 (a)");
}
