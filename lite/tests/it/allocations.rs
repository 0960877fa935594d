//! One-sided operations, calls and messages allocate nothing once the nodes are warm.

use allocation_counter::measure;
use lite::testing::Native;
use lite::{Config, Lite, Lmr, NodeId, Permissions, RpcOptions};
use std::sync::atomic::{AtomicU64, Ordering};

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1, Ordering::Relaxed)
}

/// Does each kind of operation on each length once.
async fn operations(lmr: &Lmr, data: &mut [u8]) {
    for len in [0, 1, 64, 128, 129, 4096, 65536, data.len()] {
        lmr.write(8, &data[..len]).await.unwrap();
        lmr.read(8, &mut data[..len]).await.unwrap();
    }
    lmr.fetch_add(16, 1).await.unwrap();
    lmr.compare_swap(16, 0, 1).await.unwrap();
}

#[test]
fn one_sided_operations_allocate_nothing() {
    let native = Native::new(&[16 << 20; 2], clock, &Config::default());
    let lite = native.nodes[0].lite.clone();
    let mut data = vec![3; 300_000];
    for node in [NodeId(2), NodeId(1)] {
        let lmr = native.run(lite.alloc(node, 1 << 20, RIGHTS)).unwrap();
        // The first use opens connections and grows all buffers.
        native.run(operations(&lmr, &mut data));
        let allocated = measure(|| {
            native.run_on(2, async {
                for _ in 0..10 {
                    operations(&lmr, &mut data).await;
                }
            });
        });
        // The test's executor makes one waker.
        assert_eq!(allocated.count_total, 1, "{allocated:?}, {node}");
    }
    // The result is the number of allocations.
    assert_eq!(measure(|| drop(std::hint::black_box(vec![0u8; 10]))).count_total, 1);
}

/// Makes a call of each length that fits ring and slot, and sends a message, all to `to`; tasks of `server`
/// serve them there.
async fn calls(lite: &Lite, to: NodeId, reply: &mut [u8]) {
    let request = [5; 4096];
    for len in [0, 1, 64, 100, 1000, 4000] {
        assert_eq!(lite.call_into(to, 1, &request[..len], &mut reply[..len]).await, Ok(len));
        lite.send(to, 2, &request[..len]).await.unwrap();
    }
}

/// Calls and messages allocate nothing at either end, between two nodes and within one.
#[test]
fn calls_and_messages_allocate_nothing() {
    let native = Native::new(&[16 << 20; 2], clock, &Config::default());
    let lite = native.nodes[0].lite.clone();
    let served = std::sync::Arc::new(AtomicU64::new(0));
    for i in [0, 1] {
        let server = native.nodes[i].lite.register(1, RpcOptions::default()).unwrap();
        native.spawn(i + 1, async move {
            let mut reply = [0; 4096];
            let mut next = server.receive().await;
            while let Ok(call) = next {
                let len = call.request().len();
                reply[..len].copy_from_slice(call.request());
                next = server.reply_and_receive(call, &reply[..len]).await;
            }
        });
        let mailbox = native.nodes[i].lite.open_mailbox(2, RpcOptions::default()).unwrap();
        let served = served.clone();
        native.spawn(i + 1, async move {
            while let Ok(message) = mailbox.receive().await {
                served.fetch_add(message.data().len() as u64, Ordering::Relaxed);
            }
        });
    }
    let mut reply = [0; 4096];
    for to in [NodeId(2), NodeId(1)] {
        for _ in 0..20 {
            native.run(calls(&lite, to, &mut reply));
        }
        let before = served.load(Ordering::Relaxed);
        let allocated = measure(|| {
            native.run(async {
                for _ in 0..10 {
                    calls(&lite, to, &mut reply).await;
                }
            });
        });
        // The test's executor makes one waker.
        assert_eq!(allocated.count_total, 1, "{allocated:?}, {to}");
        assert_eq!(served.load(Ordering::Relaxed) - before, 10 * 5165);
    }
}
