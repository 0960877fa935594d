//! Event queues: contexts, entries, arming, and the routing of events to queues.

use super::hcr::Status;
use super::host::Host;
use super::layout::{ENTRY, Field, eq_context, eqe};
use super::mailbox::Mailbox;
use super::moderation::Moderation;
use super::observe::Observation;
use super::queue_memory::{MttTable, QueueMemory};
use platform::Instant;
use std::collections::BTreeMap;

/// The owner bit in an entry's last byte.
const OWNER: u8 = eqe::OWNER.mask() as u8;

/// Types of events (Linux `include/linux/mlx4/device.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum EventType {
    /// An armed completion queue has received a completion.
    Completion = 0x00,
    /// A queue pair in the state ready-to-receive has received its first packet.
    CommunicationEstablished = 0x02,
    /// A send queue has drained.
    SendQueueDrained = 0x03,
    /// A completion queue has overflowed or cannot be written.
    CqError = 0x04,
    /// A queue pair has failed in a way that no completion can report: its ring or its completion queue is
    /// inaccessible.
    QpFatal = 0x05,
    /// A port has come up or gone down.
    PortChange = 0x09,
    /// A command has ended.
    Command = 0x0a,
    /// A peer's request violated the protocol, and no receive completion reports it.
    QpRequestError = 0x10,
    /// A peer's request addressed memory that it has no right to access.
    QpAccessError = 0x11,
    /// The last receive that a queue pair in the error state had fetched from its shared receive queue has
    /// ended.
    LastWqeReached = 0x13,
    /// A shared receive queue has fewer entries than its limit.
    SrqLimit = 0x14,
    /// A subnet manager has changed a port's attributes.
    PortManagement = 0x1d,
}

/// An event queue entry under construction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    kind: EventType,
    entry: [u8; ENTRY],
}

impl Event {
    /// Creates an event of a type and subtype.
    #[must_use]
    pub(super) fn new(kind: EventType, subtype: u8) -> Self {
        let event = Self { kind, entry: [0; ENTRY] };
        event.with(eqe::KIND, kind as u32).with(eqe::SUBTYPE, subtype.into())
    }

    /// Sets a field of the entry. Bits of the value that exceed the field are ignored.
    #[must_use]
    pub(super) fn with(mut self, field: Field, value: u32) -> Self {
        field.put(&mut self.entry, value);
        self
    }

    /// Creates the event that reports the end of a command.
    #[must_use]
    pub(super) fn command(token: u16, status: u8, out: u64) -> Self {
        Self::new(EventType::Command, 0)
            .with(eqe::TOKEN, token.into())
            .with(eqe::STATUS, status.into())
            .with(eqe::OUT_HIGH, (out >> 32) as u32)
            .with(eqe::OUT, out as u32)
    }
}

/// One event queue.
#[derive(Debug)]
struct Eq {
    memory: QueueMemory,
    log_entries: u8,
    vector: u16,
    producer: u32,
    consumer: u32,
    armed: bool,
    /// True if each entry raises an interrupt without arming.
    always_armed: bool,
    overflowed: bool,
    /// The distance between entries, in bytes.
    stride: usize,
    moderation: Moderation,
}

impl Eq {
    /// Raises the queue's interrupt if the queue is armed and its moderation allows it.
    fn fire(&mut self, host: &dyn Host) {
        if (self.armed || self.always_armed) && self.moderation.occurred(|| host.now()) {
            self.interrupt(host);
        }
    }

    fn interrupt(&mut self, host: &dyn Host) {
        self.armed = false;
        self.moderation.set_reported();
        if host.msix_enabled() {
            host.message(self.vector);
        } else {
            host.set_intx(true);
        }
    }
}

/// All event queues of a card, and the event types that are routed to each.
#[derive(Debug)]
pub(super) struct Eqs {
    /// The distance between entries, in bytes.
    stride: usize,
    queues: BTreeMap<u32, Eq>,
    /// The queue that receives events of a type, by type.
    routes: BTreeMap<u8, u32>,
}

impl Default for Eqs {
    fn default() -> Self {
        Self::new(ENTRY)
    }
}

impl Eqs {
    /// Creates an empty set of queues, whose entries will be `stride` bytes apart.
    #[must_use]
    pub(super) const fn new(stride: usize) -> Self {
        Self { stride, queues: BTreeMap::new(), routes: BTreeMap::new() }
    }

    /// Returns the time at which the next delayed interrupt is due.
    #[must_use]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queues.values().filter_map(|queue| queue.moderation.due()).min()
    }

    /// Raises the delayed interrupts that are due.
    pub(super) fn progress(&mut self, now: Instant, host: &dyn Host) {
        for queue in self.queues.values_mut() {
            if queue.moderation.due().is_some_and(|due| due <= now) {
                queue.interrupt(host);
            }
        }
    }

    /// SW2HW_EQ: takes over a queue from the guest.
    pub(super) fn create(
        &mut self,
        eqn: u32,
        context: &Mailbox,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(), Status> {
        if self.queues.contains_key(&eqn) {
            return Err(Status::BadResourceState);
        }
        let log_entries = context.field(eq_context::LOG_ENTRIES) as u8;
        let log_page = context.field(eq_context::LOG_PAGE) as u8 + 12;
        let (mtt_high, mtt) = (context.field(eq_context::MTT_HIGH), context.field(eq_context::MTT) & !7);
        let mtt = u64::from(mtt_high) << 32 | u64::from(mtt);
        let offset = u64::from(context.field(eq_context::PAGE_OFFSET)) * 32;
        if log_entries > 22 {
            return Err(Status::ExceedsLimit);
        }
        let memory =
            QueueMemory::new(table, host, mtt, log_page, offset, (self.stride as u64) << log_entries)
                .ok_or(Status::IcmError)?;
        // The guest zeroes the queue, and on the first lap a zero owner means "valid".
        let marked = memory.mark(host, 0..1 << log_entries, self.stride, OWNER);
        marked.map_err(|_| Status::BadParameter)?;
        let state = context.field(eq_context::STATE);
        let queue = Eq {
            memory,
            log_entries,
            vector: context.field(eq_context::VECTOR) as u16,
            producer: 0,
            consumer: 0,
            armed: state == 9,
            always_armed: state == 0xb,
            overflowed: false,
            stride: self.stride,
            moderation: Moderation::parse(context),
        };
        self.queues.insert(eqn, queue);
        Ok(())
    }

    /// HW2SW_EQ: returns a queue to the guest.
    pub(super) fn destroy(&mut self, eqn: u32) -> Result<(), Status> {
        self.routes.retain(|_, to| *to != eqn);
        self.queues.remove(&eqn).map(drop).ok_or(Status::BadResource)
    }

    /// QUERY_EQ: writes the state of a queue to `out`.
    pub(super) fn query(&self, eqn: u32, out: &mut Mailbox) -> Result<(), Status> {
        let queue = self.queues.get(&eqn).ok_or(Status::BadResource)?;
        let status: u32 = if queue.overflowed { 9 } else { 0 };
        let state: u32 = if queue.always_armed {
            0xb
        } else if queue.armed {
            9
        } else {
            0xa
        };
        out.set(eq_context::CONTEXT_STATUS, status);
        out.set(eq_context::STATE, state);
        out.set(eq_context::LOG_ENTRIES, queue.log_entries.into());
        queue.moderation.put(out);
        out.set(eq_context::VECTOR, queue.vector.into());
        out.set(eq_context::CONSUMER_INDEX, queue.consumer);
        out.set(eq_context::PRODUCER_INDEX, queue.producer);
        Ok(())
    }

    /// MAP_EQ: routes the events of `mask` to a queue or, if `unmap` is set, removes those routes.
    pub(super) fn route(&mut self, eqn: u32, mask: u64, unmap: bool) -> Result<(), Status> {
        if unmap {
            self.routes.retain(|&kind, to| mask >> kind & 1 == 0 || *to != eqn);
            return Ok(());
        }
        if !self.queues.contains_key(&eqn) {
            return Err(Status::BadResource);
        }
        for kind in (0..64).filter(|kind| mask >> kind & 1 != 0) {
            self.routes.insert(kind, eqn);
        }
        Ok(())
    }

    /// MAP_EQ as a master records it. The queue need not exist; `unmap` removes the routes of `mask` from
    /// every queue.
    pub(super) fn route_any(&mut self, eqn: u32, mask: u64, unmap: bool) {
        for kind in (0..64).filter(|kind| mask >> kind & 1 != 0) {
            if unmap {
                self.routes.remove(&kind);
            } else {
                self.routes.insert(kind, eqn);
            }
        }
    }

    /// Returns whether events of a type are routed to an existing queue.
    #[must_use]
    pub(super) fn routed(&self, kind: EventType) -> bool {
        self.routes.get(&(kind as u8)).is_some_and(|eqn| self.queues.contains_key(eqn))
    }

    /// Posts an event to the queue to which its type is routed. Without a route the event is lost, as on the
    /// card.
    pub(super) fn post(&mut self, event: &Event, host: &dyn Host) {
        match self.routes.get(&(event.kind as u8)) {
            Some(&eqn) => self.post_to(eqn, event, host),
            None => log::debug!("{:?} is routed to no event queue", event.kind),
        }
    }

    /// Posts an event to a queue.
    pub(super) fn post_to(&mut self, eqn: u32, event: &Event, host: &dyn Host) {
        let Some(queue) = self.queues.get_mut(&eqn) else { return };
        let entries = 1u32 << queue.log_entries;
        if queue.producer.wrapping_sub(queue.consumer) & 0xff_ffff >= entries {
            if !queue.overflowed {
                log::warn!("event queue {eqn} overflows");
            }
            queue.overflowed = true;
            return;
        }
        host.observe(&Observation::Event { eqn, entry: &event.entry });
        let mut entry = event.entry;
        eqe::OWNER.put(&mut entry, (queue.producer & entries != 0).into());
        let at =
            u64::from(queue.producer & (entries - 1)) * queue.stride as u64 + (queue.stride - ENTRY) as u64;
        if let Err(e) = queue.memory.publish(host, at, &entry) {
            log::warn!("event queue {eqn}: {e}");
            return;
        }
        queue.producer = queue.producer.wrapping_add(1);
        queue.fire(host);
    }

    /// Handles the doorbell of a queue: the guest has consumed entries up to `consumer` and, if `arm` is set,
    /// wants an interrupt. Unconsumed entries then raise one at once, because drivers do not check the queue
    /// again after arming it.
    pub(super) fn doorbell(&mut self, eqn: u32, consumer: u32, arm: bool, host: &dyn Host) {
        let Some(queue) = self.queues.get_mut(&eqn) else { return };
        queue.consumer = consumer & 0xff_ffff;
        if arm {
            queue.armed = true;
            if queue.producer & 0xff_ffff != queue.consumer {
                queue.fire(host);
            }
        }
    }
}
