//! The CRC over the first bytes of a RoCEv2 packet over IPv4, kept from packet to packet.
//!
//! These bytes are the IPv4 and UDP headers and the first word of the base header. Packets of one length and
//! operation on one path differ in them only by the identification. The CRC of a sum (exclusive or) of two
//! messages of one length follows from the CRCs of both, so the CRC for one identification is that for
//! zero, changed by two entries of tables.
//!
//! This is for processors without carry-less multiplication, and for TCG. Whether others would gain by it was
//! not measured.

use super::table::{self, TABLES};
use super::{Icrc, Ones};
use crate::wire::{Ipv4, Udp};
use core::cell::Cell;

/// The number of bytes that a seed covers.
pub(in crate::wire) const SEEDED: usize = OPERATION + 4;

/// The offset of the identification in the IPv4 header, which comes first.
const ID: usize = 4;
/// The offset of the last byte of the source address in that header.
const SOURCE: usize = 15;
/// The offset of the base header's first byte, the operation code.
const OPERATION: usize = Ipv4::LEN + Udp::LEN;

/// The effect of each value of the two bytes of the identification on the CRC after the covered bytes.
static EFFECTS: [[u32; 256]; 2] = [effects(SEEDED - 1 - ID), effects(SEEDED - 2 - ID)];

/// Returns the effects of a byte that `k` more bytes follow.
const fn effects(k: usize) -> [u32; 256] {
    let last = TABLES.len() - 1;
    let mut effects = TABLES[last];
    let mut byte = 0;
    while byte < 256 {
        let mut i = last;
        while i < k {
            effects[byte] = table::after_byte(effects[byte], 0);
            i += 1;
        }
        byte += 1;
    }
    effects
}

/// The CRC after the covered bytes, if the identification were zero.
#[derive(Clone, Copy, Default)]
struct Seed(u32);

impl Seed {
    #[cold]
    fn of(bytes: &[u8; SEEDED], ones: &Ones) -> Self {
        Self(Icrc::START.feed_with(ones, bytes).0 ^ effect(bytes))
    }

    /// Returns the CRC after `bytes`, which differ from those of the seed only by the identification.
    fn after(self, bytes: &[u8; SEEDED]) -> Icrc {
        Icrc(self.0 ^ effect(bytes))
    }
}

/// Returns the effect of the identification in `bytes`.
fn effect(bytes: &[u8; SEEDED]) -> u32 {
    EFFECTS[0][usize::from(bytes[ID])] ^ EFFECTS[1][usize::from(bytes[ID + 1])]
}

/// The seeds of the packets that are sent on one path, by length and first word of the base header.
#[derive(Default)]
pub(in crate::wire) struct SentSeeds([Cell<(u64, Seed)>; Self::COUNT]);

impl SentSeeds {
    /// The number of seeds. Requests, responses and acknowledgements have different places.
    const COUNT: usize = 4;

    /// Returns the CRC after the first bytes of a packet of `len` bytes.
    pub(in crate::wire) fn after(&self, bytes: &[u8; SEEDED], len: usize, ones: &Ones) -> Icrc {
        let [.., operation, b, c, d] = *bytes;
        let of = (len as u64) << 32 | u64::from(u32::from_le_bytes([operation, b, c, d]));
        let kept = &self.0[usize::from(operation) % Self::COUNT];
        let (of_kept, seed) = kept.get();
        // The length of a packet is never zero, so a place that is not in use yet does not match.
        if of == of_kept {
            return seed.after(bytes);
        }
        let seed = Seed::of(bytes, ones);
        kept.set((of, seed));
        seed.after(bytes)
    }
}

/// The seeds of the packets that an RNIC has received last.
#[derive(Default)]
pub struct ReceivedSeeds([(Covered, Seed); Self::COUNT]);

/// Covered bytes, in words. Bits that count as ones, and the identification, are ones.
type Covered = [u64; SEEDED / 8];

impl ReceivedSeeds {
    /// The number of seeds.
    const COUNT: usize = 8;

    /// Returns the CRC after the first bytes of a received packet.
    pub(in crate::wire) fn after(&mut self, bytes: &[u8; SEEDED], ones: &Ones) -> Icrc {
        const IDENTIFICATION: u64 = 0xffff << (8 * ID);
        let mut of: Covered = [IDENTIFICATION, 0, 0, 0];
        for ((word, bytes), ones) in
            of.iter_mut().zip(bytes.as_chunks::<8>().0).zip(ones.0.as_chunks::<8>().0)
        {
            *word |= u64::from_le_bytes(*bytes) | u64::from_le_bytes(*ones);
        }
        let place = usize::from(bytes[SOURCE] ^ bytes[OPERATION]) % Self::COUNT;
        let (of_kept, seed) = &mut self.0[place];
        // The identification is ones, so a place that is not in use yet does not match.
        if of != *of_kept {
            (*of_kept, *seed) = (of, Seed::of(bytes, ones));
        }
        seed.after(bytes)
    }
}
