//! The wire format of RPC: headers in ring and slot, and the immediate.

use platform::IoAddr;

/// The unit of the ring, in bytes: records start and end at multiples of it.
pub(crate) const GRAIN: u32 = 64;
/// The length of the longest record or reply that is written at once, in bytes.
pub(crate) const LONGEST: u32 = 65536;

/// The most pieces of memory of one request or one reply.
pub(crate) const MAX_PIECES: usize = 63;

/// A run of the caller's memory that contains a part of a long request, or receives a part of a long reply.
/// On the wire: address, then length, 8 bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) addr: IoAddr,
    pub(crate) len: u64,
}

impl Piece {
    /// The length on the wire, in bytes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let (addr, len) = out.split_at_mut(8);
        addr.copy_from_slice(&self.addr.0.to_le_bytes());
        len.copy_from_slice(&self.len.to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { addr: IoAddr(u64_at(bytes, 0)?), len: u64_at(bytes, 8)? })
    }
}

/// The header of a request in the ring; all integers are little-endian. The pieces follow: those of the
/// request, then those for the reply. After them comes the request, if it is not in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestHeader {
    /// The number of the function: bytes 0 to 3.
    pub(crate) function: u32,
    /// Bytes 4..6: index of the caller's slot.
    pub(crate) slot: u16,
    /// Bit 0 of bytes 6..8: the caller waits only until the request is in the function's queue, not for a
    /// reply.
    pub(crate) one_way: bool,
    /// Bits 4..=9 of bytes 6..8: the number of pieces of the request.
    pub(crate) request_pieces: u8,
    /// Bits 10..=15 of bytes 6..8: the number of pieces for a reply that is too long for the slot.
    pub(crate) reply_pieces: u8,
    /// Bytes 8..16: the caller's number of the call, which the reply repeats.
    pub(crate) call: u64,
    /// Bytes 16..24: the length of the request, in bytes.
    pub(crate) len: u64,
    /// Bytes 24..32: the length of the longest reply that the caller accepts, in bytes.
    pub(crate) max_reply: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl RequestHeader {
    /// The length on the wire, in bytes.
    pub(crate) const LEN: usize = 32;

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let pieces = |n: u8, at: u32| u16::from(n & MAX_PIECES as u8) << at;
        let flags = u16::from(self.one_way) | pieces(self.request_pieces, 4) | pieces(self.reply_pieces, 10);
        out[0..4].copy_from_slice(&self.function.to_le_bytes());
        out[4..6].copy_from_slice(&self.slot.to_le_bytes());
        out[6..8].copy_from_slice(&flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.call.to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out[24..32].copy_from_slice(&self.max_reply.to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        let pieces = |at: u32| (flags >> at) as u8 & MAX_PIECES as u8;
        (flags & 0b1110 == 0).then_some(())?;
        Some(Self {
            function: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            slot: u16::from_le_bytes([bytes[4], bytes[5]]),
            one_way: flags & 1 != 0,
            request_pieces: pieces(4),
            reply_pieces: pieces(10),
            call: u64_at(bytes, 8)?,
            len: u64_at(bytes, 16)?,
            max_reply: u64_at(bytes, 24)?,
        })
    }

    /// Returns the length of the pieces that follow, in bytes.
    pub(crate) fn pieces_len(&self) -> usize {
        (usize::from(self.request_pieces) + usize::from(self.reply_pieces)) * Piece::LEN
    }

    /// Returns the length of the whole record in bytes; `None` if no ring is large enough for it.
    #[inline(always)]
    pub(crate) fn record_len(&self) -> Option<u32> {
        let request = if self.request_pieces > 0 { 0 } else { u32::try_from(self.len).ok()? };
        let head = (Self::LEN + self.pieces_len()) as u32;
        request.checked_add(head).filter(|n| n.checked_next_multiple_of(GRAIN).is_some())
    }
}

/// The result of a call, as its server reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum ReplyStatus {
    /// The reply follows in the slot.
    InSlot = 0,
    /// The reply is in the caller's buffer.
    InBuffer = 1,
    /// The server's queue is full; the handler has not run.
    Busy = 2,
    /// The function does not exist; the handler has not run.
    NoSuchFunction = 3,
    /// The handler received the call and dropped it without a reply.
    Dropped = 4,
    /// The request is longer than `len`, the server's limit; the handler has not run.
    RequestTooLarge = 5,
    /// The reply was longer than the caller accepts.
    ReplyTooLarge = 6,
    /// The server has no memory for the request; the handler has not run.
    NoMemory = 7,
    /// The message is in the function's queue, or a task has received it.
    Accepted = 8,
}

/// The header of a reply in the slot; all integers are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplyHeader {
    /// Bytes 0..8: the caller's number of the call.
    pub(crate) call: u64,
    /// Bytes 8..12; bytes 12..16 are zero.
    pub(crate) status: ReplyStatus,
    /// Bytes 16..24: the length of the reply, or the limit, in bytes.
    pub(crate) len: u64,
}

impl ReplyHeader {
    /// The length on the wire, in bytes.
    pub(crate) const LEN: usize = 24;

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0..8].copy_from_slice(&self.call.to_le_bytes());
        out[8..12].copy_from_slice(&(self.status as u32).to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        use ReplyStatus as S;
        let status = match u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) {
            0 => S::InSlot,
            1 => S::InBuffer,
            2 => S::Busy,
            3 => S::NoSuchFunction,
            4 => S::Dropped,
            5 => S::RequestTooLarge,
            6 => S::ReplyTooLarge,
            7 => S::NoMemory,
            8 => S::Accepted,
            _ => return None,
        };
        Some(Self { call: u64_at(bytes, 0)?, status, len: u64_at(bytes, 16)? })
    }
}

/// The 32 bits of immediate data: the kind in the top two, a number in the low 24.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Imm {
    /// A request was written to the ring; the value is its distance from the ring's start, in grains.
    Request(u32),
    /// A reply was written to the slot with this index.
    Reply(u32),
    /// The receiver of the ring has consumed this many grains in all, modulo 2^24.
    Credit(u32),
}

impl Imm {
    pub(crate) fn emit(self) -> u32 {
        let (kind, number) = match self {
            Self::Request(n) => (0, n),
            Self::Reply(n) => (1, n),
            Self::Credit(n) => (2, n),
        };
        kind << 30 | number & 0xff_ffff
    }

    pub(crate) fn parse(imm: u32) -> Option<Self> {
        let number = imm & 0x3fff_ffff;
        (number <= 0xff_ffff).then_some(())?;
        match imm >> 30 {
            0 => Some(Self::Request(number)),
            1 => Some(Self::Reply(number)),
            2 => Some(Self::Credit(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let request = RequestHeader {
            function: 0x0102_0304,
            slot: 0x0506,
            one_way: true,
            request_pieces: 0,
            reply_pieces: 3,
            call: 7,
            len: 8,
            max_reply: 9,
        };
        let mut golden = [0; 32];
        golden[..8].copy_from_slice(&[4, 3, 2, 1, 6, 5, 1, 12]);
        golden[8] = 7;
        golden[16] = 8;
        golden[24] = 9;
        assert_eq!(request.emit(), golden);
        assert_eq!(RequestHeader::parse(&golden), Some(request));
        assert_eq!(request.record_len(), Some(32 + 3 * 16 + 8));
        let long = RequestHeader { request_pieces: 63, len: u64::MAX, ..request };
        assert_eq!(RequestHeader::parse(&long.emit()), Some(long));
        assert_eq!(long.record_len(), Some(32 + 66 * 16));
        assert_eq!(RequestHeader { request_pieces: 0, ..long }.record_len(), None);

        let piece = Piece { addr: IoAddr(0xa000), len: 5 };
        let mut golden = [0; 16];
        golden[1] = 0xa0;
        golden[8] = 5;
        assert_eq!(piece.emit(), golden);
        assert_eq!(Piece::parse(&golden), Some(piece));

        let reply = ReplyHeader { call: 1, status: ReplyStatus::Busy, len: 3 };
        let mut golden = [0; 24];
        golden[0] = 1;
        golden[8] = 2;
        golden[16] = 3;
        assert_eq!(reply.emit(), golden);
        assert_eq!(ReplyHeader::parse(&golden), Some(reply));

        assert_eq!(Imm::Request(5).emit(), 5);
        assert_eq!(Imm::Reply(5).emit(), 0x4000_0005);
        assert_eq!(Imm::Credit(0x1ff_ffff).emit(), 0x80ff_ffff);
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_emits_the_same(request: [u8; 32], reply: [u8; 24], imm: u32) {
            if let Some(h) = RequestHeader::parse(&request) {
                prop_assert_eq!(h.emit(), request);
            }
            if let Some(h) = ReplyHeader::parse(&reply) {
                prop_assert_eq!(ReplyHeader::parse(&h.emit()), Some(h));
            }
            if let Some(i) = Imm::parse(imm) {
                prop_assert_eq!(i.emit(), imm);
            }
        }
    }
}
