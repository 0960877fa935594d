//! Unpredictable bytes: a generator with fast key erasure, fed by RDSEED, RDRAND, and entropy from drivers
//! (virtio-rng). A peer that later reads the generator's state learns nothing of the bytes it has returned
//! before.
//!
//! Without any of these sources [`is_seeded`] is false. The node must then refuse to join: queue pair
//! numbers, sequence numbers and keys would be guessable.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use proto::channel::Generator;
use zeroize::{Zeroize, Zeroizing};

use crate::arch::cpu;
use crate::sync::IrqMutex;

/// Attempts at an instruction that may have no value ready (Intel recommends 10 for RDRAND).
const TRIES: u32 = 10;

static GENERATOR: IrqMutex<Option<Generator>> = IrqMutex::new(None);
static SEEDED: AtomicBool = AtomicBool::new(false);

fn rdrand() -> Option<u64> {
    (0..TRIES).find_map(|_| {
        let (value, ok): (u64, u8);
        // SAFETY: called only where CPUID lists RDRAND.
        unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) ok, options(nomem, nostack)) };
        (ok != 0).then_some(value)
    })
}

fn rdseed() -> Option<u64> {
    (0..TRIES).find_map(|_| {
        let (value, ok): (u64, u8);
        // SAFETY: called only where CPUID lists RDSEED.
        unsafe { asm!("rdseed {}", "setc {}", out(reg) value, out(reg_byte) ok, options(nomem, nostack)) };
        (ok != 0).then_some(value)
    })
}

/// Adds 32 bytes to the generator and overwrites them in `fresh`.
fn mix(fresh: &mut [u8; 32]) {
    match &mut *GENERATOR.lock() {
        Some(generator) => generator.mix(fresh),
        none => *none = Some(Generator::new(fresh)),
    }
    fresh.zeroize();
}

/// Seeds the generator from the processor.
pub(crate) fn init() {
    let has_rdrand = cpu::bit(cpu::cpuid(1, 0).ecx, 30);
    let has_rdseed = cpu::bit(cpu::cpuid(7, 0).ebx, 18);
    for instruction in [has_rdrand.then_some(rdrand as fn() -> Option<u64>), has_rdseed.then_some(rdseed)] {
        let Some(instruction) = instruction else { continue };
        let mut fresh = [0; 32];
        let mut complete = true;
        for chunk in fresh.chunks_exact_mut(8) {
            match instruction() {
                Some(word) => chunk.copy_from_slice(&(word ^ cpu::tsc()).to_le_bytes()),
                None => complete = false,
            }
        }
        mix(&mut fresh);
        if complete {
            SEEDED.store(true, Ordering::Release);
        }
    }
}

/// Adds entropy from an entropy device (virtio-rng).
pub(crate) fn add_entropy(bytes: &[u8]) {
    for chunk in bytes.chunks(32) {
        let mut fresh = [0; 32];
        fresh[..chunk.len()].copy_from_slice(chunk);
        mix(&mut fresh);
        if chunk.len() == 32 {
            SEEDED.store(true, Ordering::Release);
        }
    }
}

/// Returns true if the bytes are unpredictable: some source has provided at least 256 bits.
pub(crate) fn is_seeded() -> bool {
    SEEDED.load(Ordering::Acquire)
}

/// Fills `buf` with bytes that are predictable unless [`is_seeded`].
pub(crate) fn fill(buf: &mut [u8]) {
    let mut generator = GENERATOR.lock();
    generator.get_or_insert_with(weak).fill(buf);
}

/// Returns the generator of a machine without any entropy source.
fn weak() -> Generator {
    let mut secret = Zeroizing::new([0; 32]);
    secret[..8].copy_from_slice(&cpu::tsc().to_le_bytes());
    Generator::new(&secret)
}
