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
/// The number of simulated cores of each node: the most that have queue pairs of their own.
const MANY: usize = 16;
/// The number of rounds of each simulated core.
const SIMULATED: u32 = 1000;

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

/// Two nodes, and for each core a region of the second node and a function there.
struct Setting {
    native: Native,
    regions: Vec<Lmr>,
}

impl Setting {
    /// Starts nodes with that number of cores, each of which has done a few operations: the first use of a
    /// connection by a core prepares what the core needs.
    fn new(count: usize) -> Self {
        CORE.set(0);
        let config = Config { cores: count, ..Config::default() };
        let native = Native::with_cores(&[64 << 20, 64 << 20], clock, &config, Cores { count, present });
        let lite = native.nodes[0].lite.clone();
        let alloc = |_| native.run(lite.alloc(NodeId(2), 1 << 16, RIGHTS)).unwrap();
        let regions = (0..count).map(alloc).collect();
        // The first core registers all functions.
        let register = |core| native.nodes[1].lite.register(core as u32, RpcOptions::default()).unwrap();
        let servers: Vec<_> = (0..count).map(register).collect();
        let setting = Self { native, regions };
        for (core, server) in servers.into_iter().enumerate() {
            CORE.set(core);
            setting.native.spawn(2, async move {
                while let Ok(call) = server.receive().await {
                    call.reply(&[core as u8; 8]).await.unwrap();
                }
            });
            setting.work(core, core, 100);
        }
        setting
    }

    /// Does rounds of operations of a core on the region and the function of core `whose`.
    fn work(&self, core: usize, whose: usize, rounds: u32) {
        let (lite, lmr) = (self.native.nodes[0].lite.clone(), &self.regions[whose]);
        let own = whose as u8 + 1;
        CORE.set(core);
        self.native.run_here(2, async {
            let (mut bytes, mut reply) = ([0; 64], [0; 8]);
            for _ in 0..rounds {
                lmr.write(64, &[own; 64]).await.unwrap();
                lmr.write(4096, &[own; 4096]).await.unwrap();
                lmr.read(64, &mut bytes).await.unwrap();
                lmr.fetch_add(0, 1).await.unwrap();
                let len = lite.call_into(NodeId(2), core as u32, &bytes, &mut reply).await.unwrap();
                assert_eq!((bytes, len, reply), ([own; 64], 8, [core as u8; 8]));
            }
        });
    }
}

/// A million operations of two cores, each with a region and a function of its own, and operations of sixteen
/// such cores, which are simulated in turn: no lock and no shared word has two writers.
#[test]
fn cores_with_nothing_in_common_write_no_common_memory() {
    record_writers(present);
    let two = Setting::new(CORES);
    let _ = take_changes_of_writers();
    std::thread::scope(|scope| {
        for core in 0..CORES {
            let (two, now) = (&two, NOW.get());
            scope.spawn(move || {
                // Time goes on, so that no deadline is earlier than those of the preparation.
                NOW.set(now);
                two.work(core, core, ROUNDS);
            });
        }
    });
    let changes = take_changes_of_writers();
    assert!(changes.is_empty(), "{changes:#?}");
    let many = Setting::new(MANY);
    let _ = take_changes_of_writers();
    for _ in 0..SIMULATED {
        (0..MANY).for_each(|core| many.work(core, core, 1));
    }
    let changes = take_changes_of_writers();
    assert!(changes.is_empty(), "{changes:#?}");
    // The record is not blind: it notices memory that two cores write.
    two.work(1, 0, 1);
    two.work(0, 0, 1);
    CORE.set(1);
    drop(two);
    assert!(!take_changes_of_writers().is_empty());
}
