//! Unpredictable bytes: ChaCha20 keyed from RDSEED, RDRAND and what drivers (virtio-rng) add.
//!
//! Without any of these [`is_seeded`] is false, and the node must refuse to join: queue pair numbers, sequence numbers and
//! keys would be guessable.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::arch::cpu;
use crate::sync::IrqMutex;

/// Attempts at an instruction that may have nothing ready (Intel's advice for RDRAND is 10).
const TRIES: u32 = 10;

static GENERATOR: IrqMutex<Option<ChaCha20Rng>> = IrqMutex::new(None);
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

/// Mixes 32 bytes into the generator's key: the new key is the generator's own output, changed by `fresh`.
fn mix(fresh: [u8; 32]) {
    let mut generator = GENERATOR.lock();
    let mut key = [0; 32];
    if let Some(old) = generator.as_mut() {
        old.fill_bytes(&mut key);
    }
    key.iter_mut().zip(fresh).for_each(|(k, f)| *k ^= f);
    *generator = Some(ChaCha20Rng::from_seed(key));
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
        mix(fresh);
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
        mix(fresh);
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
    let generator = generator.get_or_insert_with(|| ChaCha20Rng::seed_from_u64(cpu::tsc()));
    generator.fill_bytes(buf);
}
