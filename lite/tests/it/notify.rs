//! Writes with a message behind them.

use lite::testing::Cluster;
use lite::{Config, Error, NodeId, Permissions, Placement, RpcOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(60);
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const PORT: u32 = 5;

fn cluster() -> Cluster {
    Cluster::new(1, 3, 64 << 20, &Config::default())
}

/// The data is in flight before the message, on the same queue pair, and nothing waits in between.
#[test]
fn a_message_follows_its_data_without_a_wait() {
    let mut c = cluster();
    let (a, b, fabric) = (c.lite(1), c.lite(2), c.fabric.clone());
    let ended = Arc::new(AtomicBool::new(false));
    let mailbox = b.open_mailbox(PORT, RpcOptions::default()).unwrap();
    let lmr = c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(2), 1 << 20, RW).await.unwrap();
        lmr.write_notify(0, b"first", PORT, b"opens the connection").await.unwrap();
        lmr
    });
    let [from, to] = [1, 2].map(|n| Gid::from_ipv4([10, 0, 0, n]));
    fabric.record_writes();
    fabric.hold_between(from, to, true);
    let before = fabric.posts();
    let (lite, done) = (c.lite(1), ended.clone());
    super::spawn(&lite, async move {
        lmr.write_notify(4096, &[7; 200_000], PORT, b"200000").await.unwrap();
        done.store(true, Ordering::Relaxed);
        drop(lmr);
    });
    c.world.run_for(Duration::from_micros(100));
    // Four chunks and the message, none of which has been carried out.
    assert_eq!((fabric.posts() - before, fabric.writes().len()), (5, 0));
    fabric.hold_between(from, to, false);
    c.world.run_for(Duration::from_millis(1));
    assert!(ended.load(Ordering::Relaxed));
    let writes = fabric.writes();
    let data: Vec<u32> = writes.iter().filter(|(imm, _)| imm.is_none()).map(|(_, len)| *len).collect();
    assert_eq!(data, [65_536, 65_536, 65_536, 200_000 - 3 * 65_536]);
    assert!(writes[4].0.is_some(), "the message is behind the data: {writes:?}");
    drop(mailbox);
}

/// Whatever the data's length and the region's shape, the receiver of the message finds the data.
#[test]
fn the_receiver_finds_the_data() {
    let mut c = cluster();
    let (a, nodes) = (c.lite(1), [c.lite(1), c.lite(2), c.lite(3)]);
    c.world.run(LIMIT, async move {
        let mailboxes = nodes.map(|lite| lite.open_mailbox(PORT, RpcOptions::default()).unwrap());
        let places = [
            Placement::Node(NodeId(1)),
            Placement::Node(NodeId(2)),
            Placement::Striped { nodes: vec![NodeId(2), NodeId(3)], stripe: 4096 },
            Placement::Shares(vec![(NodeId(3), 8192), (NodeId(1), (1 << 20) - 8192)]),
        ];
        for place in places {
            let lmr = a.alloc(place, 1 << 20, RW).await.unwrap();
            for (n, len) in [0, 1, 64, 4000, 8192, 65_536, 65_537, 700_000].into_iter().enumerate() {
                let data: Vec<u8> = (0..len).map(|i| (i * 31 + n) as u8).collect();
                for at in [0, 8191, 300_000] {
                    // The node of a byte is that to which a share or a stripe belongs.
                    let mut from = 0;
                    let shares = lmr.shares();
                    let node = if shares.len() == 2 && shares[0].1 == shares[1].1 {
                        shares[at as usize / 4096 % 2].0
                    } else {
                        let within = |(_, len): &&(NodeId, u64)| {
                            from += len;
                            at < from
                        };
                        shares.iter().find(within).unwrap().0
                    };
                    let text = format!("{len} at {at}");
                    lmr.write_notify(at, &data, PORT, text.as_bytes()).await.unwrap();
                    let mailbox = &mailboxes[usize::from(node.0) - 1];
                    let message = mailbox.receive_within(Duration::from_millis(1)).await.unwrap();
                    assert_eq!((message.from(), message.data()), (NodeId(1), text.as_bytes()));
                    let mut got = vec![0; len];
                    lmr.read(at, &mut got).await.unwrap();
                    assert!(got == data, "{len} bytes at {at}");
                }
            }
            assert_eq!(lmr.write_notify((1 << 20) - 3, &[1; 4], PORT, b"").await, Err(Error::OutOfBounds));
            assert_eq!(lmr.write_notify(0, &[1; 4], PORT + 1, b"").await, Err(Error::NoSuchFunction));
            lmr.clone().free().await.unwrap();
            assert_eq!(lmr.write_notify(0, &[1; 4], PORT, b"").await, Err(Error::Freed));
        }
        for mailbox in &mailboxes {
            let none = mailbox.receive_within(Duration::from_millis(1)).await;
            assert_eq!(none.map(drop), Err(Error::Deadline));
        }
    });
}

/// A full mailbox makes the sender wait. Each message comes once, in order.
#[test]
fn a_full_mailbox_makes_senders_wait() {
    let mut c = cluster();
    let (a, b) = (c.lite(1), c.lite(2));
    let mailbox = b.open_mailbox(PORT, RpcOptions { max_request: 100, queue: 2 }).unwrap();
    let lmr = c.world.run(LIMIT, async move { a.alloc(NodeId(2), 4096, RW).await.unwrap() });
    let lite = c.lite(1);
    super::spawn(&lite, async move {
        for n in 0..20u64 {
            lmr.write_notify(8 * n, &n.to_le_bytes(), PORT, &n.to_le_bytes()).await.unwrap();
        }
    });
    c.world.run(LIMIT, async move {
        for n in 0..20u64 {
            let message = mailbox.receive_within(Duration::from_secs(1)).await.unwrap();
            assert_eq!(message.data(), n.to_le_bytes());
        }
    });
}
