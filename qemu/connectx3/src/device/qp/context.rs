//! The context of a queue pair, which the guest passes piece by piece with each transition (Linux
//! `include/linux/mlx4/qp.h`, `hw/mlx4/qp.c`).

use super::state::{Service, Transition};
use crate::device::ethernet::rss::Rss;
use crate::device::layout::{Field, qp_context as qp, update_qp, word};
use crate::device::mailbox::Mailbox;
use crate::device::memory::Domain;
use verbs::PathMtu;

/// The offset of the context in the mailbox, after the mask of optional parameters. Offsets of fields count
/// from the mailbox.
const CONTEXT: usize = 0x08;
/// The length of the context, in bytes.
const LEN: usize = 0xf8;
/// The words of the primary path.
const PATH: core::ops::Range<usize> = 0x20..0x4c;

/// Bits of the mask of optional parameters.
mod optional {
    pub(super) const RRE: u32 = 1 << 1;
    pub(super) const RAE: u32 = 1 << 2;
    pub(super) const RWE: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const Q_KEY: u32 = 1 << 5;
    pub(super) const RNR_TIMER: u32 = 1 << 6;
    pub(super) const PRIMARY_PATH: u32 = 1 << 7;
    pub(super) const SRA_MAX: u32 = 1 << 8;
    pub(super) const RRA_MAX: u32 = 1 << 9;
    pub(super) const RETRY_COUNT: u32 = 1 << 12;
    pub(super) const RNR_RETRY: u32 = 1 << 13;
    pub(super) const ACK_TIMEOUT: u32 = 1 << 14;
    pub(super) const SCHED_QUEUE: u32 = 1 << 16;
}

/// The fields that the mask can select, in every transition but the first.
const OPTIONAL: [(u32, Field); 12] = [
    (optional::RRE, qp::PEER_READS),
    (optional::RAE, qp::PEER_ATOMICS),
    (optional::RWE, qp::PEER_WRITES),
    (optional::PKEY_INDEX, qp::PKEY_INDEX),
    (optional::Q_KEY, qp::Q_KEY),
    (optional::RNR_TIMER, qp::RNR_TIMER),
    (optional::SRA_MAX, qp::REQUESTER_READS),
    (optional::RRA_MAX, qp::RESPONDER_READS),
    (optional::RETRY_COUNT, qp::RETRIES),
    (optional::RNR_RETRY, qp::RNR_RETRIES),
    (optional::ACK_TIMEOUT, qp::ACK_TIMEOUT),
    (optional::SCHED_QUEUE, qp::SCHED_QUEUE),
];

/// The fields that INIT2RTR sets in addition to the path.
const OF_INIT_TO_RTR: [Field; 5] =
    [qp::MTU, qp::LOG_MESSAGE, qp::ROCE_MODE, word(qp::REMOTE_QPN.word()), qp::RECEIVE_PSN];
/// The fields that RTR2RTS sets.
const OF_RTR_TO_RTS: [Field; 7] = [
    qp::SEND_PSN,
    qp::ACK_TIMEOUT,
    qp::RETRIES,
    qp::RNR_RETRIES,
    qp::REQUESTER_READS,
    qp::LOG_ACK_REQUESTS,
    qp::UDP_SOURCE,
];

/// The fields of a context that the card itself updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
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
pub(crate) struct Context(Box<[u8; LEN]>);

impl Default for Context {
    fn default() -> Self {
        Self(Box::new([0; LEN]))
    }
}

impl Context {
    fn word(&self, offset: usize) -> u32 {
        let at = offset.wrapping_sub(CONTEXT);
        self.0.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
    }

    pub(super) fn field(&self, field: Field) -> u32 {
        field.of(self.word(field.word()))
    }

    fn double(&self, high: Field) -> u64 {
        u64::from(self.word(high.word())) << 32 | u64::from(self.word(high.word() + 4))
    }

    fn put(&mut self, field: Field, value: u32) {
        let word = field.with(self.word(field.word()), value);
        let at = field.word().wrapping_sub(CONTEXT);
        if let Some(place) = self.0.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = word.to_be_bytes();
        }
    }

    fn take(&mut self, from: &Mailbox, field: Field) {
        self.put(field, from.field(field));
    }

    fn take_words(&mut self, from: &Mailbox, offsets: core::ops::Range<usize>) {
        for offset in offsets.step_by(4) {
            self.take(from, word(offset));
        }
    }

    /// Updates the context from a transition's mailbox. Linux fills only the fields that the mask or the
    /// transition names, and zeroes the rest, so only the named fields are copied.
    pub(crate) fn update(&mut self, transition: Transition, mailbox: &Mailbox) {
        let fields: &[Field] = match transition {
            Transition::ResetToInit => return self.take_words(mailbox, CONTEXT..CONTEXT + LEN),
            Transition::InitToRtr => &OF_INIT_TO_RTR,
            Transition::RtrToRts => &OF_RTR_TO_RTS,
            _ => &[],
        };
        for field in fields {
            self.take(mailbox, *field);
        }
        let mask = mailbox.field(qp::OPTIONAL);
        if transition == Transition::InitToRtr || mask & optional::PRIMARY_PATH != 0 {
            let (pkey, timeout) = (self.field(qp::PKEY_INDEX), self.field(qp::ACK_TIMEOUT));
            self.take_words(mailbox, PATH);
            self.put(qp::PKEY_INDEX, pkey);
            self.put(qp::ACK_TIMEOUT, timeout);
        }
        for (bit, field) in OPTIONAL {
            if mask & bit != 0 {
                self.take(mailbox, field);
            }
        }
    }

    /// UPDATE_QP: changes the fields that may change at any time.
    pub(crate) fn amend(&mut self, mailbox: &Mailbox) {
        const QP_VLAN_STRIPPING: u64 = 1 << 33;
        const PATH_MAC_INDEX: u64 = 1 << 34;
        if mailbox.double(update_qp::QP_MASK_HIGH) & QP_VLAN_STRIPPING != 0 {
            self.put(qp::KEEP_VLAN, mailbox.field(update_qp::KEEP_VLAN));
        }
        if mailbox.double(update_qp::PATH_MASK_HIGH) & PATH_MAC_INDEX != 0 {
            self.put(qp::SOURCE_MAC, mailbox.field(update_qp::SOURCE_MAC));
        }
    }

    /// Writes the fields that the card updates.
    pub(crate) fn set_live(&mut self, live: &Live) {
        self.put(qp::SEND_PSN, live.send_psn);
        self.put(qp::ACKNOWLEDGED_PSN, live.acknowledged_psn);
        self.put(qp::RECEIVE_PSN, live.receive_psn);
        self.put(qp::RECEIVE_INDEX, live.receive_index.into());
        self.put(qp::SEND_INDEX, live.send_index.into());
    }

    /// QUERY_QP: writes the context to `out`, with the code of the card's state.
    pub(crate) fn query(&self, state: u32, out: &mut Mailbox) {
        let mut shown = self.clone();
        shown.put(qp::STATE, state);
        out.put(CONTEXT, &*shown.0);
    }

    /// Returns the service, if the card supports it.
    #[must_use]
    pub(crate) fn service(&self) -> Option<Service> {
        match self.field(qp::SERVICE) {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            3 => Some(Service::Ud),
            6 => Some(Service::Xrc),
            7 => Some(Service::Raw),
            _ => None,
        }
    }
    /// Sets the queue pair number, which the command specifies.
    pub(crate) fn set_number(&mut self, qpn: u32) {
        self.put(qp::LOCAL_QPN, qpn);
    }
    /// Returns the protection domain.
    #[must_use]
    pub(crate) fn pd(&self) -> u32 {
        self.field(qp::PD) & 0x1_ffff
    }
    /// Returns the queue pair's identity for memory accesses.
    #[must_use]
    pub(crate) fn domain(&self) -> Domain {
        let qpn = self.field(qp::LOCAL_QPN);
        Domain { pd: self.pd(), qpn, reserved_lkey: self.field(qp::RESERVED_LKEY) != 0 }
    }
    /// Returns whether FAST_REG is allowed; it is for kernels.
    #[must_use]
    pub(crate) fn fast_register(&self) -> bool {
        self.field(qp::FAST_REGISTER) != 0
    }
    /// Returns the path MTU; `None` for Ethernet, and before one is set.
    #[must_use]
    pub(crate) fn mtu(&self) -> Option<PathMtu> {
        PathMtu::ALL.get(self.field(qp::MTU).checked_sub(1)? as usize).copied()
    }
    /// Returns whether a raw queue pair is for Ethernet frames; otherwise it is a special one.
    #[must_use]
    pub(crate) fn is_ethernet(&self) -> bool {
        self.field(qp::MTU) == 7
    }
    /// Returns log2 of the number of entries in the receive queue, and log2 of the entry length in bytes.
    #[must_use]
    pub(crate) fn receive_size(&self) -> (u8, u8) {
        (self.field(qp::LOG_RECEIVES) as u8, self.field(qp::RECEIVE_STRIDE) as u8 + 4)
    }
    /// Returns log2 of the number of entries in the send queue, and log2 of the entry length in bytes.
    #[must_use]
    pub(crate) fn send_size(&self) -> (u8, u8) {
        (self.field(qp::LOG_SENDS) as u8, self.field(qp::SEND_STRIDE) as u8 + 4)
    }
    /// Returns whether frames are RoCE v2.
    #[must_use]
    pub(crate) fn roce_v2(&self) -> bool {
        self.field(qp::ROCE_MODE) == 2
    }
    /// Returns the number of the peer's queue pair.
    #[must_use]
    pub(crate) fn remote_qpn(&self) -> u32 {
        self.field(qp::REMOTE_QPN)
    }
    /// Returns the number of retries after a timeout, and after an RNR NAK.
    #[must_use]
    pub(crate) fn retries(&self) -> (u8, u8) {
        (self.field(qp::RETRIES) as u8, self.field(qp::RNR_RETRIES) as u8)
    }
    /// Returns the maximum number of READs and atomics in flight as requester, and as responder.
    #[must_use]
    pub(crate) fn rd_atomic(&self) -> (u8, u8) {
        (1 << self.field(qp::REQUESTER_READS), 1 << self.field(qp::RESPONDER_READS))
    }
    /// Returns the PSN of the first packet sent.
    #[must_use]
    pub(crate) fn send_psn(&self) -> u32 {
        self.field(qp::SEND_PSN)
    }
    /// Returns the first expected PSN.
    #[must_use]
    pub(crate) fn receive_psn(&self) -> u32 {
        self.field(qp::RECEIVE_PSN)
    }
    /// Returns the completion queue of sends.
    #[must_use]
    pub(crate) fn send_cqn(&self) -> u32 {
        self.field(qp::SEND_CQN)
    }
    /// Returns the completion queue of receives.
    #[must_use]
    pub(crate) fn receive_cqn(&self) -> u32 {
        self.field(qp::RECEIVE_CQN)
    }
    /// Returns the UDP source port of RoCE v2.
    #[must_use]
    pub(crate) fn source_port(&self) -> u16 {
        self.field(qp::UDP_SOURCE) as u16
    }
    /// Returns which of READ, WRITE and atomics the peer may do.
    #[must_use]
    pub(crate) fn remote_rights(&self) -> [bool; 3] {
        [qp::PEER_READS, qp::PEER_WRITES, qp::PEER_ATOMICS].map(|right| self.field(right) != 0)
    }
    /// Returns the code of the delay that the peer must observe when no receive is posted.
    #[must_use]
    pub(crate) fn rnr_timer(&self) -> u8 {
        self.field(qp::RNR_TIMER) as u8
    }
    /// Returns the Q_Key. Received datagrams must contain it; it also replaces a controlled Q_Key in sends.
    #[must_use]
    pub(crate) fn qkey(&self) -> u32 {
        self.field(qp::Q_KEY)
    }
    /// Returns the bus address of the receive queue's doorbell record.
    #[must_use]
    pub(crate) fn receive_record(&self) -> u64 {
        self.double(qp::RECORD_HIGH) & !3
    }
    /// Returns the shared receive queue, if the queue pair uses one.
    #[must_use]
    pub(crate) fn srqn(&self) -> Option<u32> {
        (self.field(qp::USES_SRQ) != 0).then(|| self.field(qp::SRQN))
    }
    /// Returns the XRC domain from whose shared receive queues the peer may choose. Only a target has one:
    /// the top bit of its number is set (Linux `mlx4/qp.c`), unlike an initiator's. Domain 0 contains all
    /// shared receive queues that are not for XRC.
    #[must_use]
    pub(crate) fn xrc_domain(&self) -> Option<u16> {
        let domain = self.field(qp::XRC_DOMAIN) as u16;
        (self.is_xrc_target() && domain != 0).then_some(domain)
    }
    /// Returns whether the queue pair is the target of an extended reliable connection. A target sends no
    /// requests of its own; Linux does not initialize its send ring, whose zeros would look like work
    /// requests.
    #[must_use]
    pub(crate) fn is_xrc_target(&self) -> bool {
        const TARGET: u32 = 1 << 23;
        self.service() == Some(Service::Xrc) && self.field(qp::LOCAL_QPN) & TARGET != 0
    }
    /// Returns whether receives come from shared queues; then the queue pair has no receive ring of its own.
    #[must_use]
    pub(crate) fn shares_receives(&self) -> bool {
        self.srqn().is_some() || self.service() == Some(Service::Xrc)
    }
    /// Returns whether the queue pair has a receive ring. It has none with shared queues, and none if it
    /// distributes frames over other queue pairs.
    #[must_use]
    pub(crate) fn has_receive_ring(&self) -> bool {
        !self.shares_receives() && self.rss().is_none()
    }
    /// Returns the buffer: the byte offset of its MTT entries, log2 of the page size in bytes, and the
    /// buffer's offset in its first page in bytes.
    #[must_use]
    pub(crate) fn buffer(&self) -> (u64, u8, u64) {
        let log_page = self.field(qp::LOG_PAGE) as u8 + 12;
        let mtt = u64::from(self.field(qp::MTT_HIGH)) << 32 | u64::from(self.field(qp::MTT) & !7);
        (mtt, log_page, u64::from(self.field(qp::PAGE_OFFSET)) * 64)
    }

    /// Returns the receive side scaling context, if the queue pair distributes frames over others.
    #[must_use]
    pub(crate) fn rss(&self) -> Option<Rss> {
        (self.field(qp::SPREADS) != 0).then(|| Rss::parse(|field| self.field(field)))?
    }
    /// Returns whether the outermost VLAN tag is removed from received frames.
    #[must_use]
    pub(crate) fn strips_vlan(&self) -> bool {
        self.field(qp::KEEP_VLAN) == 0
    }

    /// Returns whether received frames keep their check sequence.
    #[must_use]
    pub(crate) fn keeps_fcs(&self) -> bool {
        self.field(qp::KEEP_FCS) != 0
    }
}
