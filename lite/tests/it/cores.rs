//! Several cores: each has a shard of its own, and cores whose tasks have nothing in common write no common
//! memory.

use lite::testing::{Cores, Native, record_writers, take_changes_of_writers};
use lite::{Config, Lmr, NodeId, Permissions, RpcOptions};
use std::cell::Cell;

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);
/// The number of cores of each node.
const CORES: usize = 2;
/// The number of rounds, each of which has 5 operations, on each core.
const ROUNDS: u32 = 100_000;

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn present() -> usize {
    CORE.get()
}

/// A clock of each thread.
fn clock() -> u64 {
    NOW.set(NOW.get() + 1);
    NOW.get()
}

/// Does the operations of one core on its own region and function.
fn work(native: &Native, core: usize, lmr: &Lmr, rounds: u32) {
    let lite = native.nodes[0].lite.clone();
    CORE.set(core);
    native.run_here(2, async {
        let (mut bytes, mut reply) = ([0; 64], [0; 8]);
        for _ in 0..rounds {
            lmr.write(64, &[core as u8 + 1; 64]).await.unwrap();
            lmr.write(4096, &[core as u8 + 1; 4096]).await.unwrap();
            lmr.read(64, &mut bytes).await.unwrap();
            lmr.fetch_add(0, 1).await.unwrap();
            let len = lite.call_into(NodeId(2), core as u32, &bytes, &mut reply).await.unwrap();
            assert_eq!((bytes, len, reply), ([core as u8 + 1; 64], 8, [core as u8; 8]));
        }
    });
}

/// A million operations of two cores, each with a region and a function of its own: no lock and no shared
/// word has two writers.
#[test]
fn cores_with_nothing_in_common_write_no_common_memory() {
    record_writers(present);
    let cores = Cores { count: CORES, present };
    let native = Native::with_cores(&[64 << 20, 64 << 20], clock, &Config::default(), cores);
    let lite = native.nodes[0].lite.clone();
    let regions: Vec<_> =
        (0..CORES).map(|_| native.run(lite.alloc(NodeId(2), 1 << 16, RIGHTS)).unwrap()).collect();
    for (core, lmr) in regions.iter().enumerate() {
        let server = native.nodes[1].lite.register(core as u32, RpcOptions::default()).unwrap();
        CORE.set(core);
        native.spawn(2, async move {
            while let Ok(call) = server.receive().await {
                call.reply(&[core as u8; 8]).await.unwrap();
            }
        });
        // The first use of a connection by a core prepares what the core needs.
        work(&native, core, lmr, 100);
    }
    let _ = take_changes_of_writers();
    std::thread::scope(|scope| {
        for (core, lmr) in regions.iter().enumerate() {
            let (native, now) = (&native, NOW.get());
            scope.spawn(move || {
                // Time goes on, so that no deadline is earlier than those of the preparation.
                NOW.set(now);
                work(native, core, lmr, ROUNDS);
            });
        }
    });
    let changes = take_changes_of_writers();
    assert!(changes.is_empty(), "{changes:#?}");
    // What two cores write is noticed.
    work(&native, 1, &regions[0], 1);
    work(&native, 0, &regions[0], 1);
    CORE.set(1);
    drop(regions);
    assert!(!take_changes_of_writers().is_empty());
}
