//! Work requests in the card's format (Linux `include/linux/mlx4/qp.h`, rdma-core `providers/mlx4`, PRM
//! `wqe_segment_*`), and the order in which they are stored.

pub(crate) mod entry;
mod pieces;

use crate::hardware::Hardware;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use entry::{CHUNK, Entry, Head, pair};
use platform::IoAddr;
use verbs::{
    AddressVector, Gid, LinkKind, Payload, RemoteAddr, SendOp, SendWr, Sge, UdSendWr, VerbsError, WrId,
};

/// The index of the unit after the control segment, and of the one after the remote address.
const AFTER_CONTROL: usize = 1;
const AFTER_REMOTE: usize = 2;
/// The maximum length of an inline payload, in bytes. It takes three chunks, because the payload of a
/// datagram begins after the first, with a 4-byte header before each piece, and no piece crosses a chunk
/// boundary.
pub(crate) const MAX_INLINE: usize = 3 * (CHUNK - pieces::HEADER);
/// The maximum number of elements in a scatter or gather list.
pub(crate) const MAX_ELEMENTS: usize = 4;

/// The key of the element that ends a list.
const NO_KEY: u64 = 0x100;

/// Opcodes of work requests.
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
    pub(super) const COMPLETE: u32 = 0xc;
    pub(super) const SOLICITED: u32 = 2;
    /// Bits for a datagram with given headers: it uses the management lane, and its source is in the headers.
    pub(super) const MANAGEMENT_LANE: u32 = 1 << 17;
    pub(super) const SOURCE_GIVEN: u32 = 1 << 16;
}

/// The limits of the lists that work requests name.
pub(crate) struct PostLimits {
    /// The key that covers all memory.
    pub(crate) key: AtomicU32,
    /// The maximum length of a message, in bytes.
    pub(crate) max_message: u64,
}

/// The check of the lists that work requests name.
pub(crate) struct ListCheck<'a, H> {
    pub(crate) hw: &'a H,
    pub(crate) limits: &'a PostLimits,
}

impl<H> Clone for ListCheck<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for ListCheck<'_, H> {}

impl<H: Hardware> ListCheck<'_, H> {
    /// Checks that a work request may name a list. Returns the key for its elements.
    fn key(self, list: &[Sge]) -> Result<u32, VerbsError> {
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
        let Self { limits: PostLimits { key, max_message }, .. } = self;
        if total <= *max_message { Ok(key.load(Ordering::Relaxed)) } else { Err(VerbsError::InvalidArgument) }
    }
}

/// The LID of the neighbour at the end of the cable.
pub(crate) const PERMISSIVE_LID: u16 = 0xffff;

/// The destination of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ManagementPath {
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
}

/// The source of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The port, from 1.
    pub(crate) port: u8,
    /// The row of the port's GID table.
    pub(crate) row: u8,
    /// The protection domain of the queue pair.
    pub(crate) domain: u32,
    /// The tag of frames: priority and VLAN.
    pub(crate) tag: Option<u16>,
}

/// A WRITE whose payload is inline and not too long.
#[derive(Clone, Copy)]
pub(crate) struct InlineWrite<'a> {
    wr: &'a SendWr<'a>,
    bytes: &'a [u8],
    remote: &'a RemoteAddr,
    imm: &'a Option<u32>,
}

impl<'a> InlineWrite<'a> {
    /// Returns the WRITE of a work request that is one.
    #[inline(always)]
    pub(crate) const fn of(wr: &'a SendWr<'a>) -> Option<Self> {
        match &wr.op {
            SendOp::Write { data: Payload::Inline(bytes), remote, imm } if bytes.len() <= MAX_INLINE => {
                Some(Self { wr, bytes, remote, imm })
            }
            _ => None,
        }
    }

    /// Returns the identifier of the work request.
    #[inline(always)]
    pub(crate) const fn id(self) -> WrId {
        self.wr.id
    }

    /// Returns true if the payload has the length of a cache line.
    #[inline(always)]
    pub(crate) const fn is_cache_line(self) -> bool {
        const CACHE_LINE: usize = 64;
        self.bytes.len() == CACHE_LINE
    }
}

/// An entry of the send ring, into which a work request is written. The bytes after its end, and the padding
/// of its pieces, have no meaning.
///
/// The card may read the entry at any time. The first word of a chunk says if the chunk is written, so it is
/// stored last in the chunk. The first word of the first chunk is in the [`Head`], which is stored after
/// everything else.
#[derive(Clone, Copy)]
pub(crate) struct Wqe<'a>(&'a Entry);

impl<'a> Wqe<'a> {
    /// Makes a request in an entry that the card does not read now.
    #[inline]
    pub(crate) const fn of(entry: &'a Entry) -> Self {
        Self(entry)
    }

    /// Writes an inline WRITE.
    #[inline(always)]
    pub(crate) fn inline_write(self, write: InlineWrite<'_>) -> Head {
        let InlineWrite { wr, bytes, remote, imm } = write;
        let units = pieces::write(self.0, AFTER_REMOTE, bytes);
        self.remote(*remote);
        self.control(flags(wr.signaled, wr.solicited), imm.unwrap_or(0));
        Head::new(write_opcode(*imm), wr.fence, units)
    }

    /// Writes a request of a connection.
    pub(crate) fn request<H: Hardware>(
        self,
        wr: &SendWr<'_>,
        check: ListCheck<'_, H>,
    ) -> Result<Head, VerbsError> {
        use opcode as op;
        let (opcode, units, immediate) = match wr.op {
            SendOp::Write { data, remote, imm } => {
                let units = self.payload(AFTER_REMOTE, &data, check)?;
                self.remote(remote);
                (write_opcode(imm), units, imm.unwrap_or(0))
            }
            SendOp::Read { into, remote } => {
                let units = self.gather(AFTER_REMOTE, into, check)?;
                self.remote(remote);
                (op::READ, units, 0)
            }
            SendOp::Send { data, imm } => {
                let units = self.payload(AFTER_CONTROL, &data, check)?;
                (if imm.is_some() { op::SEND_IMM } else { op::SEND }, units, imm.unwrap_or(0))
            }
            SendOp::SendInvalidate { data, key } => {
                (op::SEND_INVALIDATE, self.payload(AFTER_CONTROL, &data, check)?, key.0)
            }
            SendOp::FetchAdd { result, remote, add } => {
                (op::FETCH_ADD, self.atomic(result, remote, [add, 0], check)?, 0)
            }
            SendOp::CompareSwap { result, remote, compare, swap } => {
                (op::COMPARE_SWAP, self.atomic(result, remote, [swap, compare], check)?, 0)
            }
        };
        self.control(flags(wr.signaled, wr.solicited), immediate);
        Ok(Head::new(opcode, wr.fence, units))
    }

    /// Writes a request that sends a datagram.
    pub(crate) fn datagram<H: Hardware>(
        self,
        wr: &UdSendWr<'_>,
        check: ListCheck<'_, H>,
        from: Source,
    ) -> Result<Head, VerbsError> {
        const NO_VLAN: u16 = 0xffff;
        const TAGGED: u32 = 1 << 29;
        const GRH: u32 = 1 << 23;
        const HEADERS: usize = 4;
        let units = self.payload(HEADERS, &wr.data, check)?;
        let AddressVector { peer, traffic_class, hop_limit, service_level, link } = wr.to;
        let (lid, level) = match link {
            LinkKind::InfiniBand => (u32::from(peer.lid), u32::from(service_level & 0xf) << 28),
            LinkKind::RoceV1 | LinkKind::RoceV2 => (0, 0),
        };
        let grh = has_grh(&wr.to);
        let gid = u128::from_be_bytes(if grh { peer.gid.0 } else { [0; 16] });
        let [a, b, c, d, e, f] = peer.mac.0;
        let tagged = if from.tag.is_some() { TAGGED } else { 0 };
        let port = tagged | u32::from(from.port) << 24 | from.domain;
        let tag = u64::from(from.tag.unwrap_or(NO_VLAN));
        let path = if grh && link == LinkKind::InfiniBand { GRH } else { 0 } | lid;
        let hops = u32::from(from.row) << 16 | if grh { u32::from(hop_limit) } else { 0 };
        let class = level | if grh { u32::from(traffic_class) << 20 } else { 0 };
        self.unit(1, [pair(port, path), pair(hops, class)]);
        self.unit(2, [(gid >> 64) as u64, gid as u64]);
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.unit(3, [pair(wr.remote_qp.get(), wr.qkey.0), tag << 48 | mac]);
        self.control(flags(wr.signaled, wr.solicited), wr.imm.unwrap_or(0));
        let opcode = if wr.imm.is_some() { opcode::SEND_IMM } else { opcode::SEND };
        Ok(Head::new(opcode, false, units))
    }

    /// Writes a request that sends an Ethernet frame. With `to`, other functions of the card that have this
    /// address receive it too.
    pub(crate) fn frame(self, key: u32, addr: IoAddr, len: u32, to: Option<[u8; 6]>) -> Head {
        self.element(AFTER_CONTROL, key, addr, len);
        let [a, b, rest @ ..] = to.unwrap_or([0; 6]);
        // For a frame, the solicited-event bit means that the card does not check the transport.
        let flags = control::COMPLETE | control::SOLICITED;
        self.control(u32::from(a) << 24 | u32::from(b) << 16 | flags, u32::from_be_bytes(rest));
        Head::new(opcode::SEND, false, AFTER_CONTROL + 1)
    }

    /// Writes a request that sends a management datagram on the management lane: `headers` first, then `len`
    /// bytes from `addr` on. The card appends its check.
    pub(crate) fn management(
        self,
        key: u32,
        headers: &[u8],
        addr: IoAddr,
        len: u32,
        path: ManagementPath,
    ) -> Head {
        let after_headers = pieces::write(self.0, AFTER_CONTROL, headers);
        self.element(after_headers, key, addr, len);
        let units = pieces::write(self.0, after_headers + 1, &[0; 4]);
        let source = if path.lid == PERMISSIVE_LID { control::SOURCE_GIVEN } else { 0 };
        let flags =
            control::MANAGEMENT_LANE | source | u32::from(path.service_level) << 8 | control::COMPLETE;
        self.control(flags, u32::from(path.lid) << 16);
        Head::new(opcode::SEND, false, units)
    }

    /// Writes the second 8 bytes of the control segment.
    #[inline(always)]
    fn control(self, flags: u32, immediate: u32) {
        let [_, second, ..] = self.0;
        second.store(pair(flags, immediate).to_be(), Ordering::Relaxed);
    }

    /// Writes a 16-byte unit of a work request; stores its first word last.
    #[inline(always)]
    fn unit(self, unit: usize, [first, second]: [u64; 2]) {
        if let Some(target) = self.0.as_chunks::<2>().0.get(unit) {
            target[1].store(second.to_be(), Ordering::Relaxed);
            target[0].store(first.to_be(), Ordering::Release);
        }
    }

    /// Writes the target of a WRITE, READ or atomic, which is always the second unit.
    #[inline(always)]
    fn remote(self, remote: RemoteAddr) {
        self.unit(1, [remote.addr.0, u64::from(remote.key.0) << 32]);
    }

    #[inline]
    fn element(self, unit: usize, key: u32, addr: IoAddr, len: u32) {
        self.unit(unit, [pair(len, key), addr.0]);
    }

    /// Writes the payload from a unit on, and returns the index of the unit after it. A refused payload
    /// leaves the first words of chunks unchanged.
    #[inline(never)]
    fn payload<H: Hardware>(
        self,
        unit: usize,
        data: &Payload<'_>,
        check: ListCheck<'_, H>,
    ) -> Result<usize, VerbsError> {
        match *data {
            Payload::Inline(bytes) if bytes.len() <= MAX_INLINE => Ok(pieces::write(self.0, unit, bytes)),
            Payload::Inline(_) => Err(VerbsError::InvalidArgument),
            Payload::Gather(list) => self.gather(unit, list, check),
        }
    }

    /// Writes the elements of a scatter or gather list into the entry, one per unit of 16 bytes
    /// from unit `unit` on, and returns the index of the unit after them.
    #[inline(never)]
    fn gather<H: Hardware>(
        self,
        mut unit: usize,
        list: &[Sge],
        check: ListCheck<'_, H>,
    ) -> Result<usize, VerbsError> {
        let key = check.key(list)?;
        // A length of 0 would mean 2 GiB.
        for element in list.iter().filter(|element| element.len > 0) {
            self.element(unit, key, element.addr, element.len);
            unit += 1;
        }
        Ok(unit)
    }

    #[inline]
    fn atomic<H: Hardware>(
        self,
        result: IoAddr,
        remote: RemoteAddr,
        operands: [u64; 2],
        check: ListCheck<'_, H>,
    ) -> Result<usize, VerbsError> {
        if !remote.addr.0.is_multiple_of(8) {
            return Err(VerbsError::InvalidArgument);
        }
        let units = self.gather(AFTER_REMOTE + 1, &[Sge { addr: result, len: 8 }], check)?;
        self.remote(remote);
        self.unit(AFTER_REMOTE, operands);
        Ok(units)
    }
}

/// Returns true if packets have a global header: all RoCE packets, and InfiniBand packets to a peer with an
/// InfiniBand GID.
pub(crate) fn has_grh(to: &AddressVector) -> bool {
    to.link != LinkKind::InfiniBand || to.peer.gid != Gid([0; 16]) && to.peer.gid.ipv4().is_none()
}

/// Returns the opcode of a WRITE with or without immediate data.
#[inline(always)]
const fn write_opcode(imm: Option<u32>) -> u8 {
    if imm.is_some() { opcode::WRITE_IMM } else { opcode::WRITE }
}

#[inline(always)]
const fn flags(signaled: bool, solicited: bool) -> u32 {
    (signaled as u32 * control::COMPLETE) | (solicited as u32 * control::SOLICITED)
}

/// Writes a receive into a single buffer of the driver's own.
pub(crate) fn store_buffer(key: u32, addr: IoAddr, len: u32, entry: &[AtomicU64]) {
    let words = [pair(len, key), addr.0, NO_KEY, 0];
    for (target, word) in entry.iter().zip(words) {
        target.store(word.to_be(), Ordering::Relaxed);
    }
}

/// Writes a receive into its entry of the ring. An element without a key ends the list, if there is room for
/// one.
#[inline]
pub(crate) fn store_receive<H: Hardware>(
    scatter: &[Sge],
    check: ListCheck<'_, H>,
    entry: &[AtomicU64],
) -> Result<(), VerbsError> {
    // LITE's receives have no memory, because its messages are WRITEs with immediate data. The loop below
    // takes longer than these two stores.
    if let ([], [first, second, ..]) = (scatter, entry) {
        first.store(NO_KEY.to_be(), Ordering::Relaxed);
        second.store(0, Ordering::Relaxed);
        return Ok(());
    }
    let key = check.key(scatter)?;
    let elements = scatter.iter().filter(|element| element.len > 0);
    let elements = elements.map(|e| [pair(e.len, key), e.addr.0]);
    for (words, places) in elements.chain([[NO_KEY, 0]]).zip(entry.as_chunks::<2>().0) {
        for (target, word) in places.iter().zip(words) {
            target.store(word.to_be(), Ordering::Relaxed);
        }
    }
    Ok(())
}
