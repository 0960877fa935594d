//! Completion queues: contexts, entries, arming.

use super::clock;
use super::eq::{Eqs, Event, EventType};
use super::hcr::Status;
use super::host::{Host, read_be32};
use super::layout::{ENTRY, Field, cq_context, cqe, eqe};
use super::mailbox::Mailbox;
use super::moderation::Moderation;
use super::observe::Observation;
use super::queue_memory::{MttTable, QueueMemory};
use platform::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// The owner bit in an entry's last byte.
const OWNER: u8 = cqe::OWNER.mask() as u8;
/// Flag of a context: entries have timestamps in place of the service level and VLAN.
const STAMPED: u32 = 1 << (19 - 12);
/// The opcode of the entry that ends the old buffer at a resize.
const RESIZE: u8 = 0x16;

/// A completion queue entry under construction (Linux `include/linux/mlx4/cq.h`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    bytes: [u8; ENTRY],
    /// True if the completion counts as solicited: errors, and receives whose sender requested an event.
    solicited: bool,
}

impl Cqe {
    /// Creates the completion of a queue pair's work request. `wqe` is the request's index modulo 2^16.
    #[must_use]
    pub(super) fn new(qpn: u32, wqe: u16, send: bool, opcode: u8) -> Self {
        Self { bytes: [0; ENTRY], solicited: false }
            .with(cqe::QPN, qpn)
            .with(cqe::WQE, wqe.into())
            .with(cqe::OPCODE, opcode.into())
            .with(cqe::SENT, send.into())
    }

    /// Creates the completion of a work request that has failed.
    #[must_use]
    pub(super) fn error(qpn: u32, wqe: u16, send: bool, syndrome: u8, vendor: u8) -> Self {
        Self::new(qpn, wqe, send, cqe::ERROR)
            .with(cqe::VENDOR, vendor.into())
            .with(cqe::SYNDROME, syndrome.into())
            .solicited(true)
    }

    /// Returns the direction (true: sent) and the syndrome of an error entry.
    fn failure(&self) -> Option<(bool, u8)> {
        let failed = cqe::OPCODE.get(&self.bytes) == u32::from(cqe::ERROR);
        failed.then(|| (cqe::SENT.get(&self.bytes) != 0, cqe::SYNDROME.get(&self.bytes) as u8))
    }

    /// Sets a field of the entry. Bits of the value that exceed the field are ignored.
    #[must_use]
    pub(super) fn with(mut self, field: Field, value: u32) -> Self {
        field.put(&mut self.bytes, value);
        self
    }

    /// Marks the completion as solicited by the sender.
    #[must_use]
    pub(super) const fn solicited(mut self, solicited: bool) -> Self {
        self.solicited |= solicited;
        self
    }
}

/// The condition under which a queue posts its next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    /// The next completion that is solicited or an error.
    Solicited,
    /// The next completion of any kind.
    Next,
}

#[derive(Debug)]
struct Cq {
    memory: QueueMemory,
    log_entries: u8,
    eqn: u32,
    record: u64,
    producer: u32,
    armed: Armed,
    /// The index after the last solicited entry.
    solicited_until: u32,
    failed: bool,
    uar: u32,
    /// True if entries contain timestamps.
    stamped: bool,
    /// The distance between entries, in bytes.
    stride: usize,
    moderation: Moderation,
}

/// The layout of a queue's buffer.
#[derive(Clone, Copy)]
struct Layout {
    /// The distance between entries, in bytes.
    stride: usize,
    /// The index of the next entry to be written.
    first: u32,
    /// True if the driver has initialized the entries as not yet written.
    marked: bool,
}

impl Cq {
    /// Returns the consumer index from the doorbell record.
    fn consumer(&self, host: &dyn Host) -> u32 {
        read_be32(host, self.record).map_or(0, |word| word & 0xff_ffff)
    }

    /// Returns the buffer that a context describes.
    fn buffer(
        context: &Mailbox,
        layout: Layout,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(QueueMemory, u8), Status> {
        let log_entries = context.field(cq_context::LOG_ENTRIES) as u8;
        if log_entries > 22 {
            return Err(Status::ExceedsLimit);
        }
        let log_page = context.field(cq_context::LOG_PAGE) as u8 + 12;
        let (mtt_high, mtt) = (context.field(cq_context::MTT_HIGH), context.field(cq_context::MTT) & !7);
        let mtt = u64::from(mtt_high) << 32 | u64::from(mtt);
        let offset = u64::from(context.field(cq_context::PAGE_OFFSET)) * 32;
        let memory =
            QueueMemory::new(table, host, mtt, log_page, offset, (layout.stride as u64) << log_entries)
                .ok_or(Status::IcmError)?;
        if layout.marked {
            return Ok((memory, log_entries));
        }
        // Each entry is initialized as not yet written. The owner bit for this depends on the lap in which
        // the entry will be written.
        let entries = 1u32 << log_entries;
        let first = u64::from(layout.first & (entries - 1));
        let (now, later) = if layout.first & entries == 0 { (OWNER, 0) } else { (0, OWNER) };
        memory
            .mark(host, first..u64::from(entries), layout.stride, now)
            .and_then(|()| memory.mark(host, 0..first, layout.stride, later))
            .map_err(|_| Status::BadParameter)?;
        Ok((memory, log_entries))
    }

    fn put(&mut self, cqe: &Cqe, host: &dyn Host) -> bool {
        let entries = 1u32 << self.log_entries;
        let mut bytes = cqe.bytes;
        if self.stamped {
            let (high, low) = clock::stamp(host.now());
            cqe::STAMP_HIGH.put(&mut bytes, high);
            cqe::STAMP.put(&mut bytes, low.into());
        }
        cqe::OWNER.put(&mut bytes, (self.producer & entries != 0).into());
        let at = u64::from(self.producer & (entries - 1)) * self.stride as u64 + (self.stride - ENTRY) as u64;
        let written = self.memory.publish(host, at, &bytes).is_ok();
        self.producer = self.producer.wrapping_add(1) & 0xff_ffff;
        written
    }
}

/// All completion queues of a card.
#[derive(Debug)]
pub(super) struct Cqs {
    queues: BTreeMap<u32, Cq>,
    /// The distance between entries, in bytes.
    stride: usize,
    /// Queues with delayed events, by due time.
    due: BTreeSet<(Instant, u32)>,
    /// The number of error entries, by direction (true: sent) and syndrome.
    errors: BTreeMap<(bool, u8), u32>,
    overruns: u32,
}

impl Default for Cqs {
    fn default() -> Self {
        Self::new(ENTRY)
    }
}

impl Cqs {
    /// Creates an empty set of queues, whose entries will be `stride` bytes apart.
    #[must_use]
    pub(super) const fn new(stride: usize) -> Self {
        Self { queues: BTreeMap::new(), stride, due: BTreeSet::new(), errors: BTreeMap::new(), overruns: 0 }
    }

    /// SW2HW_CQ: takes over a queue from the guest. `marked` is true if the guest has initialized the entries
    /// as not yet written.
    pub(super) fn create(
        &mut self,
        cqn: u32,
        context: &Mailbox,
        marked: bool,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(), Status> {
        if self.queues.contains_key(&cqn) {
            return Err(Status::BadResourceState);
        }
        let layout = Layout { stride: self.stride, first: 0, marked };
        let (memory, log_entries) = Cq::buffer(context, layout, table, host)?;
        let queue = Cq {
            memory,
            log_entries,
            eqn: context.field(cq_context::EQN),
            record: context.double(cq_context::RECORD_HIGH) & !7,
            producer: 0,
            armed: Armed::No,
            solicited_until: 0,
            failed: false,
            uar: context.field(cq_context::UAR),
            stamped: context.field(cq_context::FLAGS) & STAMPED != 0,
            stride: self.stride,
            moderation: Moderation::parse(context),
        };
        self.queues.insert(cqn, queue);
        Ok(())
    }

    /// HW2SW_CQ: returns a queue to the guest.
    pub(super) fn destroy(&mut self, cqn: u32) -> Result<(), Status> {
        let queue = self.queues.remove(&cqn).ok_or(Status::BadResource)?;
        if let Some(due) = queue.moderation.due() {
            self.due.remove(&(due, cqn));
        }
        Ok(())
    }

    /// QUERY_CQ: writes the state of a queue to `out`.
    pub(super) fn query(&self, cqn: u32, out: &mut Mailbox) -> Result<(), Status> {
        let queue = self.queues.get(&cqn).ok_or(Status::BadResource)?;
        let status: u32 = if queue.failed { 9 } else { 0 };
        let state: u32 = match queue.armed {
            Armed::No => 0,
            Armed::Solicited => 4,
            Armed::Next => 1,
        };
        let stamped = if queue.stamped { STAMPED } else { 0 };
        out.set(cq_context::CONTEXT_STATUS, status);
        out.set(cq_context::FLAGS, stamped);
        out.set(cq_context::STATE, state);
        out.set(cq_context::LOG_ENTRIES, queue.log_entries.into());
        out.set(cq_context::UAR, queue.uar);
        queue.moderation.put(out);
        out.set(cq_context::EQN, queue.eqn);
        out.set(cq_context::PRODUCER_INDEX, queue.producer);
        out.set_double(cq_context::RECORD_HIGH, queue.record);
        Ok(())
    }

    /// MODIFY_CQ, resize: directs completions to a new buffer. A special last entry in the old buffer says
    /// so. The entry has an index of its own, so the driver moves each entry before it into the new buffer at
    /// the next higher index (Linux `mlx4_ib_cq_resize_copy_cqes`).
    pub(super) fn resize(
        &mut self,
        cqn: u32,
        context: &Mailbox,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(), Status> {
        let queue = self.queues.get_mut(&cqn).ok_or(Status::BadResource)?;
        let next = queue.producer.wrapping_add(1) & 0xff_ffff;
        let layout = Layout { stride: queue.stride, first: next, marked: false };
        let (memory, log_entries) = Cq::buffer(context, layout, table, host)?;
        let waiting = queue.producer.wrapping_sub(queue.consumer(host)) & 0xff_ffff;
        if waiting >= 1 << log_entries {
            return Err(Status::BadSize);
        }
        queue.put(&Cqe::new(0, 0, true, RESIZE), host);
        (queue.memory, queue.log_entries) = (memory, log_entries);
        Ok(())
    }

    /// Posts a completion, and an event if the queue is armed for it. Returns `false` if the queue has
    /// failed; the caller must then fail the queue pair.
    pub(super) fn post(&mut self, cqn: u32, cqe: &Cqe, eqs: &mut Eqs, host: &dyn Host) -> bool {
        let Some(queue) = self.queues.get_mut(&cqn) else { return false };
        if queue.failed {
            return false;
        }
        let waiting = queue.producer.wrapping_sub(queue.consumer(host)) & 0xff_ffff;
        let overrun = waiting >= 1 << queue.log_entries;
        if overrun || !queue.put(cqe, host) {
            const OVERRUN: u32 = 1;
            const ACCESS_VIOLATION: u32 = 2;
            queue.failed = true;
            self.overruns += u32::from(overrun);
            let syndrome = if overrun { OVERRUN } else { ACCESS_VIOLATION };
            log::warn!("completion queue {cqn:#x}: {}", if overrun { "overrun" } else { "access violation" });
            eqs.post(
                &Event::new(EventType::CqError, 0).with(eqe::NUMBER, cqn).with(eqe::SYNDROME, syndrome),
                host,
            );
            return false;
        }
        host.observe(&Observation::Completion { cqn, entry: &cqe.bytes });
        if let Some(error) = cqe.failure() {
            *self.errors.entry(error).or_default() += 1;
        }
        if cqe.solicited {
            queue.solicited_until = queue.producer;
        }
        let fires = match queue.armed {
            Armed::No => false,
            Armed::Solicited => cqe.solicited,
            Armed::Next => true,
        };
        if fires {
            self.post_armed_event(cqn, eqs, host);
        }
        true
    }

    /// Handles the arm doorbell: the queue posts an event at the next completion past `consumer`. A
    /// completion that is already there triggers it too, because drivers do not check the queue again after
    /// arming it.
    pub(super) fn arm(
        &mut self,
        cqn: u32,
        consumer: u32,
        solicited_only: bool,
        eqs: &mut Eqs,
        host: &dyn Host,
    ) {
        let Some(queue) = self.queues.get_mut(&cqn) else { return };
        let beyond = |index: u32| {
            let ahead = index.wrapping_sub(consumer) & 0xff_ffff;
            ahead != 0 && ahead < 1 << 23
        };
        let fires = beyond(if solicited_only { queue.solicited_until } else { queue.producer });
        queue.armed = if solicited_only { Armed::Solicited } else { Armed::Next };
        if fires {
            self.post_armed_event(cqn, eqs, host);
        }
    }

    /// Posts the event for which a queue is armed, now or when its moderation allows.
    fn post_armed_event(&mut self, cqn: u32, eqs: &mut Eqs, host: &dyn Host) {
        let Some(queue) = self.queues.get_mut(&cqn) else { return };
        let before = queue.moderation.due();
        let now = queue.moderation.occurred(|| host.now());
        let after = queue.moderation.due();
        if before != after {
            before.map(|due| self.due.remove(&(due, cqn)));
            self.due.extend(after.map(|due| (due, cqn)));
        }
        if now {
            queue.armed = Armed::No;
            eqs.post_to(queue.eqn, &completion_event(cqn), host);
        }
    }

    /// MODIFY_CQ, moderation: sets a queue's event moderation.
    pub(super) fn moderate(
        &mut self,
        cqn: u32,
        context: &Mailbox,
        eqs: &mut Eqs,
        host: &dyn Host,
    ) -> Result<(), Status> {
        let queue = self.queues.get_mut(&cqn).ok_or(Status::BadResource)?;
        if let Some(due) = queue.moderation.due() {
            self.due.remove(&(due, cqn));
        }
        if queue.moderation.replace(Moderation::parse(context)) {
            queue.armed = Armed::No;
            eqs.post_to(queue.eqn, &completion_event(cqn), host);
        }
        Ok(())
    }

    /// Returns the time at which the next delayed event is due.
    #[must_use]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Posts the delayed events that are due.
    pub(super) fn progress(&mut self, now: Instant, eqs: &mut Eqs, host: &dyn Host) {
        while let Some((due, cqn)) = self.due.pop_first() {
            if due > now {
                self.due.insert((due, cqn));
                return;
            }
            if let Some(queue) = self.queues.get_mut(&cqn) {
                queue.moderation.set_reported();
                queue.armed = Armed::No;
                eqs.post_to(queue.eqn, &completion_event(cqn), host);
            }
        }
    }

    /// DIAG_RPRT: writes the counts of error entries to `out` (Linux `hw/mlx4/main.c`, `diag_basic`,
    /// `diag_device_only`).
    pub(super) fn report(&self, out: &mut Mailbox) {
        const OVERRUNS: usize = 0x1a0;
        const SENT: bool = true;
        const RECEIVED: bool = false;
        for (offset, direction, syndrome) in [
            (0x00, RECEIVED, 0x01),
            (0x04, SENT, 0x01),
            (0x08, RECEIVED, 0x02),
            (0x0c, SENT, 0x02),
            (0x18, RECEIVED, 0x04),
            (0x1c, SENT, 0x04),
            (0x20, RECEIVED, 0x05),
            (0x24, SENT, 0x05),
            (0x2c, SENT, 0x06),
            (0x34, SENT, 0x10),
            (0x44, SENT, 0x12),
            (0x48, RECEIVED, 0x12),
            (0x4c, SENT, 0x13),
            (0x50, RECEIVED, 0x11),
            (0x54, SENT, 0x14),
            (0x5c, SENT, 0x15),
            (0x64, SENT, 0x16),
        ] {
            out.put_u32(offset, self.errors.get(&(direction, syndrome)).copied().unwrap_or(0));
        }
        out.put_u32(OVERRUNS, self.overruns);
    }
}

fn completion_event(cqn: u32) -> Event {
    Event::new(EventType::Completion, 0).with(eqe::NUMBER, cqn)
}
