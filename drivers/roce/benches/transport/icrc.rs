//! The speed of the ICRC.

use super::{Effort, best};
use roce::wire::{Icrc, Method};
use serde_json::{Value, json};
use std::hint::black_box;

/// Measures gigabytes per second by tables and by the transport's method, at several sizes.
pub(crate) fn speeds(effort: Effort) -> Vec<Value> {
    println!("ICRC, GB/s; the transport uses {:?} on this processor", Method::best());
    println!("{:>6} {:>9} {:>9}", "bytes", "table", "used");
    [16, 64, 128, 256, 512, 1024, 4096]
        .into_iter()
        .map(|len| {
            let bytes = vec![0x5a; len];
            let speed = |feed: fn(Icrc, &[u8]) -> Icrc| {
                let ns = best(effort, || {
                    for _ in 0..64 {
                        black_box(feed(black_box(Icrc::START), black_box(&bytes)));
                    }
                    64
                });
                len as f64 / ns
            };
            let (table, used) =
                (speed(|crc, bytes| crc.feed_by_table(bytes)), speed(|crc, bytes| crc.feed(bytes)));
            println!("{len:>6} {table:>9.2} {used:>9.2}");
            json!({ "bytes": len, "table_gb_per_s": table, "used_gb_per_s": used })
        })
        .collect()
}

/// The bytes of a frame that its ICRC does not cover: the Ethernet header and the ICRC itself.
const NOT_COVERED: usize = 14 + 4;

/// Returns the nanoseconds of ICRC per operation, for frames of `lens` bytes at both ends in `operations`
/// operations.
pub(crate) fn of_frames(effort: Effort, lens: &[usize], operations: u64) -> f64 {
    let bytes = vec![0x5a; 5000];
    best(effort, || {
        for len in lens {
            for _end in 0..2 {
                black_box(black_box(Icrc::START).feed(black_box(&bytes[..len - NOT_COVERED])));
            }
        }
        operations
    })
}
