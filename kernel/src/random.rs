//! Unpredictable bytes: a generator with fast key erasure, fed by RDSEED, RDRAND and what drivers (virtio-rng) add. What peers
//! may read of its state later tells nothing of what it has given out.
//!
//! Without any of these [`is_seeded`] is false, and the node must refuse to join: queue pair numbers, sequence numbers and
//! keys would be guessable.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use proto::channel::Generator;
use zeroize::{Zeroize, Zeroizing};

use crate::arch::cpu;
use crate::sync::IrqMutex;

/// Attempts at an instruction that may have nothing ready (Intel's advice for RDRAND is 10).
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

/// Adds 32 bytes to the generator, and overwrites them here.
fn mix(fresh: &mut [u8; 32]) {
    match &mut *GENERATOR.lock() {
        Some(generator) => generator.mix(fresh),
        none => *none = Some(Generator::new(fresh)),
    }
    fresh.zeroize();
}

/// Seeds the generator from the processor.
pub fn init() {
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

/// Adds entropy from a device that is made for it (virtio-rng).
pub fn add_entropy(bytes: &[u8]) {
    for chunk in bytes.chunks(32) {
        let mut fresh = [0; 32];
        fresh[..chunk.len()].copy_from_slice(chunk);
        mix(&mut fresh);
        if chunk.len() == 32 {
            SEEDED.store(true, Ordering::Release);
        }
    }
}

/// Whether the bytes are unpredictable: some source has given at least 256 bits.
pub fn is_seeded() -> bool {
    SEEDED.load(Ordering::Acquire)
}

/// Fills `buf`. Predictable unless [`is_seeded`].
pub fn fill(buf: &mut [u8]) {
    let mut generator = GENERATOR.lock();
    generator.get_or_insert_with(weak).fill(buf);
}

/// What a machine without any source has.
fn weak() -> Generator {
    let mut secret = Zeroizing::new([0; 32]);
    secret[..8].copy_from_slice(&cpu::tsc().to_le_bytes());
    Generator::new(&secret)
}
