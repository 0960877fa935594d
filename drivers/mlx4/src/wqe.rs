//! Work requests as the card reads them (Linux `include/linux/mlx4/qp.h`, rdma-core `providers/mlx4`, PRM
//! `wqe_segment_*`), and the order in which they are stored.

use crate::hardware::Hardware;
use crate::qp::context::has_grh;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::IoAddr;
use verbs::{AddressVector, LinkKind, Payload, RemoteAddr, SendOp, SendWr, Sge, UdSendWr, VerbsError};

/// Bytes from one send work request to the next, and their logarithm.
pub(crate) const LEN: usize = 1 << LOG_LEN;
pub(crate) const LOG_LEN: u32 = 8;
/// Words of one.
pub(crate) const WORDS: usize = LEN / 8;
/// Bytes that the card fetches ahead in one piece. The first four of each say whether it is written.
const CHUNK: usize = 64;
pub(crate) const CHUNK_WORDS: usize = CHUNK / 8;
/// Bytes of a segment's unit.
const UNIT: usize = 16;
/// Where what follows the remote address begins.
const AFTER_REMOTE: usize = 2 * UNIT;
/// Bytes of the most payload that lies in a request itself: in three chunks, for that of a datagram begins behind the first,
/// with 4 bytes before each piece, none of which crosses from one chunk into the next.
pub(crate) const MAX_INLINE: usize = 3 * (CHUNK - 4);
/// Elements of a scatter or gather list.
pub(crate) const MAX_ELEMENTS: usize = 4;

/// Bytes from one receive to the next, and their logarithm.
pub(crate) const LOG_RECEIVE_LEN: u32 = 6;
pub(crate) const RECEIVE_WORDS: usize = MAX_ELEMENTS * UNIT / 8;

/// What the first word of a chunk holds while it is not written.
pub(crate) const STAMP: u64 = 0xffff_ffff << 32;
/// The key of an element that ends a list.
const NO_KEY: u64 = 0x100;

/// What work requests do.
pub(crate) mod opcode {
    pub(crate) const SEND_INVALIDATE: u8 = 0x01;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const COMPARE_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
}

/// Bits of the control segment.
mod control {
    pub(super) const OWNER: u32 = 1 << 31;
    pub(super) const FENCE: u32 = 1 << 6;
    pub(super) const COMPLETE: u32 = 0xc;
    pub(super) const SOLICITED: u32 = 2;
    /// Of a datagram whose headers are given: it goes by the lane of management, and its source is in the headers.
    pub(super) const MANAGEMENT_LANE: u32 = 1 << 17;
    pub(super) const SOURCE_GIVEN: u32 = 1 << 16;
    /// Of a data segment: its bytes follow.
    pub(super) const INLINE: u32 = 1 << 31;
}

/// What work requests may name.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a, H> {
    pub(crate) hw: &'a H,
    /// The key of all memory.
    pub(crate) key: u32,
    /// Bytes of a message.
    pub(crate) max_message: u64,
}

impl<H: Hardware> Bounds<'_, H> {
    /// Whether a list may be named.
    fn check(&self, list: &[Sge]) -> Result<(), VerbsError> {
        if list.len() > MAX_ELEMENTS {
            return Err(VerbsError::InvalidArgument);
        }
        let mut total = 0;
        for element in list {
            total += u64::from(element.len);
            self.hw
                .memory()
                .check(element.addr, element.len.into())
                .map_err(|_| VerbsError::LocalProtection)?;
        }
        if total <= self.max_message { Ok(()) } else { Err(VerbsError::InvalidArgument) }
    }
}

/// The LID of whoever is at the end of the cable.
pub(crate) const PERMISSIVE_LID: u16 = 0xffff;

/// Where a management datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
}

/// Where a datagram comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The port, from 1.
    pub(crate) port: u8,
    /// The row of its GID table.
    pub(crate) row: u8,
    /// The protection domain.
    pub(crate) domain: u32,
}

/// A send work request under construction: its bytes as the card reads them. One is used for request after request: what lies
/// behind the end of a request, and in the padding of its pieces, is of no meaning.
pub(crate) struct Wqe {
    bytes: [u8; LEN],
    len: usize,
    opcode: u8,
}

impl Wqe {
    /// Of no request yet.
    #[inline]
    pub(crate) const fn blank() -> Self {
        Self { bytes: [0; LEN], len: 0, opcode: 0 }
    }

    /// Writes a request of a connection, all but what depends on its place in the ring.
    #[inline]
    pub(crate) fn request<H: Hardware>(
        &mut self,
        wr: &SendWr<'_>,
        bounds: &Bounds<'_, H>,
    ) -> Result<(), VerbsError> {
        use opcode as op;
        let wqe = self;
        let (opcode, len, immediate) = match wr.op {
            SendOp::Write { data, remote, imm } => {
                wqe.remote(remote);
                let len = wqe.payload(AFTER_REMOTE, data, bounds)?;
                (if imm.is_some() { op::WRITE_IMM } else { op::WRITE }, len, imm.unwrap_or(0))
            }
            SendOp::Read { into, remote } => {
                wqe.remote(remote);
                (op::READ, wqe.gather(AFTER_REMOTE, into, bounds)?, 0)
            }
            SendOp::Send { data, imm } => {
                let len = wqe.payload(UNIT, data, bounds)?;
                (if imm.is_some() { op::SEND_IMM } else { op::SEND }, len, imm.unwrap_or(0))
            }
            SendOp::SendInvalidate { data, key } => {
                (op::SEND_INVALIDATE, wqe.payload(UNIT, data, bounds)?, key.0)
            }
            SendOp::FetchAdd { result, remote, add } => {
                (op::FETCH_ADD, wqe.atomic(result, remote, [add, 0], bounds)?, 0)
            }
            SendOp::CompareSwap { result, remote, compare, swap } => {
                (op::COMPARE_SWAP, wqe.atomic(result, remote, [swap, compare], bounds)?, 0)
            }
        };
        (wqe.opcode, wqe.len) = (opcode, len);
        wqe.control(wr.signaled, wr.solicited, wr.fence, immediate);
        Ok(())
    }

    /// Writes one that sends a datagram.
    pub(crate) fn datagram<H: Hardware>(
        &mut self,
        wr: &UdSendWr<'_>,
        bounds: &Bounds<'_, H>,
        from: Source,
    ) -> Result<(), VerbsError> {
        const NO_VLAN: u32 = 0xffff;
        const GRH: u32 = 1 << 23;
        let wqe = self;
        wqe.opcode = if wr.imm.is_some() { opcode::SEND_IMM } else { opcode::SEND };
        let AddressVector { peer, traffic_class, hop_limit, service_level, link } = wr.to;
        let [a, b, mac @ ..] = peer.mac.0;
        let (lid, level) = match link {
            LinkKind::InfiniBand => (u32::from(peer.lid), u32::from(service_level & 0xf) << 28),
            LinkKind::RoceV1 | LinkKind::RoceV2 => (0, 0),
        };
        let grh = has_grh(&wr.to);
        wqe.put32(0x10, u32::from(from.port) << 24 | from.domain);
        wqe.put32(0x14, if grh && link == LinkKind::InfiniBand { GRH } else { 0 } | lid);
        wqe.put32(0x18, u32::from(from.row) << 16 | if grh { u32::from(hop_limit) } else { 0 });
        wqe.put32(0x1c, level | if grh { u32::from(traffic_class) << 20 } else { 0 });
        wqe.put(0x20, if grh { &peer.gid.0 } else { &[0; 16] });
        wqe.put32(0x30, wr.remote_qp.get());
        wqe.put32(0x34, wr.qkey.0);
        wqe.put32(0x38, NO_VLAN << 16 | u32::from(a) << 8 | u32::from(b));
        wqe.put(0x3c, &mac);
        wqe.len = wqe.payload(CHUNK, wr.data, bounds)?;
        wqe.control(wr.signaled, wr.solicited, false, wr.imm.unwrap_or(0));
        Ok(())
    }

    /// Writes one that sends an Ethernet frame. With `to`, functions of the card that have that address get it too.
    pub(crate) fn frame(&mut self, key: u32, addr: IoAddr, len: u32, to: Option<[u8; 6]>) {
        let wqe = self;
        wqe.opcode = opcode::SEND;
        wqe.element(UNIT, key, addr, len);
        wqe.len = 2 * UNIT;
        let [a, b, rest @ ..] = to.unwrap_or([0; 6]);
        wqe.control(true, true, false, u32::from_be_bytes(rest));
        // Of a frame, the bit that asks for an event says that it has no check of its transport.
        let flags = control::COMPLETE | control::SOLICITED;
        wqe.put32(0x08, u32::from(a) << 24 | u32::from(b) << 16 | flags);
    }

    /// Writes one that sends a management datagram by its own lane: `headers` first, then `len` bytes from `addr` on. The card
    /// puts its check behind.
    pub(crate) fn management(&mut self, key: u32, headers: &[u8], addr: IoAddr, len: u32, way: Way) {
        let wqe = self;
        wqe.opcode = opcode::SEND;
        let after_headers = wqe.pieces(UNIT, headers);
        wqe.element(after_headers, key, addr, len);
        wqe.len = wqe.pieces(after_headers + UNIT, &[0; 4]);
        wqe.control(true, false, false, u32::from(way.lid) << 16);
        let source = if way.lid == PERMISSIVE_LID { control::SOURCE_GIVEN } else { 0 };
        let flags = control::MANAGEMENT_LANE | source | u32::from(way.service_level) << 8 | control::COMPLETE;
        wqe.put32(0x08, flags);
    }

    /// Writes the control segment, but for what depends on the place in the ring.
    #[inline]
    fn control(&mut self, signaled: bool, solicited: bool, fence: bool, immediate: u32) {
        let fence = if fence { control::FENCE } else { 0 };
        let flags =
            if signaled { control::COMPLETE } else { 0 } | if solicited { control::SOLICITED } else { 0 };
        self.put32(0x00, self.opcode.into());
        self.put32(0x04, fence | (self.len / UNIT) as u32);
        self.put32(0x08, flags);
        self.put32(0x0c, immediate);
    }

    /// Chunks that it has.
    pub(crate) const fn chunks(&self) -> usize {
        self.len.div_ceil(CHUNK)
    }

    /// Says, for a request that is copied to the card too, where in the ring it is and of which queue pair (BlueFlame).
    #[inline]
    pub(crate) fn address(&mut self, index: u32, qpn: u32) {
        let size = u32::from(self.bytes[7]);
        self.put32(0x00, (index & 0xffff) << 8 | u32::from(self.opcode));
        self.put32(0x04, qpn << 8 | size);
    }

    /// Stores it in its place in the ring, `entry`, on an even or odd lap. The card may look at any time: the first word of
    /// a chunk is what says that it is written, and so the last to be stored; and that of the whole request the very last.
    #[inline]
    pub(crate) fn store(&mut self, entry: &[AtomicU64], odd: bool) {
        if odd {
            self.bytes[0] |= (control::OWNER >> 24) as u8;
        }
        let chunks = self.bytes.as_chunks::<CHUNK>().0.iter().zip(entry.as_chunks::<CHUNK_WORDS>().0);
        for (bytes, places) in chunks.take(self.chunks()).rev() {
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            for (place, word) in places.iter().zip(words).skip(1) {
                place.store(word, Ordering::Relaxed);
            }
            let ([first, ..], Some(word)) = (places, bytes.first_chunk()) else { continue };
            first.store(u64::from_ne_bytes(*word), Ordering::Release);
        }
    }

    /// Its words, in whole chunks, as they lie in memory.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.take(self.chunks() * CHUNK_WORDS)
    }

    #[inline(always)]
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    #[inline(always)]
    fn put32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    /// Where a WRITE, READ or atomic goes; always the second unit.
    #[inline(always)]
    fn remote(&mut self, remote: RemoteAddr) {
        let unit = u128::from(remote.addr.0) << 64 | u128::from(remote.key.0) << 32;
        self.put(UNIT, &unit.to_be_bytes());
    }

    /// Writes the payload from `at` on; gives where it ends.
    #[inline(always)]
    fn payload<H: Hardware>(
        &mut self,
        at: usize,
        data: Payload<'_>,
        bounds: &Bounds<'_, H>,
    ) -> Result<usize, VerbsError> {
        match data {
            Payload::Gather(list) => self.gather(at, list, bounds),
            Payload::Inline(bytes) if bytes.len() <= MAX_INLINE => Ok(self.pieces(at, bytes)),
            Payload::Inline(_) => Err(VerbsError::InvalidArgument),
        }
    }

    #[inline]
    fn gather<H: Hardware>(
        &mut self,
        mut at: usize,
        list: &[Sge],
        bounds: &Bounds<'_, H>,
    ) -> Result<usize, VerbsError> {
        bounds.check(list)?;
        // An element of no bytes would mean 2 GiB.
        for element in list.iter().filter(|element| element.len > 0) {
            self.element(at, bounds.key, element.addr, element.len);
            at += UNIT;
        }
        Ok(at)
    }

    #[inline]
    fn element(&mut self, at: usize, key: u32, addr: IoAddr, len: u32) {
        let unit = u128::from(len) << 96 | u128::from(key) << 64 | u128::from(addr.0);
        self.put(at, &unit.to_be_bytes());
    }

    /// Writes bytes that lie in the request itself: each piece has its own header, and ends where a chunk does.
    #[inline(always)]
    fn pieces(&mut self, mut at: usize, mut bytes: &[u8]) -> usize {
        let (first, mut from) = (at / CHUNK, at % CHUNK);
        for (n, chunk) in self.bytes.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate().skip(first) {
            let place = chunk.get_mut(from..).and_then(|chunk| chunk.split_first_chunk_mut());
            let Some((header, room)) = place.filter(|_| !bytes.is_empty()) else { break };
            let (piece, rest) = bytes.split_at(bytes.len().min(room.len()));
            *header = (control::INLINE | piece.len() as u32).to_be_bytes();
            copy(room, piece);
            at = (n * CHUNK + from + header.len() + piece.len()).next_multiple_of(UNIT);
            (bytes, from) = (rest, 0);
        }
        at
    }

    #[inline]
    fn atomic<H: Hardware>(
        &mut self,
        result: IoAddr,
        remote: RemoteAddr,
        [first, second]: [u64; 2],
        bounds: &Bounds<'_, H>,
    ) -> Result<usize, VerbsError> {
        if !remote.addr.0.is_multiple_of(8) {
            return Err(VerbsError::InvalidArgument);
        }
        self.remote(remote);
        self.put(AFTER_REMOTE, &(u128::from(first) << 64 | u128::from(second)).to_be_bytes());
        self.gather(AFTER_REMOTE + UNIT, &[Sge { addr: result, len: 8 }], bounds)
    }
}

/// Copies `from`, 64 bytes at most, to the start of `to`: in steps of known lengths, without a call.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    let Some(to) = to.get_mut(..from.len()) else { return };
    if !(ends::<32>(to, from) || ends::<16>(to, from) || ends::<8>(to, from) || ends::<4>(to, from)) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// Copies the first `N` bytes and the last, which is all if there are not more than twice so many. `false`: there are not
/// even `N`.
#[inline(always)]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
    let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else { return false };
    if let Some(place) = to.first_chunk_mut() {
        *place = *first;
    }
    if let Some(place) = to.last_chunk_mut() {
        *place = *last;
    }
    true
}

/// Stores a receive into one buffer of the driver's own.
pub(crate) fn store_buffer(key: u32, addr: IoAddr, len: u32, entry: &[AtomicU64]) {
    let words = [u64::from(len) << 32 | u64::from(key), addr.0, NO_KEY, 0];
    for (place, word) in entry.iter().zip(words) {
        place.store(word.to_be(), Ordering::Relaxed);
    }
}

/// Stores a receive in its place in the ring. The list ends with an element that has no key, where there is room for one.
#[inline]
pub(crate) fn store_receive<H: Hardware>(
    scatter: &[Sge],
    bounds: &Bounds<'_, H>,
    entry: &[AtomicU64],
) -> Result<(), VerbsError> {
    bounds.check(scatter)?;
    let elements = scatter.iter().filter(|element| element.len > 0);
    let elements = elements.map(|e| [u64::from(e.len) << 32 | u64::from(bounds.key), e.addr.0]);
    for (words, places) in elements.chain([[NO_KEY, 0]]).zip(entry.as_chunks::<2>().0) {
        for (place, word) in places.iter().zip(words) {
            place.store(word.to_be(), Ordering::Relaxed);
        }
    }
    Ok(())
}
