//! Shared receive queues: lists of entries linked by index, from which queue pairs fetch receives (Linux
//! `mlx4/srq.c`).

use super::eq::{Eqs, Event, EventType};
use super::hcr::Status;
use super::host::{DmaError, Host, read_be32};
use super::layout::{eqe, srq_context};
use super::mailbox::Mailbox;
use super::qp::{Scatter, scatter_list};
use super::queue_memory::{MttTable, QueueMemory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of bytes before the scatter list of an entry; they contain the index of the next entry.
const HEADER: usize = 16;
/// The maximum length of an entry, in bytes.
const MAX_ENTRY: usize = 512;

#[derive(Debug)]
struct Srq {
    memory: QueueMemory,
    log_entries: u8,
    log_stride: u8,
    pd: u32,
    /// The XRC domain, and the completion queue of receives, which is used only by XRC queue pairs.
    domain: u16,
    cqn: u32,
    record: u64,
    /// The index of the next entry to be fetched.
    head: u16,
    /// The number of entries fetched and not returned.
    taken: u16,
    /// Entries that were given back unused. They are fetched before those of the list.
    returned: Vec<u16>,
    /// The number of posted entries below which one event is posted.
    limit: u16,
}

impl Srq {
    fn posted(&self, host: &dyn Host) -> Result<u16, DmaError> {
        Ok((read_be32(host, self.record)? as u16).wrapping_sub(self.taken))
    }
}

/// All shared receive queues of a card.
#[derive(Debug, Default)]
pub(super) struct Srqs {
    queues: BTreeMap<u32, Srq>,
    /// The protection domains of queues for XRC queue pairs, by XRC domain and number.
    domains: Arc<Domains>,
}

/// Protection domains of shared receive queues, by XRC domain and number.
pub(super) type Domains = BTreeMap<(u16, u32), u32>;

impl Srqs {
    /// SW2HW_SRQ: takes over a queue from the guest.
    pub(super) fn create(
        &mut self,
        srqn: u32,
        context: &Mailbox,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(), Status> {
        if self.queues.contains_key(&srqn) {
            return Err(Status::BadResourceState);
        }
        let log_entries = context.field(srq_context::LOG_ENTRIES) as u8;
        let log_stride = context.field(srq_context::LOG_STRIDE) as u8 + 4;
        let log_page = context.field(srq_context::LOG_PAGE) as u8 + 12;
        let (mtt_high, mtt) = (context.field(srq_context::MTT_HIGH), context.field(srq_context::MTT) & !7);
        let mtt = u64::from(mtt_high) << 32 | u64::from(mtt);
        let offset = u64::from(context.field(srq_context::PAGE_OFFSET)) * 64;
        let len = 1u64 << (log_entries + log_stride);
        let memory = QueueMemory::new(table, host, mtt, log_page, offset, len).ok_or(Status::IcmError)?;
        let queue = Srq {
            memory,
            log_entries,
            log_stride,
            pd: context.field(srq_context::PD) & 0x1_ffff,
            domain: context.field(srq_context::XRC_DOMAIN) as u16,
            cqn: context.field(srq_context::CQN),
            record: context.double(srq_context::RECORD_HIGH) & !3,
            head: 0,
            taken: 0,
            returned: Vec::new(),
            limit: 0,
        };
        Arc::make_mut(&mut self.domains).insert((queue.domain, srqn), queue.pd);
        self.queues.insert(srqn, queue);
        Ok(())
    }

    /// HW2SW_SRQ: returns a queue to the guest.
    pub(super) fn destroy(&mut self, srqn: u32) -> Result<(), Status> {
        let queue = self.queues.remove(&srqn).ok_or(Status::BadResource)?;
        Arc::make_mut(&mut self.domains).remove(&(queue.domain, srqn));
        Ok(())
    }

    /// Returns the protection domains of all queues.
    #[must_use]
    pub(super) fn domains(&self) -> Arc<Domains> {
        Arc::clone(&self.domains)
    }

    /// Returns whether a queue is in an XRC domain.
    #[must_use]
    pub(super) fn is_in(&self, srqn: u32, domain: u16) -> bool {
        self.domains.contains_key(&(domain, srqn))
    }

    /// Returns the completion queue of a shared receive queue that XRC queue pairs use.
    #[must_use]
    pub(super) fn cqn(&self, srqn: u32) -> Option<u32> {
        self.queues.get(&srqn).map(|queue| queue.cqn)
    }

    /// QUERY_SRQ: writes the state of a queue to `out`.
    pub(super) fn query(&self, srqn: u32, out: &mut Mailbox) -> Result<(), Status> {
        let queue = self.queues.get(&srqn).ok_or(Status::BadResource)?;
        out.set(srq_context::LOG_ENTRIES, queue.log_entries.into());
        out.set(srq_context::SRQN, srqn);
        out.set(srq_context::XRC_DOMAIN, queue.domain.into());
        out.set(srq_context::CQN, queue.cqn);
        out.set(srq_context::PD, queue.pd);
        out.set(srq_context::LIMIT, queue.limit.into());
        out.set(srq_context::ENTRIES_TAKEN, queue.taken.into());
        out.set_double(srq_context::RECORD_HIGH, queue.record);
        Ok(())
    }

    /// ARM_SRQ: requests an event when fewer than `limit` entries are left.
    pub(super) fn arm(
        &mut self,
        srqn: u32,
        limit: u16,
        eqs: &mut Eqs,
        host: &dyn Host,
    ) -> Result<(), Status> {
        let queue = self.queues.get_mut(&srqn).ok_or(Status::BadResource)?;
        queue.limit = limit;
        self.watch_limit(srqn, eqs, host);
        Ok(())
    }

    /// Fetches the next posted entry: returns its index and its protection domain, and writes its scatter
    /// list to `out`.
    pub(super) fn next(
        &mut self,
        srqn: u32,
        host: &dyn Host,
        out: &mut Vec<Scatter>,
    ) -> Result<Option<(u16, u32)>, DmaError> {
        let Some(queue) = self.queues.get_mut(&srqn) else { return Ok(None) };
        if queue.posted(host)? == 0 {
            return Ok(None);
        }
        let index = queue.returned.last().copied().unwrap_or(queue.head) & ((1 << queue.log_entries) - 1);
        let mut entry = [0; MAX_ENTRY];
        let entry = entry.get_mut(..(1 << queue.log_stride).min(MAX_ENTRY)).unwrap_or_default();
        queue.memory.read(host, u64::from(index) << queue.log_stride, entry)?;
        scatter_list(entry.get(HEADER..).unwrap_or_default(), out);
        if queue.returned.pop().is_none() {
            let next = entry.get(2..).and_then(|rest| rest.first_chunk());
            queue.head = next.map_or(0, |next| u16::from_be_bytes(*next));
        }
        queue.taken = queue.taken.wrapping_add(1);
        Ok(Some((index, queue.pd)))
    }

    /// Returns an unused entry to its queue.
    pub(super) fn give_back(&mut self, srqn: u32, index: u16) {
        if let Some(queue) = self.queues.get_mut(&srqn) {
            queue.returned.push(index);
            queue.taken = queue.taken.wrapping_sub(1);
        }
    }

    /// Posts the event for which a queue is armed, if it has fewer entries than its limit.
    pub(super) fn watch_limit(&mut self, srqn: u32, eqs: &mut Eqs, host: &dyn Host) {
        let Some(queue) = self.queues.get_mut(&srqn) else { return };
        if queue.limit > 0 && queue.posted(host).is_ok_and(|posted| posted < queue.limit) {
            queue.limit = 0;
            eqs.post(&Event::new(EventType::SrqLimit, 0).with(eqe::NUMBER, srqn), host);
        }
    }
}
