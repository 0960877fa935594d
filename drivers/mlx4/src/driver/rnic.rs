//! The [`Rnic`] implementation of the driver.

use super::{Mlx4, NO_NUMBER, QpLock};
use crate::config::{Layer, Remote};
use crate::datapath::ring::{QpRings, Shape};
use crate::datapath::wqe::{ListCheck, MAX_ELEMENTS, MAX_INLINE, PostLimits};
use crate::hardware::Hardware;
use crate::objects::cq::{Cq, CqRef};
use crate::objects::mr;
use crate::objects::port::Link;
use crate::objects::qp::{Cqs, PostResult, Qp, QpState};
use crate::objects::qp_context::Service;
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::RawMutex;
use platform::Instant;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, MemoryKey, PathMtu, PortAddress, QpConnect, QpNum,
    QpOptions, RecvWr, RemoteKey, Rnic, SendWr, UdOptions, UdQp, UdSendWr, VerbsError,
};

/// The highest service level of InfiniBand.
const MAX_SERVICE_LEVEL: u8 = 15;

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    const fn list_check(&self) -> ListCheck<'_, H> {
        ListCheck { hw: &self.hw, limits: &self.limits }
    }

    fn max_mtu(&self) -> Option<PathMtu> {
        self.link.lock().mtu
    }

    fn slot(&self, number: QpNum) -> Option<&QpLock<H::Block>> {
        self.slots.get(QpRings::<H::Block>::slot_of(number))
    }

    /// Calls `act` with a queue pair, whose lock is held.
    #[inline]
    fn with_qp<T>(&self, number: QpNum, act: impl FnOnce(&mut Qp<H::Block>) -> T) -> Option<T> {
        let mut slot = self.slot(number)?.lock();
        slot.as_deref_mut().filter(|qp| qp.rings.number() == number).map(act)
    }

    /// Calls `act` with a queue pair to post to, whose lock is held.
    #[inline(always)]
    fn posting(&self, number: QpNum, act: impl FnOnce(&mut Qp<H::Block>) -> PostResult) -> PostResult {
        self.check_alive().map_err(|error| (0, error))?;
        let Some(slot) = self.slot(number) else { return Err((0, VerbsError::NotFound)) };
        match &mut *slot.lock() {
            Some(qp) if qp.attributes.number == number => act(qp),
            _ => Err((0, VerbsError::NotFound)),
        }
    }

    /// Calls `act` with a completion queue, whose lock is held.
    fn with_cq<T>(&self, id: CqId, act: impl FnOnce(&mut Cq<H::Block>) -> T) -> Result<T, VerbsError> {
        let cq = self.cq(id).ok_or(VerbsError::NotFound)?;
        cq.queue.lock().as_deref_mut().map(act).ok_or(VerbsError::NotFound)
    }

    fn check_alive(&self) -> Result<(), VerbsError> {
        if self.has_failed() { Err(VerbsError::DeviceFailed) } else { Ok(()) }
    }

    /// Makes a queue pair of a service.
    fn create(&self, service: Service, options: QpOptions) -> Result<QpNum, VerbsError> {
        let QpOptions { send_cq, recv_cq, send_depth, recv_depth } = options;
        self.check_alive()?;
        // The control lock is held to the end, so nobody destroys one of its completion queues in between.
        self.with_control(|control| {
            let cqs = Cqs { send: self.cq_reference(send_cq)?, receive: self.cq_reference(recv_cq)? };
            let log_entries = self.card.capabilities.log_send_entries;
            let shape = Shape::new(send_depth, recv_depth, log_entries).ok_or(VerbsError::InvalidArgument)?;
            let qp = control.create_qp(service, shape, cqs)?;
            let number = qp.rings.number();
            let index = QpRings::<H::Block>::slot_of(number);
            for id in [send_cq, recv_cq] {
                self.with_cq(id, |cq| cq.attach(index, qp.rings.clone()))?;
            }
            *self.slot(number).ok_or(VerbsError::NoResources)?.lock() = Some(qp.into());
            Ok(number)
        })
    }

    /// Completes the outstanding work of a queue pair, which the card has released, as flushed.
    pub(super) fn flush(&self, qp: &Qp<H::Block>) -> Result<(), VerbsError> {
        let index = QpRings::<H::Block>::slot_of(qp.rings.number());
        let Cqs { send, receive } = &qp.cqs;
        let one = send.id == receive.id;
        self.with_cq(send.id, |cq| {
            cq.detach(index, |rings, out| {
                rings.flush_sends(out);
                if one {
                    rings.flush_receives(out);
                }
            });
        })?;
        if !one {
            self.with_cq(receive.id, |cq| cq.detach(index, QpRings::flush_receives))?;
        }
        Ok(())
    }

    fn cq_reference(&self, id: CqId) -> Result<CqRef, VerbsError> {
        self.with_cq(id, |cq| cq.reference(id))
    }
}

impl<H: Hardware, R: RawMutex + Send + Sync> Rnic for Mlx4<H, R> {
    fn attributes(&self) -> Attributes {
        let capabilities = &self.card.capabilities;
        let Link { state, gid, lid, mtu, .. } = *self.link.lock();
        Attributes {
            driver: "mlx4",
            links: self.card.port.links(),
            port: PortAddress { mac: self.card.info.mac, gid, lid },
            port_state: state,
            max_mtu: mtu.unwrap_or(PathMtu::B256),
            max_qps: self.card.max_qps,
            max_depth: (1 << capabilities.log_send_entries) - Shape::SPARE,
            max_sge: MAX_ELEMENTS as u32,
            max_inline: MAX_INLINE as u32,
            max_rd_atomic: capabilities.max_rd_atomic,
        }
    }

    fn memory_key(&self) -> MemoryKey {
        let (base, len) = match &self.config.remote {
            Remote::Physical => self.hw.memory().range(),
            Remote::Ranges(ranges) => mr::span(ranges),
        };
        MemoryKey { rkey: RemoteKey(self.remote_key.load(Ordering::Relaxed)), base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.check_alive()?;
        let (id, cq) = self.with_control(|control| control.create_cq(options))?;
        self.cq(id).ok_or(VerbsError::NoResources)?.put(cq.into());
        Ok(id)
    }

    fn destroy_cq(&self, id: CqId) -> Result<(), VerbsError> {
        self.with_control(|control| {
            let lock = self.cq(id).ok_or(VerbsError::NotFound)?;
            let taken = {
                let mut slot = lock.queue.lock();
                let cq = slot.as_ref().ok_or(VerbsError::NotFound)?;
                if cq.is_used() {
                    return Err(VerbsError::InvalidState);
                }
                slot.take()
            };
            let Some(cq) = taken else { return Err(VerbsError::NotFound) };
            lock.name(NO_NUMBER);
            control.destroy_cq(id, &cq).inspect_err(|_| {
                // The card may still write into its memory.
                lock.put(cq);
            })
        })
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        self.create(Service::Reliable, options)
    }

    fn create_ud_qp(&self, options: UdOptions) -> Result<UdQp, VerbsError> {
        let UdOptions { send_cq, recv_cq, send_depth, recv_depth, qkey } = options;
        let options = QpOptions { send_cq, recv_cq, send_depth, recv_depth };
        self.create(Service::Datagram(qkey), options).map(UdQp::new)
    }

    fn post_send_ud(&self, qp: UdQp, work: &[UdSendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        // A datagram is one packet.
        let max_message = self.max_mtu().map_or(0, PathMtu::bytes) as u64;
        let key = AtomicU32::new(self.limits.key.load(Ordering::Relaxed));
        let limits = PostLimits { key, max_message };
        let check = ListCheck { hw: &self.hw, limits: &limits };
        self.posting(qp.number(), |qp| qp.post_datagrams(check, self.card.port, work))
    }

    fn connect_qp(&self, number: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        self.check_alive()?;
        let rd_atomic = connect.max_rd_atomic <= self.card.capabilities.max_rd_atomic;
        let link = *self.link.lock();
        let level = connect.address.service_level <= MAX_SERVICE_LEVEL;
        if !rd_atomic || !level || link.mtu.is_none_or(|largest| connect.mtu > largest) {
            return Err(VerbsError::InvalidArgument);
        }
        // The control lock is held to the end, so nobody else connects or destroys a queue pair in between.
        self.with_control(|control| {
            let known = self.with_qp(number, |qp| (qp.state, qp.attributes));
            let (state, attributes) = known.ok_or(VerbsError::NotFound)?;
            if attributes.service != Service::Reliable {
                return Err(VerbsError::InvalidArgument);
            }
            if state != QpState::Created {
                return Err(VerbsError::InvalidState);
            }
            control.connect_qp(&attributes, connect, &link)?;
            self.with_qp(number, |qp| qp.state = QpState::Connected).ok_or(VerbsError::NotFound)
        })
    }

    fn destroy_qp(&self, number: QpNum) -> Result<(), VerbsError> {
        self.with_control(|control| {
            // From here on nothing can be posted.
            let slot = self.slot(number).ok_or(VerbsError::NotFound)?;
            let taken = slot.lock().take_if(|qp| qp.rings.number() == number);
            let qp = taken.ok_or(VerbsError::NotFound)?;
            let reset = match qp.state {
                QpState::Lost => Ok(()),
                QpState::Created | QpState::Connected => control.reset_qp(&qp.attributes),
            };
            if let Err(error) = reset {
                self.fail("it does not release a queue pair");
                if !self.is_cut_off() && !self.cut_off() {
                    // The card may continue to serve the queue pair, which stays for another attempt: a reset
                    // ends it.
                    *slot.lock() = Some(qp);
                    return Err(VerbsError::StillServed);
                }
                self.destroyed_posts.lock().add(qp.posts);
                let flushed = self.flush(&qp);
                // After a reset the card may reach memory and use the rings again: their memory is never
                // reused.
                core::mem::forget(qp);
                return flushed.and(Err(error.into()));
            }
            self.destroyed_posts.lock().add(qp.posts);
            let flushed = self.flush(&qp);
            control.release_qp(&qp);
            flushed
        })
    }

    fn post_send(&self, number: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.posting(number, |qp| qp.post_send(self.list_check(), work))
    }

    fn post_recv(&self, number: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.posting(number, |qp| qp.post_recv(self.list_check(), work))
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        self.with_cq(cq, |cq| cq.poll(out)).unwrap_or(0)
    }

    fn progress(&self, now: Instant, budget: usize) -> bool {
        self.watch_health(now);
        if self.has_failed() {
            return false;
        }
        let any = self.take_events(budget);
        match self.card.port.layer {
            Layer::Ethernet => any,
            Layer::InfiniBand => self.serve_subnet(budget) | any,
        }
    }

    fn works_alone(&self) -> bool {
        true
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.health.next_poll())
    }

    fn arm(&self) -> bool {
        let mut waits = false;
        for slot in &self.cqs {
            if let Some(cq) = slot.queue.lock().as_deref_mut() {
                cq.on_events(slot.events.swap(0, Ordering::Relaxed));
                waits |= cq.arm(&self.hw);
            }
        }
        if let Some(packets) = &mut *self.agent.lock() {
            waits |= packets.arm(&self.hw);
        }
        for frames in &self.frames {
            if let Some(frames) = &mut *frames.lock() {
                waits |= frames.packets.arm(&self.hw);
            }
        }
        if !waits && let Some(mut eq) = self.eq.try_lock() {
            eq.update_consumer_index(&self.hw, true);
        }
        waits
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        let unexpected = self
            .cqs
            .iter()
            .map(|slot| slot.queue.lock().as_ref().map_or(0, |cq| cq.unexpected_entries()))
            .sum();
        let (mut posts, mut queue_pairs) = (*self.destroyed_posts.lock(), 0);
        for lock in &*self.slots {
            if let Some(slot) = &*lock.lock() {
                queue_pairs += 1;
                posts.add(slot.posts);
            }
        }
        let count = |counter: &core::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        for (name, value) in [
            ("queue_pairs", queue_pairs),
            ("tx_requests", posts.sends),
            ("tx_doorbells", posts.doorbells),
            ("tx_blue_flames", posts.blue_flames),
            ("qp_errors", count(&self.counts.qp_errors)),
            ("cq_errors", count(&self.counts.cq_errors)),
            ("stray_completions", unexpected),
            ("card_resets", count(&self.counts.resets)),
        ] {
            each((name, value));
        }
    }
}
