//! Send work requests as they lie in the guest's memory: a control segment, then those that its opcode has
//! (Linux `include/linux/mlx4/qp.h`). Any bytes give a request or a reason.

use std::fmt;

/// Bytes of a segment's unit.
const UNIT: usize = 16;
/// Bytes of a datagram segment.
pub const DATAGRAM: usize = 48;

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Opcode {
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

/// Why a work request is refused. The queue pair goes to the error state with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The size field does not hold the segments, or is beyond the entry.
    #[error("its size of {0} units does not fit")]
    Size(u8),
    /// No such opcode.
    #[error("opcode {0:#x} is not supported")]
    Opcode(u8),
}

/// The control segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Control(u32, u32, u32, u32);

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "control {:08x} {:08x} {:08x} {:08x}", self.0, self.1, self.2, self.3)
    }
}

impl Control {
    /// Reads the first 16 bytes.
    #[must_use]
    pub fn parse(bytes: &[u8; UNIT]) -> Self {
        let word = |i: usize| {
            bytes.get(4 * i..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
        };
        Self(word(0), word(1), word(2), word(3))
    }
    /// The owner bit: set on odd laps of the queue.
    #[must_use]
    pub const fn owner(self) -> bool {
        self.0 >> 31 != 0
    }
    /// The opcode.
    pub fn opcode(self) -> Result<Opcode, Malformed> {
        let code = (self.0 & 0x1f) as u8;
        Opcode::from_code(code).ok_or(Malformed::Opcode(code))
    }
    /// The opcode's code, for the completion.
    #[must_use]
    pub const fn code(self) -> u8 {
        (self.0 & 0x1f) as u8
    }
    /// Bytes of the whole request.
    #[must_use]
    pub const fn len(self) -> usize {
        (self.1 & 0x3f) as usize * UNIT
    }
    /// The same in units, as the segment has it.
    #[must_use]
    pub const fn units(self) -> u8 {
        (self.1 & 0x3f) as u8
    }
    /// Starts only after earlier READs and atomics.
    #[must_use]
    pub const fn fence(self) -> bool {
        self.1 & 0x40 != 0
    }
    /// Makes a completion when it succeeds.
    #[must_use]
    pub const fn signaled(self) -> bool {
        self.2 & 0xc == 0xc
    }
    /// Asks the peer to raise an event.
    #[must_use]
    pub const fn solicited(self) -> bool {
        self.2 & 2 != 0
    }
    /// Of a special queue pair on InfiniBand: the source LID is as the guest has written it.
    #[must_use]
    pub const fn source_given(self) -> bool {
        self.2 & 1 << 16 != 0
    }
    /// Goes to a queue pair of the same card, whatever its address.
    #[must_use]
    pub const fn inside(self) -> bool {
        self.2 & 1 != 0
    }
    /// Of an Ethernet frame: its destination, if the driver wants it to reach queue pairs of the port that sends it. libmlx4
    /// copies it from the frame (`providers/mlx4/qp.c`); mlx4_en does so if there are virtual functions (`en_tx.c`).
    #[must_use]
    pub const fn looped(self) -> Option<[u8; 6]> {
        let ([a, b, ..], [c, d, e, f]) = (self.2.to_be_bytes(), self.3.to_be_bytes());
        if self.2 >> 16 == 0 && self.3 == 0 { None } else { Some([a, b, c, d, e, f]) }
    }
    /// IP and transport checksums are to be put in.
    #[must_use]
    pub const fn checksums(self) -> (bool, bool) {
        (self.2 & 1 << 4 != 0, self.2 & 1 << 5 != 0)
    }
    /// The VLAN tag to be put into an Ethernet frame, if one is: whether it is an S-VLAN's, and its value.
    #[must_use]
    pub const fn vlan(self) -> Option<(bool, u16)> {
        const CUSTOMER: u32 = 1 << 14;
        const SERVICE: u32 = 1 << 15;
        let service = self.1 & SERVICE != 0;
        if service || self.1 & CUSTOMER != 0 { Some((service, (self.1 >> 16) as u16)) } else { None }
    }
    /// Of an XRC queue pair: the peer's shared receive queue (rdma-core `providers/mlx4/qp.c`).
    #[must_use]
    pub const fn remote_srq(self) -> u32 {
        self.2 >> 8
    }
    /// Immediate data, or the key that a SEND takes away.
    #[must_use]
    pub const fn immediate(self) -> u32 {
        self.3
    }
}

/// The address in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// First byte.
    pub va: u64,
    /// The key.
    pub rkey: u32,
}

/// A piece of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// In memory.
    Segment {
        /// The region's key.
        lkey: u32,
        /// First byte.
        va: u64,
        /// Bytes.
        len: u32,
    },
    /// In the request.
    Inline(&'a [u8]),
}

/// The segments of a request after the control segment, front to back.
pub struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    /// Those that follow the header of a large send.
    #[must_use]
    pub const fn after(rest: &'a [u8]) -> Self {
        Self(rest)
    }

    /// Those of a request, its control segment included.
    pub fn new(wqe: &'a [u8]) -> Result<Self, Malformed> {
        let units = wqe.len().div_ceil(UNIT) as u8;
        wqe.get(UNIT..).map(Self).ok_or(Malformed::Size(units))
    }

    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Malformed::Size((self.0.len() / UNIT) as u8))?;
        self.0 = rest;
        Ok(front)
    }

    /// The next `N` words.
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], Malformed> {
        let short = Malformed::Size((self.0.len() / UNIT) as u8);
        let (front, rest) = self.0.split_at_checked(4 * N).ok_or(short)?;
        self.0 = rest;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(front.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        Ok(words)
    }

    /// A datagram segment: an address vector, and which queue pair is meant.
    pub fn datagram(&mut self) -> Result<&'a [u8; DATAGRAM], Malformed> {
        self.take()
    }

    /// A remote address segment.
    pub fn remote(&mut self) -> Result<Remote, Malformed> {
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, ..] = *self.take::<UNIT>()?;
        Ok(Remote {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
        })
    }

    /// An atomic segment: what to swap in or add, and what to compare with.
    pub fn atomic(&mut self) -> Result<(u64, u64), Malformed> {
        let value = u128::from_be_bytes(*self.take::<UNIT>()?);
        Ok(((value >> 64) as u64, value as u64))
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Data<'a>;

    /// The next data or inline segment. An inline segment is padded to 16 bytes.
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
            // What libmlx4 writes for a segment without bytes.
            0x8000_0000 => 0,
            0 => 1 << 31,
            len => len,
        };
        Some(Data::Segment { lkey: u32::from_be_bytes([k0, k1, k2, k3]), va: u64::from_be_bytes(va), len })
    }
}
