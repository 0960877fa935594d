//! Measures the cost of basic operations on this machine, or of the heap alone. It prints figures and judges
//! none.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::Memory;
use proto::channel::{Arithmetic, ClusterKey, Handshake, HandshakeStep, Role, sealed_len};

use super::heap::Xorshift;
use super::{Outcome, ensure};
use crate::mm::heap;
use crate::{exec, time};

/// Prints the time of one call: the best of ten batches, because a busy host disturbs some.
fn per_call(name: &str, calls: u64, mut f: impl FnMut(u64)) {
    let batch = (calls / 10).max(1);
    let best = (0..10).map(|_| {
        let begun = time::now();
        (0..batch).for_each(&mut f);
        time::now().saturating_since(begun).as_nanos() as u64
    });
    crate::println!("speed: {name:<32} {:>8} ns", best.min().unwrap_or(0) / batch);
}

/// Measures the heap: empty, and with 4000 blocks.
fn allocations() {
    crate::println!("heap: {}", heap::ALLOCATOR);
    per_call("allocate and free 64 bytes", 100_000, |_| drop(black_box(Box::new([0u8; 64]))));
    let mut random = Xorshift(99);
    let mut live: Vec<Vec<u8>> =
        (0..4000).map(|_| Vec::with_capacity(random.below(2000) as usize + 1)).collect();
    per_call("replace one of 4000 blocks", 50_000, |_| {
        let at = random.below(4000) as usize;
        live[at] = Vec::with_capacity(random.below(2000) as usize + 1);
    });
    per_call("the same among 4000 blocks", 50_000, |_| drop(black_box(Box::new([0u8; 64]))));
    per_call("grow 64 to 65536 bytes by doubling", 2000, |i| {
        let mut grown = Vec::new();
        (6..=16).for_each(|power| grown.resize(1 << power, i as u8));
        black_box(grown);
    });
}

/// Returns a function that seals a frame of a control connection with one implementation of the cipher.
fn sealing(arithmetic: Arithmetic) -> Result<impl FnMut(u64), String> {
    let key = ClusterKey::from_bytes([7; 32]);
    let keys = (key.for_role(Role::Node), key.roles());
    let (Ok(node), Ok(roles)) = keys else { return Err("the key is not whole".into()) };
    let (responder, challenge) = Handshake::responder(&roles, [[3; 32], [2; 32]]);
    let failed = || String::from("a handshake with itself failed");
    let fed = |side: Handshake, mut bytes: &[u8]| side.feed(&mut bytes).map_err(|_| failed());
    let initiator = Handshake::initiator_with(&node, [1; 32], arithmetic);
    let HandshakeStep::Continue { reply: first, next } = fed(initiator, &challenge)? else {
        return Err(failed());
    };
    let HandshakeStep::Done { reply, .. } = fed(responder, &first)? else { return Err(failed()) };
    let HandshakeStep::Done { mut channel, .. } = fed(next, &reply)? else { return Err(failed()) };
    let (plain, mut sealed) = (alloc::vec![3; 16_000], alloc::vec![0; sealed_len(16_000)]);
    Ok(move |_| {
        // The buffer has the required length.
        let _ = black_box(channel.sealer.seal_into(&plain, &mut sealed));
    })
}

/// Measures the heap's allocator alone.
pub(super) fn heaps() -> Outcome {
    allocations();
    Ok(alloc::string::String::new())
}

pub(super) async fn run() -> Outcome {
    let source = alloc::vec![7u8; 1 << 16];
    let mut target = alloc::vec![0u8; 1 << 16];
    copies(&source, &mut target)?;
    checksums(&source);
    per_call("fill 65536 bytes", 500, |i| black_box(&mut target).fill(i as u8));
    per_call("clock", 100_000, |_| {
        black_box(time::now());
    });
    allocations();
    per_call("take and give a frame", 20_000, |_| {
        if let Some(f) = crate::mm::frames::alloc(4096) {
            crate::mm::frames::free(f, 4096);
        }
    });
    tasks().await;
    for (name, arithmetic) in [("vectors", Arithmetic::Vectors), ("scalars", Arithmetic::Scalars)] {
        per_call(&alloc::format!("seal 16000 bytes by {name}"), 400, sealing(arithmetic)?);
    }
    let mut bytes = [0; 32];
    per_call("32 random bytes", 10_000, |_| crate::random::fill(&mut bytes));
    Ok(alloc::string::String::new())
}

/// Measures copies between buffers, and to and from lent memory. Both buffers have 65,536 bytes.
fn copies(source: &[u8], target: &mut [u8]) -> Result<(), String> {
    let calls = |size: usize| (1 << 24) / (size as u64 + 64);
    for size in [8, 64, 256, 1024, 4096, 65536usize] {
        per_call(&alloc::format!("copy {size} bytes"), calls(size), |_| {
            black_box(&mut *target)[..size].copy_from_slice(&black_box(source)[..size]);
        });
    }
    let memory = crate::mm::memory::LentMemory;
    let run = memory.lend(1 << 16).ok_or("no memory to lend")?;
    let lent = run.addr();
    for size in [8, 64, 256, 1024, 4096, 65536usize] {
        let refused = AtomicU64::new(0);
        let count = |result: Result<(), platform::MemoryError>| {
            refused.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        };
        per_call(&alloc::format!("write {size} lent bytes"), calls(size), |_| {
            count(memory.write(black_box(lent), &black_box(source)[..size]));
        });
        per_call(&alloc::format!("read {size} lent bytes"), calls(size), |_| {
            count(memory.read(black_box(lent), &mut black_box(&mut *target)[..size]));
        });
        per_call(&alloc::format!("write {size} bytes of a run"), calls(size), |_| {
            count(black_box(&run).write(0, &black_box(source)[..size]));
        });
        per_call(&alloc::format!("read {size} bytes of a run"), calls(size), |_| {
            count(black_box(&run).read(0, &mut black_box(&mut *target)[..size]));
        });
        ensure!(refused.into_inner() == 0, "lent memory was refused");
    }
    Ok(())
}

/// Measures the invariant CRC of RoCE.
fn checksums(source: &[u8]) {
    for size in [64, 4096usize] {
        let calls = (1 << 22) / (size as u64 + 64);
        per_call(&alloc::format!("ICRC of {size} bytes"), calls, |_| {
            black_box(roce::wire::Icrc::START.feed(&black_box(source)[..size]));
        });
        per_call(&alloc::format!("ICRC of {size} bytes by tables"), calls, |_| {
            black_box(roce::wire::Icrc::START.feed_by_table(&black_box(source)[..size]));
        });
        per_call(&alloc::format!("ICRC of {size} bytes by shifts"), calls, |_| {
            black_box(roce::wire::Icrc::START.feed_by_shifts(&black_box(source)[..size]));
        });
    }
}

/// Measures yields and tasks.
async fn tasks() {
    let line = |name: &str, begun: platform::Instant, rounds: u128| {
        crate::println!(
            "speed: {name:<32} {:>8} ns",
            time::now().saturating_since(begun).as_nanos() / rounds
        );
    };
    let begun = time::now();
    for _ in 0..10_000 {
        platform::yield_now().await;
    }
    line("yield", begun, 10_000);
    let begun = time::now();
    for _ in 0..2000 {
        exec::spawn_on(0, "empty", async {}).await;
    }
    line("spawn and await", begun, 2000);
}
