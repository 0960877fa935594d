//! The context of a queue pair, which the guest passes piece by piece with each transition (Linux
//! `include/linux/mlx4/qp.h`, `hw/mlx4/qp.c`).

use crate::device::ethernet::rss::Rss;
use crate::device::mailbox::Mailbox;
use crate::device::memory::Domain;
use verbs::{Gid, MacAddr, PathMtu};

/// The offset of the context in the mailbox, after the mask of optional parameters.
const CONTEXT: usize = 0x08;
/// The length of the context, in bytes.
const LEN: usize = 0xf8;

/// The state of a queue pair, by its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueError = 4,
    SendQueueDrained = 5,
    Error = 6,
}

impl State {
    /// Returns whether the card fetches work from the send ring, to execute it or to flush it.
    #[must_use]
    pub const fn takes_sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueError | Self::Error)
    }

    /// Returns whether the queue pair accepts messages.
    #[must_use]
    pub const fn receives(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Error)
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    Rc,
    Uc,
    Ud,
    /// Extended reliable connection. Its receives come from the shared receive queues that its peer names.
    Xrc,
    /// Special queue pairs and raw Ethernet: the guest builds the headers.
    Raw,
}

/// The command of a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    ResetToInit,
    InitToInit,
    InitToRtr,
    RtrToRts,
    RtsToRts,
    SqErrorToRts,
    RtsToSqd,
    SqdToSqd,
    SqdToRts,
    ToError,
    ToReset,
}

impl Transition {
    /// Returns the transition of an opcode.
    #[must_use]
    pub const fn from_opcode(opcode: u16) -> Option<Self> {
        Some(match opcode {
            0x019 => Self::ResetToInit,
            0x01a => Self::InitToRtr,
            0x01b => Self::RtrToRts,
            0x01c => Self::RtsToRts,
            0x01d => Self::SqErrorToRts,
            0x01e => Self::ToError,
            0x01f => Self::RtsToSqd,
            0x020 => Self::SqdToRts,
            0x021 => Self::ToReset,
            0x02d => Self::InitToInit,
            0x038 => Self::SqdToSqd,
            _ => return None,
        })
    }

    /// Returns the state after the transition, if it is allowed from `state`.
    #[must_use]
    pub fn from(self, state: State) -> Option<State> {
        use State as S;
        match (self, state) {
            (Self::ResetToInit, S::Reset) | (Self::InitToInit, S::Init) => Some(S::Init),
            (Self::InitToRtr, S::Init) => Some(S::ReadyToReceive),
            (Self::RtrToRts, S::ReadyToReceive)
            | (Self::RtsToRts, S::ReadyToSend)
            | (Self::SqErrorToRts, S::SendQueueError)
            | (Self::SqdToRts, S::SendQueueDrained) => Some(S::ReadyToSend),
            (Self::RtsToSqd, S::ReadyToSend) | (Self::SqdToSqd, S::SendQueueDrained) => {
                Some(S::SendQueueDrained)
            }
            (Self::ToError, S::Reset) => None,
            (Self::ToError, _) => Some(S::Error),
            (Self::ToReset, _) => Some(S::Reset),
            _ => None,
        }
    }
}

/// Bits of the mask of optional parameters.
mod optional {
    pub const RRE: u32 = 1 << 1;
    pub const RAE: u32 = 1 << 2;
    pub const RWE: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const Q_KEY: u32 = 1 << 5;
    pub const RNR_TIMER: u32 = 1 << 6;
    pub const PRIMARY_PATH: u32 = 1 << 7;
    pub const SRA_MAX: u32 = 1 << 8;
    pub const RRA_MAX: u32 = 1 << 9;
    pub const RETRY_COUNT: u32 = 1 << 12;
    pub const RNR_RETRY: u32 = 1 << 13;
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    pub const SCHED_QUEUE: u32 = 1 << 16;
}

/// A field that a transition sets: the offset in the context, and the mask of its bits in the 32-bit word
/// there.
type Field = (usize, u32);

/// Offset of the primary path.
const PATH: usize = 0x18;
const PATH_LEN: usize = 0x2c;
const SCHED_QUEUE: Field = (PATH + 0x20, 0xff00_0000);
const PKEY_INDEX: Field = (PATH, 0x0000_00ff);
const LOCAL_QPN: Field = (0x10, 0x00ff_ffff);
const Q_KEY: Field = (0xa8, u32::MAX);
const RNR_TIMER: Field = (0x94, 0x1f00_0000);
const RRE: Field = (0x90, 1 << 15);
const RWE: Field = (0x90, 1 << 14);
const RAE: Field = (0x90, 1 << 13);
const RRA_MAX: Field = (0x90, 0x00e0_0000);
const SRA_MAX: Field = (0x70, 0x00e0_0000);
const RETRY_COUNT: Field = (0x70, 0x0007_0000);
const RNR_RETRY: Field = (0x70, 0x0000_e000);
const ACK_TIMEOUT: Field = (PATH + 0x08, 0xf800_0000);

/// The fields that the mask can select, in every transition but the first.
const OPTIONAL: [(u32, Field); 12] = [
    (optional::RRE, RRE),
    (optional::RAE, RAE),
    (optional::RWE, RWE),
    (optional::PKEY_INDEX, PKEY_INDEX),
    (optional::Q_KEY, Q_KEY),
    (optional::RNR_TIMER, RNR_TIMER),
    (optional::SRA_MAX, SRA_MAX),
    (optional::RRA_MAX, RRA_MAX),
    (optional::RETRY_COUNT, RETRY_COUNT),
    (optional::RNR_RETRY, RNR_RETRY),
    (optional::ACK_TIMEOUT, ACK_TIMEOUT),
    (optional::SCHED_QUEUE, SCHED_QUEUE),
];

/// The fields of a context that the card itself updates.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The PSN of the next packet sent.
    pub send_psn: u32,
    /// The last acknowledged PSN.
    pub acknowledged_psn: u32,
    /// The next expected PSN.
    pub receive_psn: u32,
    /// The number of receives fetched from the ring, modulo 2^16.
    pub receive_index: u16,
    /// The number of entries fetched from the send ring, modulo 2^16.
    pub send_index: u16,
}

/// The context.
#[derive(Clone)]
pub struct Context(Box<[u8; LEN]>);

impl Default for Context {
    fn default() -> Self {
        Self(Box::new([0; LEN]))
    }
}

impl Context {
    fn word(&self, offset: usize) -> u32 {
        self.0.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
    }

    fn double(&self, offset: usize) -> u64 {
        u64::from(self.word(offset)) << 32 | u64::from(self.word(offset + 4))
    }

    fn take(&mut self, from: &Mailbox, (offset, mask): Field) {
        let word = self.word(offset) & !mask | from.u32(CONTEXT + offset) & mask;
        if let Some(place) = self.0.get_mut(offset..offset + 4) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Updates the context from a transition's mailbox. Linux fills only the fields that the mask or the
    /// transition names, and zeroes the rest, so only the named fields are copied.
    pub fn update(&mut self, transition: Transition, mailbox: &Mailbox) {
        let mut path = false;
        match transition {
            Transition::ResetToInit => {
                for offset in (0..LEN).step_by(4) {
                    self.take(mailbox, (offset, u32::MAX));
                }
                return;
            }
            Transition::InitToRtr => {
                for field in [(0x08, 0xff00_0000), (0x08, 0x0000_00c0), (0x14, u32::MAX), (0x94, 0x00ff_ffff)]
                {
                    self.take(mailbox, field);
                }
                path = true;
            }
            Transition::RtrToRts => {
                for field in [
                    (0x78, 0x00ff_ffff),
                    ACK_TIMEOUT,
                    RETRY_COUNT,
                    RNR_RETRY,
                    SRA_MAX,
                    (0x70, 0xf000_0000),
                    (0x80, 0xffff_0000),
                ] {
                    self.take(mailbox, field);
                }
            }
            _ => {}
        }
        let mask = mailbox.u32(0);
        if path || mask & optional::PRIMARY_PATH != 0 {
            let (pkey, timeout) =
                (self.word(PKEY_INDEX.0) & PKEY_INDEX.1, self.word(ACK_TIMEOUT.0) & ACK_TIMEOUT.1);
            for offset in (PATH..PATH + PATH_LEN).step_by(4) {
                self.take(mailbox, (offset, u32::MAX));
            }
            self.put(PKEY_INDEX, pkey);
            self.put(ACK_TIMEOUT, timeout);
        }
        for (bit, field) in OPTIONAL {
            if mask & bit != 0 {
                self.take(mailbox, field);
            }
        }
    }

    fn put(&mut self, (offset, mask): Field, value: u32) {
        let word = self.word(offset) & !mask | value & mask;
        if let Some(place) = self.0.get_mut(offset..offset + 4) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Writes the fields that the card updates.
    pub fn set_live(&mut self, live: &Live) {
        const PSN: u32 = 0x00ff_ffff;
        self.put((0x78, PSN), live.send_psn);
        self.put((0x88, PSN), live.acknowledged_psn);
        self.put((0x94, PSN), live.receive_psn);
        self.put((0xb4, u32::MAX), u32::from(live.receive_index) << 16 | u32::from(live.send_index));
    }

    /// QUERY_QP: writes the context to `out`, with the code of the card's state.
    pub fn query(&self, state: u32, out: &mut Mailbox) {
        let mut shown = self.clone();
        shown.put((0x00, 0xf000_0000), state << 28);
        out.put(CONTEXT, &*shown.0);
    }

    /// Returns the service, if the card supports it.
    #[must_use]
    pub fn service(&self) -> Option<Service> {
        match self.word(0) >> 16 & 0xff {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            3 => Some(Service::Ud),
            6 => Some(Service::Xrc),
            7 => Some(Service::Raw),
            _ => None,
        }
    }
    /// Sets the queue pair number, which the command specifies.
    pub fn set_number(&mut self, qpn: u32) {
        self.put(LOCAL_QPN, qpn);
    }
    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> u32 {
        self.word(0x04) & 0x1_ffff
    }
    /// Returns the queue pair's identity for memory accesses.
    #[must_use]
    pub fn domain(&self) -> Domain {
        let qpn = self.word(LOCAL_QPN.0) & LOCAL_QPN.1;
        Domain { pd: self.pd(), qpn, reserved_lkey: self.word(0x08) >> 4 & 1 != 0 }
    }
    /// Returns whether FAST_REG is allowed; it is for kernels.
    #[must_use]
    pub fn fast_register(&self) -> bool {
        self.word(0x70) >> 11 & 1 != 0
    }
    /// Returns the path MTU; `None` for Ethernet, and before one is set.
    #[must_use]
    pub fn mtu(&self) -> Option<PathMtu> {
        PathMtu::ALL.get((self.word(0x08) >> 29).checked_sub(1)? as usize).copied()
    }
    /// Returns whether a raw queue pair is for Ethernet frames; otherwise it is a special one.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.word(0x08) >> 29 == 7
    }
    /// Returns log2 of the number of entries in the receive queue, and log2 of the entry length in bytes.
    #[must_use]
    pub fn receive_size(&self) -> (u8, u8) {
        size((self.word(0x08) >> 16) as u8)
    }
    /// Returns log2 of the number of entries in the send queue, and log2 of the entry length in bytes.
    #[must_use]
    pub fn send_size(&self) -> (u8, u8) {
        size((self.word(0x08) >> 8) as u8)
    }
    /// Returns whether frames are RoCE v2.
    #[must_use]
    pub fn roce_v2(&self) -> bool {
        self.word(0x08) >> 6 & 3 == 2
    }
    /// Returns the number of the peer's queue pair.
    #[must_use]
    pub fn remote_qpn(&self) -> u32 {
        self.word(0x14) & 0xff_ffff
    }
    /// Returns the number of retries after a timeout, and after an RNR NAK.
    #[must_use]
    pub fn retries(&self) -> (u8, u8) {
        let word = self.word(0x70);
        ((word >> 16 & 7) as u8, (word >> 13 & 7) as u8)
    }
    /// Returns the maximum number of READs and atomics in flight as requester, and as responder.
    #[must_use]
    pub fn rd_atomic(&self) -> (u8, u8) {
        (1 << (self.word(0x70) >> 21 & 7), 1 << (self.word(0x90) >> 21 & 7))
    }
    /// Returns the PSN of the first packet sent.
    #[must_use]
    pub fn send_psn(&self) -> u32 {
        self.word(0x78) & 0xff_ffff
    }
    /// Returns the first expected PSN.
    #[must_use]
    pub fn receive_psn(&self) -> u32 {
        self.word(0x94) & 0xff_ffff
    }
    /// Returns the completion queue of sends.
    #[must_use]
    pub fn send_cqn(&self) -> u32 {
        self.word(0x7c) & 0xff_ffff
    }
    /// Returns the completion queue of receives.
    #[must_use]
    pub fn receive_cqn(&self) -> u32 {
        self.word(0x9c) & 0xff_ffff
    }
    /// Returns the UDP source port of RoCE v2.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        (self.word(0x80) >> 16) as u16
    }
    /// Returns which of READ, WRITE and atomics the peer may do.
    #[must_use]
    pub fn remote_rights(&self) -> [bool; 3] {
        [RRE, RWE, RAE].map(|(offset, bit)| self.word(offset) & bit != 0)
    }
    /// Returns the code of the delay that the peer must observe when no receive is posted.
    #[must_use]
    pub fn rnr_timer(&self) -> u8 {
        (self.word(0x94) >> 24 & 0x1f) as u8
    }
    /// Returns the Q_Key. Received datagrams must contain it; it also replaces a controlled Q_Key in sends.
    #[must_use]
    pub fn qkey(&self) -> u32 {
        self.word(Q_KEY.0)
    }
    /// Returns the bus address of the receive queue's doorbell record.
    #[must_use]
    pub fn receive_record(&self) -> u64 {
        self.double(0xa0) & !3
    }
    /// Returns the shared receive queue, if the queue pair uses one.
    #[must_use]
    pub fn srqn(&self) -> Option<u32> {
        let word = self.word(0xac);
        (word >> 24 & 1 != 0).then_some(word & 0xff_ffff)
    }
    /// Returns the XRC domain from whose shared receive queues the peer may choose. Only a target has one:
    /// the top bit of its number is set (Linux `mlx4/qp.c`), unlike an initiator's. Domain 0 contains all
    /// shared receive queues that are not for XRC.
    #[must_use]
    pub fn xrc_domain(&self) -> Option<u16> {
        let domain = self.word(0x98) as u16;
        (self.is_xrc_target() && domain != 0).then_some(domain)
    }
    /// Returns whether the queue pair is the target of an extended reliable connection. A target sends no
    /// requests of its own; Linux does not initialize its send ring, whose zeros would look like work
    /// requests.
    #[must_use]
    pub fn is_xrc_target(&self) -> bool {
        const TARGET: u32 = 1 << 23;
        self.service() == Some(Service::Xrc) && self.word(LOCAL_QPN.0) & TARGET != 0
    }
    /// Returns whether receives come from shared queues; then the queue pair has no receive ring of its own.
    #[must_use]
    pub fn shares_receives(&self) -> bool {
        self.srqn().is_some() || self.service() == Some(Service::Xrc)
    }
    /// Returns whether the queue pair has a receive ring. It has none with shared queues, and none if it
    /// distributes frames over other queue pairs.
    #[must_use]
    pub fn has_receive_ring(&self) -> bool {
        !self.shares_receives() && self.rss().is_none()
    }
    /// Returns the buffer: the byte offset of its MTT entries, log2 of the page size in bytes, and the
    /// buffer's offset in its first page in bytes.
    #[must_use]
    pub fn buffer(&self) -> (u64, u8, u64) {
        let log_page = (self.word(0xc8) >> 24 & 0x3f) as u8 + 12;
        let mtt = u64::from(self.word(0xc8) & 0xff) << 32 | u64::from(self.word(0xcc) & !7);
        (mtt, log_page, u64::from(self.word(0x90) >> 6 & 0x3f) * 64)
    }

    /// Returns the receive side scaling context, if the queue pair distributes frames over others.
    #[must_use]
    pub fn rss(&self) -> Option<Rss> {
        const SPREADS: u32 = 1 << 13;
        const PLACE: usize = 0x3c;
        let bytes = self.0.get(PLACE..)?.first_chunk()?;
        (self.word(0) & SPREADS != 0).then(|| Rss::parse(bytes))?
    }
    /// Returns the counter of the queue pair's frames.
    #[must_use]
    pub fn counter(&self) -> u8 {
        (self.word(PATH + 0x04) >> 24) as u8
    }
    /// Returns whether the queue pair accepts a frame sent by a queue pair of the same port with counter
    /// `counter`. Frames with its own counter are refused if the path has the flag for it (Linux
    /// `include/linux/mlx4/qp.h`, `MLX4_FL_ETH_SRC_CHECK_MC_LB`).
    #[must_use]
    pub fn takes_looped(&self, unicast: bool, counter: u8) -> bool {
        const CHECKS_UNICAST: u32 = 1 << 24;
        const CHECKS_MULTICAST: u32 = 1 << 25;
        const BY_COUNTER: u32 = 1 << 23;
        let checks = BY_COUNTER | if unicast { CHECKS_UNICAST } else { CHECKS_MULTICAST };
        self.word(PATH) & checks != checks || self.counter() != counter
    }
    /// Returns whether the outermost VLAN tag is removed from received frames.
    #[must_use]
    pub fn strips_vlan(&self) -> bool {
        const KEEPS: u32 = 1 << 30;
        self.word(0xc0) & KEEPS == 0
    }

    /// Returns whether received frames keep their check sequence.
    #[must_use]
    pub fn keeps_fcs(&self) -> bool {
        const KEEPS: u32 = 1 << 29;
        self.word(0xc0) & KEEPS != 0
    }

    /// UPDATE_QP: changes the fields that may change at any time.
    pub fn amend(&mut self, mailbox: &Mailbox) {
        const QP_VLAN_STRIPPING: u64 = 1 << 33;
        const PATH_MAC_INDEX: u64 = 1 << 34;
        const CONTEXT: usize = 0x20;
        let (qp, path) = (mailbox.u64(0x00), mailbox.u64(0x08));
        let mut take = |wanted: bool, (offset, mask): Field| {
            if wanted {
                self.put((offset, mask), mailbox.u32(CONTEXT + offset));
            }
        };
        take(qp & QP_VLAN_STRIPPING != 0, (0xc0, 1 << 30));
        take(path & PATH_MAC_INDEX != 0, (PATH + 0x04, 0x007f_0000));
    }

    /// Returns the port, counted from 0.
    #[must_use]
    pub fn port(&self) -> usize {
        (self.word(SCHED_QUEUE.0) >> 30 & 1) as usize
    }
    /// Returns the row of the source in the port's GID table.
    #[must_use]
    pub fn source_gid(&self) -> usize {
        (self.word(PATH + 0x08) >> 16 & 0x7f) as usize
    }
    /// Returns the row of the port's GID table that has index 0 in the address vectors of datagrams. A
    /// virtual function's master sets it.
    #[must_use]
    pub fn datagram_gids(&self) -> usize {
        const GIVEN: u32 = 1 << 23;
        if self.word(PATH + 0x08) & GIVEN != 0 { self.source_gid() } else { 0 }
    }
    /// InfiniBand: returns the peer's LID.
    #[must_use]
    pub fn remote_lid(&self) -> u16 {
        self.word(PATH + 0x04) as u16
    }
    /// InfiniBand: returns the path bits that select the source among the port's LIDs.
    #[must_use]
    pub fn path_bits(&self) -> u8 {
        (self.word(PATH + 0x04) >> 16 & 0x7f) as u8
    }
    /// InfiniBand: returns whether packets have a GRH.
    #[must_use]
    pub fn has_global_route(&self) -> bool {
        self.word(PATH + 0x04) >> 23 & 1 != 0
    }
    /// InfiniBand: returns the service level.
    #[must_use]
    pub fn service_level(&self) -> u8 {
        (self.word(SCHED_QUEUE.0) >> 26 & 0xf) as u8
    }
    /// Returns the flow label of a GRH.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.word(PATH + 0x0c) & 0xf_ffff
    }
    /// Returns the row of the source in the port's MAC table.
    #[must_use]
    pub fn source_mac(&self) -> usize {
        (self.word(PATH + 0x04) >> 16 & 0x7f) as usize
    }
    /// Returns the row of the VLAN in the port's table, and the priority, if the path is on a VLAN.
    #[must_use]
    pub fn vlan(&self) -> Option<(usize, u8)> {
        const VALID: u32 = 1 << 30;
        let word = self.word(SCHED_QUEUE.0);
        (self.word(PATH) & VALID != 0).then_some(((word >> 16 & 0x7f) as usize, (word >> 27 & 7) as u8))
    }
    /// Returns the code of the acknowledgement timeout: 4.096 us times 2 to the power of the code; 0 means no
    /// timeout.
    #[must_use]
    pub fn ack_timeout(&self) -> u8 {
        (self.word(ACK_TIMEOUT.0) >> 27) as u8
    }
    /// Returns the hop limit and the traffic class.
    #[must_use]
    pub fn hop_and_class(&self) -> (u8, u8) {
        (self.word(PATH + 0x08) as u8, (self.word(PATH + 0x0c) >> 20) as u8)
    }
    /// Returns the peer's GID.
    #[must_use]
    pub fn remote_gid(&self) -> Gid {
        let mut gid = [0; 16];
        gid.copy_from_slice(&self.0[PATH + 0x10..PATH + 0x20]);
        Gid(gid)
    }
    /// Returns the peer's Ethernet address.
    #[must_use]
    pub fn remote_mac(&self) -> MacAddr {
        let mut mac = [0; 6];
        mac.copy_from_slice(&self.0[PATH + 0x26..PATH + 0x2c]);
        MacAddr(mac)
    }
}

/// Returns log2 of the number of entries, and log2 of the entry length in bytes.
const fn size(byte: u8) -> (u8, u8) {
    (byte >> 3 & 0xf, (byte & 7) + 4)
}
