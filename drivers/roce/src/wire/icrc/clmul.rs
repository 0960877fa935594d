//! CRC-32 by carry-less multiplication (PCLMULQDQ), and the decision to use it on this processor.
//!
//! This is the only file of the crate with unsafe code: the call of a function that needs a feature which not
//! every x86-64 processor has.
//!
//! Bytes are a polynomial over GF(2), and their CRC is its remainder. 16 bytes that are `n` bits before
//! others may be replaced by any polynomial with the same remainder at the place of the others. As
//! `H x^(n+64) + L x^n` with the halves `H` and `L` of 64 bits, that polynomial is the sum of two products of
//! 64 by 32 bits, `H (x^(n+64) mod P) + L (x^n mod P)`, which fit into 128 bits. So four registers of 16
//! bytes advance over the bytes 64 at a time and are then folded into one, which is reduced to 32 bits. (V.
//! Gopal and others: Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009.)
//!
//! Zeros in front change nothing, so bytes that do not fill a register come first, at the end of one.
//!
//! Wider multiplications (VPCLMULQDQ) are not used: the kernel does not preserve AVX-512 state across
//! interrupts, and this method is already faster than the copy of a frame.
#![allow(unsafe_code, reason = "a function with target features is called after CPUID was asked")]

use super::Ones;
use super::table::{self, POLYNOMIAL};
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_or_si128,
    _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
};
use core::sync::atomic::{AtomicU8, Ordering};

/// For fewer bytes the tables are as fast.
const MIN_BYTES: usize = 8;

/// Returns `x^n mod P` as a factor for reversed bits: the product of two reversed polynomials of 64 bits is
/// one bit too low, so the constant is one bit higher.
const fn power(n: u32) -> u64 {
    let mut power = 1 << 31;
    let mut i = 0;
    while i < n {
        power = if power & 1 == 1 { power >> 1 ^ POLYNOMIAL } else { power >> 1 };
        i += 1;
    }
    (power as u64) << 1
}

/// Returns the factors that move 16 bytes by `bits` bits: for the half that comes first, and for the other.
/// The constants are for 32 bits less than the distance, because a factor of 33 bits in a word of 64 is 32
/// bits too high.
const fn factors(bits: u32) -> [u64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// The factors for a distance of four registers of 16 bytes.
const BY_64_BYTES: [u64; 2] = factors(4 * 128);
/// The folding factors for a distance of one 16-byte register.
const BY_16_BYTES: [u64; 2] = factors(128);
/// The factor for a distance of 64 bits of 32 bits.
const BY_8_BYTES: u64 = power(64);
/// The polynomial with its highest power, and the quotient of `x^64` by it.
const DIVISORS: [u64; 2] = [(POLYNOMIAL as u64) << 1 | 1, quotient()];

/// Returns the quotient of `x^64` by the polynomial, of 33 reversed bits.
const fn quotient() -> u64 {
    let (mut rest, mut quotient) = (1u64, 0);
    let mut i = 0;
    while i <= 32 {
        // `rest` is the part of the dividend that begins with the power `64 - i`.
        let bit = rest & 1;
        quotient |= bit << i;
        if bit == 1 {
            rest ^= (POLYNOMIAL as u64) << 1 | 1;
        }
        rest >>= 1;
        i += 1;
    }
    quotient
}

/// Returns the CRC register after `bytes`, from `crc` before them; `None` if this processor lacks the
/// instruction, or there are too few bytes.
#[inline]
pub(super) fn feed(crc: u32, ones: &Ones, bytes: &[u8]) -> Option<u32> {
    if bytes.len() < MIN_BYTES || !available() {
        return None;
    }
    // SAFETY: `available` has found PCLMULQDQ, the only feature that the function needs beyond x86-64's own.
    Some(unsafe { run(crc, ones, bytes) })
}

#[target_feature(enable = "pclmulqdq")]
fn run(crc: u32, ones: &Ones, bytes: &[u8]) -> u32 {
    let (head, mut blocks) = bytes.as_rchunks::<16>();
    let mut ones_of_blocks = ones.0.get(head.len()..).unwrap_or_default().as_chunks::<16>().0;
    // In RoCE packets the head is a multiple of 4 bytes.
    let mut state = if head.len() % 4 == 0 && !head.is_empty() {
        load(&last_words(crc, ones, head).to_le_bytes())
    } else {
        let crc = if head.is_empty() { crc } else { table::feed(crc, ones, head) };
        let (Some((first, others)), Some((ones, later))) =
            (blocks.split_first(), ones_of_blocks.split_first())
        else {
            return crc;
        };
        (blocks, ones_of_blocks) = (others, later);
        _mm_xor_si128(_mm_or_si128(load(first), load(ones)), _mm_cvtsi32_si128(crc.cast_signed()))
    };
    let (changed, blocks) = blocks.split_at(blocks.len().min(ones_of_blocks.len()));
    for (block, ones) in changed.iter().zip(ones_of_blocks) {
        state = fold(state, BY_16_BYTES, _mm_or_si128(load(block), load(ones)));
    }
    let (fours, singles) = blocks.as_chunks::<4>();
    if let Some(([a, b, c, d], fours)) = fours.split_first() {
        let mut lanes = [fold(state, BY_16_BYTES, load(a)), load(b), load(c), load(d)];
        for four in fours {
            for (lane, block) in lanes.iter_mut().zip(four) {
                *lane = fold(*lane, BY_64_BYTES, load(block));
            }
        }
        let [first, others @ ..] = lanes;
        state = others.into_iter().fold(first, |before, lane| fold(before, BY_16_BYTES, lane));
    }
    reduce(singles.iter().fold(state, |before, block| fold(before, BY_16_BYTES, load(block))))
}

/// Returns a register that ends with the words of `head`, of which there are one to three, after `crc`.
#[inline]
fn last_words(crc: u32, ones: &Ones, head: &[u8]) -> u128 {
    let (words, ones) = (head.as_chunks::<4>().0, ones.0.as_chunks::<4>().0);
    let mut pairs = words.iter().zip(ones);
    let mut next = || pairs.next().map(|(word, ones)| u32::from_le_bytes(*word) | u32::from_le_bytes(*ones));
    let mut register = u128::from(next().unwrap_or_default() ^ crc) << 96;
    while let Some(word) = next() {
        register = register >> 32 | u128::from(word) << 96;
    }
    register
}

/// Returns the CRC register after 16 bytes, to which the one before them was added.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn reduce(state: __m128i) -> u32 {
    let low_half = _mm_set_epi64x(0, i64::from(u32::MAX));
    let [_, by_16] = BY_16_BYTES;
    let [polynomial, quotient] = DIVISORS;
    let factors = _mm_set_epi64x(BY_8_BYTES.cast_signed(), by_16.cast_signed());
    let divisors = _mm_set_epi64x(quotient.cast_signed(), polynomial.cast_signed());
    // From 16 bytes and the 4 bytes of zeros after them to 12 bytes, and to 8.
    let state = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(state, factors), _mm_srli_si128::<8>(state));
    let first = _mm_and_si128(state, low_half);
    let state = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(first, factors), _mm_srli_si128::<4>(state));
    // The remainder of 8 bytes, by the quotient (Barrett).
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(state, low_half), divisors);
    let multiple = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_half), divisors);
    (_mm_cvtsi128_si64(_mm_xor_si128(state, multiple)).cast_unsigned() >> 32) as u32
}

/// Returns `block` plus `before` moved to its place.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold(before: __m128i, factors: [u64; 2], block: __m128i) -> __m128i {
    let [first, second] = factors;
    let factors = _mm_set_epi64x(second.cast_signed(), first.cast_signed());
    let first = _mm_clmulepi64_si128::<0x00>(before, factors);
    let second = _mm_clmulepi64_si128::<0x11>(before, factors);
    _mm_xor_si128(_mm_xor_si128(first, second), block)
}

/// Loads 16 bytes into a register.
#[inline]
#[target_feature(enable = "sse2")]
fn load(block: &[u8; 16]) -> __m128i {
    let bits = u128::from_le_bytes(*block);
    _mm_set_epi64x((bits >> 64) as i64, bits as i64)
}

/// The result of the examination of the processor: 0 before it, 1 for no, 2 for yes.
static FOUND: AtomicU8 = AtomicU8::new(0);

/// Returns true if multiplication is the faster method on this processor. Executes CPUID only once, because
/// it is slow, much more so in a virtual machine.
#[inline]
pub(super) fn available() -> bool {
    match FOUND.load(Ordering::Relaxed) {
        0 => find(),
        found => found == 2,
    }
}

#[cold]
fn find() -> bool {
    let yes = if cfg!(miri) { cfg!(target_feature = "pclmulqdq") } else { has_pclmulqdq() && !is_tcg() };
    FOUND.store(1 + u8::from(yes), Ordering::Relaxed);
    yes
}

/// Returns true if CPUID leaf 1, ECX bit 1, is set (Intel's manual, volume 2, table 3-10). The registers are
/// SSE's, which any system saves.
fn has_pclmulqdq() -> bool {
    core::arch::x86_64::__cpuid(1).ecx >> 1 & 1 != 0
}

/// Returns true under QEMU's translator, which multiplies bit by bit and is nearly twice as slow as the
/// tables (`selftest=speed` prints the cost of the ICRC in the appliance).
fn is_tcg() -> bool {
    // Leaf 1, ECX bit 31: there is a hypervisor, and therefore a leaf with its name.
    let hypervisor = core::arch::x86_64::__cpuid(1).ecx >> 31 != 0;
    hypervisor && core::arch::x86_64::__cpuid(0x4000_0000).ebx == u32::from_le_bytes(*b"TCGT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_published() {
        // The constants k1 to k4 of Intel's paper for the reversed polynomial of gzip, as in many
        // implementations.
        assert_eq!(BY_64_BYTES, [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(BY_16_BYTES, [0x1_7519_97d0, 0x0_ccaa_009e]);
        // And k5, P and the quotient.
        assert_eq!((BY_8_BYTES, DIVISORS), (0x1_63cd_6124, [0x1_db71_0641, 0x1_f701_1641]));
    }

    #[test]
    fn a_factor_is_the_crc_of_one_bit() {
        // x^n mod P equals the CRC by tables of a single bit followed by n - 32 bits, because a CRC
        // multiplies by x^32.
        for n in [96, 160, 480, 544] {
            let mut bytes = [0; 68];
            let len = (n - 32) / 8 + 1;
            bytes[0] = 0x80;
            assert_eq!(u64::from(table::feed(0, &Ones::NONE, &bytes[..len])) << 1, power(n as u32), "x^{n}");
        }
    }

    #[test]
    fn every_length_at_every_alignment_is_as_by_tables() {
        if !available() {
            std::println!("SKIPPED: this processor has no carry-less multiplication");
            return;
        }
        let (longest, every) = if cfg!(miri) { (145, 7) } else { (2000, 1) };
        let bytes: std::vec::Vec<u8> =
            (0..longest + 16).map(|i: usize| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
        for start in (0..16).step_by(every) {
            for len in (0..=longest).step_by(every.min(3)) {
                let part = &bytes[start..start + len];
                let crc = (start * 0x0101_0101 + len) as u32;
                for ones in [
                    &Ones::NONE,
                    &Ones(core::array::from_fn(|i| if i < Ones::USED { (i * 73) as u8 } else { 0 })),
                ] {
                    let expected = table::feed(crc, ones, part);
                    let found = feed(crc, ones, part);
                    assert_eq!(found.unwrap_or(expected), expected, "{len} bytes from {start}");
                    assert_eq!(found.is_some(), len >= MIN_BYTES);
                }
            }
        }
    }
}
