//! One-sided operations allocate nothing once the nodes are warm; nor do they when many are under way.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use allocation_counter::measure;
use lite::testing::Native;
use lite::{Config, Lmr, NodeId, Permissions};
use std::sync::atomic::{AtomicU64, Ordering};

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1, Ordering::Relaxed)
}

/// Each kind of operation on each length once.
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
        // The first use opens connections and grows what grows once.
        native.run(operations(&lmr, &mut data));
        let allocated = measure(|| {
            native.run_on(2, async {
                for _ in 0..10 {
                    operations(&lmr, &mut data).await;
                }
            });
        });
        // The executor of the test makes one waker.
        assert_eq!(allocated.count_total, 1, "{allocated:?}, {node}");
    }
    // What is measured is what is allocated.
    assert_eq!(measure(|| drop(std::hint::black_box(vec![0u8; 10]))).count_total, 1);
}
