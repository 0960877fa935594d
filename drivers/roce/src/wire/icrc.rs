//! The invariant CRC: CRC-32 of Ethernet over what no router may change, stored little-endian.
//!
//! Fields that may change count as ones (specification 7.8.1, annexes A16.5 and A17.3). Table-driven, 16 bytes at a
//! time.

/// `TABLES[k][b]`: what byte `b` does to the CRC when `k` more bytes follow it in the block.
static TABLES: [[u32; 256]; 16] = tables();

const fn tables() -> [[u32; 256]; 16] {
    let mut t = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
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

/// The CRC of what was fed so far.
#[derive(Clone, Copy, Debug)]
pub struct Icrc(u32);

impl Icrc {
    /// As after the eight bytes of ones that stand for the local route header that RoCE does not have.
    pub const START: Self = Self(after_ones(8));

    /// Goes on over `bytes`.
    #[must_use]
    pub fn feed(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            let (parts, _) = block.as_chunks::<16>();
            for part in parts {
                crc = fold(crc, part);
            }
        }
        let (parts, rest) = rest.as_chunks::<16>();
        for part in parts {
            crc = fold(crc, part);
        }
        // What is left is a multiple of 4 in every RoCE packet.
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            crc = look4(0, crc ^ u32::from_le_bytes(*word));
        }
        for &byte in rest {
            crc = crc >> 8 ^ look(0, crc ^ u32::from(byte));
        }
        Self(crc)
    }

    /// The four bytes at the end of the packet.
    #[must_use]
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

/// Goes on over 16 bytes. Whole words and one sum, not bytes in turn: four times as fast.
#[inline(always)]
fn fold(crc: u32, part: &[u8; 16]) -> u32 {
    let bits = u128::from_le_bytes(*part);
    let later = look4(8, (bits >> 32) as u32) ^ look4(4, (bits >> 64) as u32) ^ look4(0, (bits >> 96) as u32);
    look4(12, bits as u32 ^ crc) ^ later
}

/// What four bytes do to the CRC when `k` more follow them.
#[inline(always)]
fn look4(k: usize, word: u32) -> u32 {
    look(k + 3, word) ^ look(k + 2, word >> 8) ^ look(k + 1, word >> 16) ^ look(k, word >> 24)
}

/// What the low byte of `bits` does to the CRC when `k` more follow it.
#[inline(always)]
fn look(k: usize, bits: u32) -> u32 {
    TABLES[k][(bits & 0xff) as usize]
}

/// The CRC's register after `n` bytes of ones.
const fn after_ones(n: usize) -> u32 {
    let table = tables();
    let mut crc = u32::MAX;
    let mut i = 0;
    while i < n {
        crc = crc >> 8 ^ table[0][((crc ^ 0xff) & 0xff) as usize];
        i += 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc32() {
        // The published check value of CRC-32/ISO-HDLC.
        assert_eq!(Icrc(u32::MAX).feed(b"123456789").finish(), 0xcbf4_3926u32.to_le_bytes());
        assert_eq!(Icrc(u32::MAX).feed(&[0xff; 8]).0, Icrc::START.0);
    }

    #[test]
    fn any_split_gives_the_same() {
        let data: [u8; 199] = core::array::from_fn(|i| (i * 37 + 11) as u8);
        let whole = Icrc::START.feed(&data).finish();
        for at in 0..data.len() {
            assert_eq!(Icrc::START.feed(&data[..at]).feed(&data[at..]).finish(), whole);
        }
    }
}
