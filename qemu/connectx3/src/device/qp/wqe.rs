//! Send work requests in the guest's memory: a control segment, then the segments of its opcode (Linux
//! `include/linux/mlx4/qp.h`). Parsing accepts any bytes and returns a request or an error.

use std::fmt;

/// The unit of segment lengths, in bytes.
const UNIT: usize = 16;
/// The length of a datagram segment, in bytes.
pub(crate) const DATAGRAM: usize = 48;

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Opcode {
    Nop = 0x00,
    SendInvalidate = 0x01,
    Write = 0x08,
    WriteImm = 0x09,
    Send = 0x0a,
    SendImm = 0x0b,
    Lso = 0x0e,
    Read = 0x10,
    CompareSwap = 0x11,
    FetchAdd = 0x12,
    Bind = 0x18,
    FastRegister = 0x19,
    LocalInvalidate = 0x1b,
}

impl Opcode {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x01 => Self::SendInvalidate,
            0x08 => Self::Write,
            0x09 => Self::WriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x0e => Self::Lso,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            0x18 => Self::Bind,
            0x19 => Self::FastRegister,
            0x1b => Self::LocalInvalidate,
            _ => return None,
        })
    }
}

/// The reason why a work request is refused. The queue pair then goes to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// The size field is too small for the segments, or too large for the entry.
    #[error("its size of {0} units is invalid")]
    Size(u8),
    /// The opcode is unknown.
    #[error("opcode {0:#x} is not supported")]
    Opcode(u8),
}

/// The control segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control(u32, u32, u32, u32);

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "control {:08x} {:08x} {:08x} {:08x}", self.0, self.1, self.2, self.3)
    }
}

impl Control {
    /// Parses the first 16 bytes.
    #[must_use]
    pub(crate) fn parse(bytes: &[u8; UNIT]) -> Self {
        let word = |i: usize| {
            bytes.get(4 * i..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
        };
        Self(word(0), word(1), word(2), word(3))
    }
    /// Returns the owner bit, which is set on odd laps of the queue.
    #[must_use]
    pub(crate) const fn owner(self) -> bool {
        self.0 >> 31 != 0
    }
    /// Returns the opcode.
    pub(crate) fn opcode(self) -> Result<Opcode, Malformed> {
        let code = (self.0 & 0x1f) as u8;
        Opcode::from_code(code).ok_or(Malformed::Opcode(code))
    }
    /// Returns the opcode's code, for the completion.
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        (self.0 & 0x1f) as u8
    }
    /// Returns the length of the whole request in bytes.
    #[must_use]
    pub(crate) const fn len(self) -> usize {
        (self.1 & 0x3f) as usize * UNIT
    }
    /// Returns the length of the whole request in units of 16 bytes.
    #[must_use]
    pub(crate) const fn units(self) -> u8 {
        (self.1 & 0x3f) as u8
    }
    /// Returns whether the request waits for earlier READs and atomics.
    #[must_use]
    pub(crate) const fn fence(self) -> bool {
        self.1 & 0x40 != 0
    }
    /// Returns whether success produces a completion.
    #[must_use]
    pub(crate) const fn signaled(self) -> bool {
        self.2 & 0xc == 0xc
    }
    /// Returns whether the peer is asked to raise an event.
    #[must_use]
    pub(crate) const fn solicited(self) -> bool {
        self.2 & 2 != 0
    }
    /// Returns whether a special queue pair's packet on InfiniBand keeps the source LID that the guest has
    /// written.
    #[must_use]
    pub(crate) const fn source_given(self) -> bool {
        self.2 & 1 << 16 != 0
    }
    /// Returns whether the destination is a queue pair of the same card, whatever its address.
    #[must_use]
    pub(crate) const fn inside(self) -> bool {
        self.2 & 1 != 0
    }
    /// Returns the destination of an Ethernet frame, if the driver wants it to reach queue pairs of the
    /// sending port. libmlx4 copies it from the frame (`providers/mlx4/qp.c`); mlx4_en does so if there are
    /// virtual functions (`en_tx.c`).
    #[must_use]
    pub(crate) const fn looped(self) -> Option<[u8; 6]> {
        let ([a, b, ..], [c, d, e, f]) = (self.2.to_be_bytes(), self.3.to_be_bytes());
        if self.2 >> 16 == 0 && self.3 == 0 { None } else { Some([a, b, c, d, e, f]) }
    }
    /// Returns whether the card inserts the IP checksum, and the transport checksum.
    #[must_use]
    pub(crate) const fn checksums(self) -> (bool, bool) {
        (self.2 & 1 << 4 != 0, self.2 & 1 << 5 != 0)
    }
    /// Returns the VLAN tag to be inserted into an Ethernet frame: whether it is an S-VLAN tag, and its
    /// value.
    #[must_use]
    pub(crate) const fn vlan(self) -> Option<(bool, u16)> {
        const CUSTOMER: u32 = 1 << 14;
        const SERVICE: u32 = 1 << 15;
        let service = self.1 & SERVICE != 0;
        if service || self.1 & CUSTOMER != 0 { Some((service, (self.1 >> 16) as u16)) } else { None }
    }
    /// Returns the peer's shared receive queue, for an XRC queue pair (rdma-core `providers/mlx4/qp.c`).
    #[must_use]
    pub(crate) const fn remote_srq(self) -> u32 {
        self.2 >> 8
    }
    /// Returns the immediate data, or the key that a SEND invalidates.
    #[must_use]
    pub(crate) const fn immediate(self) -> u32 {
        self.3
    }
}

/// The address in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    /// The first address.
    pub va: u64,
    /// The remote key.
    pub rkey: u32,
}

/// A piece of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data<'a> {
    /// A piece in memory.
    Segment {
        /// The key of the region.
        lkey: u32,
        /// The first address.
        va: u64,
        /// The length in bytes.
        len: u32,
    },
    /// A piece contained in the request.
    Inline(&'a [u8]),
}

/// The segments of a request after the control segment, in order.
pub(crate) struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    /// Returns the segments that follow the header of a large send.
    #[must_use]
    pub(crate) const fn after(rest: &'a [u8]) -> Self {
        Self(rest)
    }

    /// Returns the segments of a request. `wqe` includes the control segment.
    pub(crate) fn new(wqe: &'a [u8]) -> Result<Self, Malformed> {
        let units = wqe.len().div_ceil(UNIT) as u8;
        wqe.get(UNIT..).map(Self).ok_or(Malformed::Size(units))
    }

    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Malformed::Size((self.0.len() / UNIT) as u8))?;
        self.0 = rest;
        Ok(front)
    }

    /// Removes and returns the next `N` words.
    pub(crate) fn words<const N: usize>(&mut self) -> Result<[u32; N], Malformed> {
        let short = Malformed::Size((self.0.len() / UNIT) as u8);
        let (front, rest) = self.0.split_at_checked(4 * N).ok_or(short)?;
        self.0 = rest;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(front.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        Ok(words)
    }

    /// Removes a datagram segment: an address vector, and the destination queue pair.
    pub(crate) fn datagram(&mut self) -> Result<&'a [u8; DATAGRAM], Malformed> {
        self.take()
    }

    /// Removes and parses a remote address segment.
    pub(crate) fn remote(&mut self) -> Result<Remote, Malformed> {
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, ..] = *self.take::<UNIT>()?;
        Ok(Remote {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
        })
    }

    /// Removes and parses an atomic segment: the value to swap in or add, and the value to compare with.
    pub(crate) fn atomic(&mut self) -> Result<(u64, u64), Malformed> {
        let value = u128::from_be_bytes(*self.take::<UNIT>()?);
        Ok(((value >> 64) as u64, value as u64))
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Data<'a>;

    /// Removes and returns the next data or inline segment. An inline segment is padded to 16 bytes.
    fn next(&mut self) -> Option<Data<'a>> {
        let (count, _) = self.0.split_first_chunk::<4>()?;
        let count = u32::from_be_bytes(*count);
        if count >> 31 != 0 && count & 0x7fff_ffff != 0 {
            let len = (count & 0x3ff) as usize;
            let data = self.0.get(4..4 + len)?;
            self.0 = self.0.get((4 + len).next_multiple_of(UNIT)..).unwrap_or(&[]);
            return Some(Data::Inline(data));
        }
        let [l0, l1, l2, l3, k0, k1, k2, k3, va @ ..] = *self.take::<UNIT>().ok()?;
        let len = match u32::from_be_bytes([l0, l1, l2, l3]) {
            // libmlx4 writes this for a segment of zero length.
            0x8000_0000 => 0,
            0 => 1 << 31,
            len => len,
        };
        Some(Data::Segment { lkey: u32::from_be_bytes([k0, k1, k2, k3]), va: u64::from_be_bytes(va), len })
    }
}
