//! The invariant CRC: Ethernet's CRC-32 over everything that no router may change, stored little-endian.
//!
//! Variant fields count as ones (specification 7.8.1, annexes A16.5 and A17.3).

#[cfg(target_arch = "x86_64")]
mod clmul;
mod seed;
mod sparse;
mod table;

pub use seed::ReceivedSeeds;
pub(super) use seed::{SEEDED, SentSeeds};

/// The method by which a CRC is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// By shifts of words; short runs of bytes by tables. Works everywhere.
    Shift,
    /// By carry-less multiplication; short runs of bytes by tables.
    Multiply,
}

impl Method {
    /// Returns the method of [`Icrc::feed`]: the fastest that this processor has.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if clmul::available() {
            return Self::Multiply;
        }
        Self::Shift
    }
}

/// The bits of the first bytes that count as ones, because routers may change them.
pub(super) struct Ones([u8; Self::LEN]);

impl Ones {
    /// The number of bytes that may have such bits: four blocks of 16 bytes.
    const USED: usize = 64;
    /// The number of bytes with the zeros after them, so that four blocks are there from any byte of the
    /// first on.
    const LEN: usize = Self::USED + 16;
    const NONE: Self = Self([0; Self::LEN]);

    /// Makes the ones of these bytes in full, and `first` of the first byte.
    pub(super) const fn new(first: u8, bytes: &[usize]) -> Self {
        let mut ones = [0; Self::LEN];
        let mut i = 0;
        while i < bytes.len() {
            assert!(bytes[i] < Self::USED);
            ones[bytes[i]] = 0xff;
            i += 1;
        }
        ones[0] |= first;
        Self(ones)
    }

    /// Returns the ones from byte `n` on.
    pub(super) const fn after(&self, n: usize) -> Self {
        let mut ones = [0; Self::LEN];
        let mut i = n;
        while i < Self::USED {
            ones[i - n] = self.0[i];
            i += 1;
        }
        Self(ones)
    }
}

/// The CRC of the bytes so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Icrc(u32);

impl Icrc {
    /// The CRC before the first byte.
    pub const EMPTY: Self = Self(u32::MAX);

    /// The CRC after the eight bytes of ones that stand for the local route header, which RoCE does not have.
    pub const START: Self = Self(table::after_ones(8));

    /// Continues the CRC over `bytes`.
    #[inline]
    #[must_use]
    pub fn feed(self, bytes: &[u8]) -> Self {
        self.feed_with(&Ones::NONE, bytes)
    }

    /// Continues the CRC over `bytes`, some bits of which count as ones.
    #[inline]
    #[must_use]
    pub(super) fn feed_with(self, ones: &Ones, bytes: &[u8]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(crc) = clmul::feed(self.0, ones, bytes) {
            return Self(crc);
        }
        Self(sparse::feed(self.0, ones, bytes))
    }

    /// Continues the CRC over `bytes` as processors without carry-less multiplication do, and TCG. Tests and
    /// measurements compare [`feed`](Self::feed) with this.
    #[must_use]
    pub fn feed_by_shifts(self, bytes: &[u8]) -> Self {
        Self(sparse::feed(self.0, &Ones::NONE, bytes))
    }

    /// Continues the CRC over `bytes` by tables. Tests and measurements compare [`feed`](Self::feed) with
    /// this.
    #[must_use]
    pub fn feed_by_table(self, bytes: &[u8]) -> Self {
        Self(table::feed(self.0, &Ones::NONE, bytes))
    }

    /// Returns the four bytes at the end of the packet.
    #[must_use]
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc32() {
        // The published check value of CRC-32/ISO-HDLC.
        assert_eq!(Icrc(u32::MAX).feed(b"123456789").finish(), 0xcbf4_3926u32.to_le_bytes());
        assert_eq!(Icrc(u32::MAX).feed(&[0xff; 8]), Icrc::START);
    }

    #[test]
    fn any_split_gives_the_same() {
        let data: [u8; 199] = core::array::from_fn(|i| (i * 37 + 11) as u8);
        let whole = Icrc::START.feed_by_table(&data).finish();
        for at in (0..data.len()).step_by(if cfg!(miri) { 20 } else { 1 }) {
            assert_eq!(Icrc::START.feed(&data[..at]).feed(&data[at..]).finish(), whole);
        }
    }
}
