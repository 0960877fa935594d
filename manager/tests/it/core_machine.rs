//! Orders to the machine of a node: power, and another image.
use crate::support::*;
use proto::*;
use std::time::Duration;

fn boot(node: &str, len: u64) -> FromClient {
    FromClient::Boot { node: node.into(), image: BootImage { len, sha256: [5; 32] } }
}

fn piece(len: usize) -> FromClient {
    FromClient::ImagePiece { bytes: vec![1; len] }
}

#[test]
fn a_node_leaves_before_its_machine_is_turned_off() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &FromClient::Power { node: "a".into(), action: PowerAction::Off });
    assert_eq!(h.node_heard(a), [ToNode::Power(PowerAction::Off)]);
    assert_eq!(h.client_heard(client), []);
    let worker = h.client();
    h.say(worker, &submit(0, &[]));
    assert_eq!(h.failure(worker), "no node with lines takes a job: node 1 (a) is about to leave");
    h.say(a, &ToManager::Leave);
    assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
}

#[test]
fn an_image_is_forwarded_as_fast_as_the_node_takes_it() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    let len = BootImage::WINDOW + 1;
    h.say(client, &boot("a", len));
    assert_eq!(h.node_heard(a), [ToNode::Image(BootImage { len, sha256: [5; 32] })]);
    assert_eq!(h.client_heard(client), [ToClient::ImageTaken { bytes: 0 }]);
    for _ in 0..BootImage::WINDOW >> 15 {
        h.say(client, &piece(1 << 15));
    }
    assert_eq!(h.node_heard(a).len() as u64, BootImage::WINDOW >> 15);
    h.say(a, &ToManager::ImageTaken { bytes: 1 << 15 });
    assert_eq!(h.client_heard(client), [ToClient::ImageTaken { bytes: 1 << 15 }]);
    h.say(client, &piece(1));
    assert_eq!(h.node_heard(a), [ToNode::ImagePiece { bytes: vec![1] }]);
    h.say(a, &ToManager::ImageReady);
    h.say(a, &ToManager::Leave);
    assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
}

#[test]
fn an_image_that_a_node_refuses_leaves_it_a_member() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &boot("a", 10));
    h.say(client, &piece(10));
    h.say(a, &ToManager::ImageRefused { reason: "this is not a kernel".into() });
    assert_eq!(h.failure(client), "node 1 (a): this is not a kernel");
    assert!(!h.closed.contains(&a));
}

#[test]
fn a_client_that_breaks_the_order_of_pieces_is_refused_and_the_node_drops_the_image() {
    let wrong: [(&str, &[FromClient]); 4] = [
        ("too much at once", &[piece(BootImage::PIECE), piece(BootImage::PIECE + 1)]),
        ("more than announced", &[piece(40_000), piece(40_000), piece(40_000)]),
        ("nothing", &[piece(0)]),
        ("another order", &[boot("a", 5)]),
    ];
    for (what, messages) in wrong {
        let mut h = Harness::new();
        let (a, _) = h.join("a");
        let client = h.client();
        h.say(client, &boot("a", 100_000));
        for message in messages {
            h.say(client, message);
        }
        assert!(h.closed.contains(&client), "{what}");
        assert_eq!(h.node_heard(a).last(), Some(&ToNode::ImageDrop), "{what}");
    }
}

#[test]
fn orders_that_cannot_be_obeyed_are_refused() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let refuse = |h: &mut Harness, message: &FromClient, reason: &str| {
        let client = h.client();
        h.say(client, message);
        assert_eq!(h.failure(client), reason);
    };
    refuse(&mut h, &boot("b", 5), "no node b has joined");
    refuse(&mut h, &boot("a", 0), "an image has 1 to 67108864 bytes, not 0");
    refuse(&mut h, &piece(5), "a piece of an image that nobody waits for");
    let worker = h.client();
    h.say(worker, &submit(1, &[5]));
    refuse(&mut h, &boot("a", 5), "node 1 (a) takes part in job 1");
    h.say(a, &ToManager::JobFailed { job: JobId(1), reason: "no".into() });
    let first = h.client();
    h.say(first, &boot("a", 5));
    refuse(&mut h, &boot("a", 5), "node 1 (a) has another order already");
}

#[test]
fn a_node_that_does_not_obey_in_time_fails_the_order_and_stays() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &FromClient::Power { node: "a".into(), action: PowerAction::Reset });
    for seq in 0..11 {
        h.pass(Duration::from_secs(1));
        h.say(a, &ToManager::Heartbeat { seq });
    }
    assert_eq!(h.failure(client), "node 1 (a) did not obey in time");
    assert!(!h.closed.contains(&a));
}

#[test]
fn a_client_that_goes_makes_the_node_drop_its_image() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &boot("a", 10));
    h.drop(client);
    assert_eq!(h.node_heard(a).last(), Some(&ToNode::ImageDrop));
    let next = h.client();
    h.say(next, &boot("a", 10));
    assert_eq!(h.client_heard(next), [ToClient::ImageTaken { bytes: 0 }]);
}
