//! Counters of the operations of this node's LITE.

use crate::base::per_shard::PerShard;
use crate::base::writers::{AtomicU64, Ordering};
use alloc::sync::Arc;
use core::ops::Deref;
use platform::Platform;
use verbs::Counter;

/// A counter of operations.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($name:ident: $doc:literal),* $(,)?) => {
        /// The counters of one shard.
        #[derive(Default)]
        #[repr(align(128))]
        pub(crate) struct Counters {
            $(#[doc = $doc] pub(crate) $name: Count,)*
        }

        impl CoreCounters {
            /// Calls `each` for each counter; `more` returns the part of a count that is kept elsewhere.
            pub(crate) fn each(&self, more: impl Fn(&str) -> u64, each: &mut dyn FnMut(Counter)) {
                $(
                    let sum: u64 = self.shards.iter().map(|s| s.$name.0.load(Ordering::Relaxed)).sum();
                    each((concat!("lite_", stringify!($name)), sum + more(stringify!($name))));
                )*
            }
        }
    };
}

/// All counters of a node. They dereference to those of the present core's shard.
pub(crate) struct CoreCounters {
    platform: Arc<dyn Platform>,
    shards: PerShard<Counters>,
}

impl CoreCounters {
    /// Returns counters for that number of shards.
    pub(crate) fn new(platform: Arc<dyn Platform>, shards: usize) -> Self {
        Self { platform, shards: PerShard::new(shards, |_| Counters::default()) }
    }
}

impl Deref for CoreCounters {
    type Target = Counters;

    #[inline(always)]
    fn deref(&self) -> &Counters {
        self.shards.here(&*self.platform)
    }
}

impl Counters {
    /// Counts a read or write of `bytes` that begins.
    pub(crate) fn transfer(&self, reads: bool, bytes: u64) {
        let (count, sum) =
            if reads { (&self.reads, &self.bytes_read) } else { (&self.writes, &self.bytes_written) };
        count.add(1);
        sum.add(bytes);
    }
}

counters! {
    reads: "Reads begun.",
    writes: "Writes begun.",
    atomics: "Atomics begun.",
    memsets: "Memsets begun.",
    calls: "Calls begun, LITE's own included.",
    sends: "Messages begun; they are calls too.",
    served: "Calls given to handlers.",
    bytes_read: "Bytes of reads begun.",
    bytes_written: "Bytes of writes begun.",
    bytes_copied: "Bytes of reads and writes that this node copied between its memories.",
    retries: "Transfers continued on a new connection.",
    busy: "Calls repeated because the server's queue was full.",
    deadline_misses: "Operations whose deadline passed.",
    connections: "Connections made.",
    closed: "Connections closed by agreement.",
    set_ups_relayed: "Messages of set-ups that went through the manager.",
    set_ups_refused: "Datagrams of set-ups that were forged, late or void.",
    on_no_permit: "Times that a connection waited for a permit.",
    limited: "Operations and calls of applications with limits.",
    bytes_limited: "Their bytes.",
    limit_waits: "Operations and calls that waited for a limit.",
    limit_waited_us: "Microseconds that they waited, all together.",
}
