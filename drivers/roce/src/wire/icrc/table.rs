//! CRC-32 by tables, 16 bytes at a time: for short runs of bytes, and for processors without carry-less
//! multiplication.

use super::Ones;

/// The polynomial of CRC-32 (IEEE 802.3), with the lowest power in the highest bit.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;

/// `TABLES[k][b]` is the effect of byte `b` on the CRC when `k` more bytes follow it in the block.
pub(super) static TABLES: [[u32; 256]; 16] = tables();

const fn tables() -> [[u32; 256]; 16] {
    let mut t = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        t[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = t[k - 1][byte];
            t[k][byte] = before >> 8 ^ t[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    t
}

/// Returns the CRC register after `bytes`, from `crc` before them.
pub(super) fn feed(mut crc: u32, ones: &Ones, bytes: &[u8]) -> u32 {
    let (parts, rest) = bytes.as_chunks::<16>();
    let (changed, parts) = parts.split_at(parts.len().min(Ones::USED / 16));
    let (ones_of_parts, _) = ones.0.as_chunks::<16>();
    for (part, ones) in changed.iter().zip(ones_of_parts) {
        crc = fold(crc, u128::from_le_bytes(*part) | u128::from_le_bytes(*ones));
    }
    let (fours, singles) = parts.as_chunks::<4>();
    for four in fours {
        for part in four {
            crc = fold(crc, u128::from_le_bytes(*part));
        }
    }
    for part in singles {
        crc = fold(crc, u128::from_le_bytes(*part));
    }
    // The parts after the first four have no ones, so these are right for any rest.
    let ones = ones.0.get(16 * changed.len()..).unwrap_or_default();
    // In RoCE packets the rest is a multiple of 4 bytes.
    let (words, bytes) = rest.as_chunks::<4>();
    for (word, ones) in words.iter().zip(ones.as_chunks::<4>().0) {
        crc = look4(0, crc ^ (u32::from_le_bytes(*word) | u32::from_le_bytes(*ones)));
    }
    for (byte, ones) in bytes.iter().zip(ones.iter().skip(4 * words.len())) {
        crc = after_byte(crc, byte | ones);
    }
    crc
}

/// Continues the CRC over 16 bytes. Whole words and one sum are four times as fast as single bytes.
#[inline(always)]
fn fold(crc: u32, bits: u128) -> u32 {
    let later = look4(8, (bits >> 32) as u32) ^ look4(4, (bits >> 64) as u32) ^ look4(0, (bits >> 96) as u32);
    look4(12, bits as u32 ^ crc) ^ later
}

/// Returns the effect of four bytes on the CRC when `k` more follow them.
#[inline(always)]
fn look4(k: usize, word: u32) -> u32 {
    look(k + 3, word) ^ look(k + 2, word >> 8) ^ look(k + 1, word >> 16) ^ look(k, word >> 24)
}

/// Returns the effect of the low byte of `bits` on the CRC when `k` more follow it.
#[inline(always)]
fn look(k: usize, bits: u32) -> u32 {
    TABLES[k][(bits & 0xff) as usize]
}

/// Returns the CRC register after `n` bytes of ones.
pub(super) const fn after_ones(n: usize) -> u32 {
    let mut crc = u32::MAX;
    let mut i = 0;
    while i < n {
        crc = after_byte(crc, 0xff);
        i += 1;
    }
    crc
}

/// Returns the CRC register after a byte, from `crc` before it.
pub(super) const fn after_byte(crc: u32, byte: u8) -> u32 {
    crc >> 8 ^ TABLES[0][((crc ^ byte as u32) & 0xff) as usize]
}
