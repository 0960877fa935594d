//! The [`Rnic`] implementation.

use crate::config::{Layer, Remote};
use crate::control::Target;
use crate::cq::Cq;
use crate::hardware::Hardware;
use crate::port::Link;
use crate::qp::context::Service;
use crate::qp::queue::{QpRings, Shape};
use crate::qp::{PostResult, Qp, QpState};
use crate::wqe::{MAX_ELEMENTS, MAX_INLINE, PostLimits};
use crate::{Mlx4, QpLock, memory_region};
use core::sync::atomic::Ordering;
use lock_api::RawMutex;
use platform::Instant;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, MemoryKey, PathMtu, PortAddress, QpConnect, QpNum,
    QpOptions, RecvWr, RemoteKey, Rnic, SendWr, UdOptions, UdQp, UdSendWr, VerbsError,
};

/// The highest service level of InfiniBand.
const MAX_SERVICE_LEVEL: u8 = 15;

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    fn limits(&self) -> PostLimits<'_, H> {
        PostLimits { hw: &self.hw, key: &self.key, max_message: &self.max_message }
    }

    fn max_mtu(&self) -> Option<PathMtu> {
        self.link.lock().mtu
    }

    fn slot(&self, qp: QpNum) -> Option<&QpLock<R, H::Block>> {
        self.slots.get(QpRings::<H::Block>::slot_of(qp))
    }

    /// Calls `act` with a queue pair, whose lock is held.
    #[inline]
    fn with_qp<T>(&self, qp: QpNum, act: impl FnOnce(&mut Qp<H::Block>) -> T) -> Option<T> {
        let mut slot = self.slot(qp)?.lock();
        slot.as_deref_mut().filter(|slot| slot.queue.number() == qp).map(act)
    }

    /// Calls `act` with a queue pair to post to, whose lock is held.
    #[inline(always)]
    fn posting(&self, qp: QpNum, act: impl FnOnce(&mut Qp<H::Block>) -> PostResult) -> PostResult {
        self.check_alive().map_err(|error| (0, error))?;
        let Some(lock) = self.slot(qp) else { return Err((0, VerbsError::NotFound)) };
        let mut place = lock.lock();
        match &mut *place {
            Some(slot) if slot.attributes.number == qp => act(slot),
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

    /// Makes a queue pair whose sends complete into `cqs[0]` and whose receives into `cqs[1]`. `depths` has
    /// the same order.
    fn create(&self, service: Service, cqs: [CqId; 2], depths: [u32; 2]) -> Result<QpNum, VerbsError> {
        self.check_alive()?;
        // The control lock is held to the end, so nobody destroys one of its completion queues in between.
        self.with_control(|control| {
            let [send, receive] = cqs.map(|id| self.target(id));
            let slot =
                control.create_qp(&self.hw, &control.card.clone(), service, depths, [send?, receive?])?;
            let number = slot.queue.number();
            let index = QpRings::<H::Block>::slot_of(number);
            for id in cqs {
                self.with_cq(id, |cq| cq.attach(index, slot.queue.clone()))?;
            }
            *self.slot(number).ok_or(VerbsError::NoResources)?.lock() = Some(slot.into());
            Ok(number)
        })
    }

    /// Completes the outstanding work of a queue pair, which the card has released, as flushed.
    pub(crate) fn flush(&self, slot: &Qp<H::Block>) -> Result<(), VerbsError> {
        let index = QpRings::<H::Block>::slot_of(slot.queue.number());
        let one = slot.send_cq == slot.recv_cq;
        self.with_cq(slot.send_cq, |cq| {
            cq.detach(index, |queue, out| {
                queue.flush_sends(out);
                if one {
                    queue.flush_receives(out);
                }
            });
        })?;
        if !one {
            self.with_cq(slot.recv_cq, |cq| cq.detach(index, QpRings::flush_receives))?;
        }
        Ok(())
    }

    fn target(&self, id: CqId) -> Result<Target, VerbsError> {
        self.with_cq(id, |cq| Target { id, number: cq.number(), credit: cq.credit.clone() })
    }
}

impl<H: Hardware, R: RawMutex + Send + Sync> Rnic for Mlx4<H, R> {
    fn attributes(&self) -> Attributes {
        let capabilities = &self.card.capabilities;
        let Link { state, gid, lid, mtu } = *self.link.lock();
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
            Remote::Ranges(ranges) => memory_region::span(ranges),
        };
        MemoryKey { rkey: RemoteKey(self.remote_key.load(Ordering::Relaxed)), base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.check_alive()?;
        let (id, cq) =
            self.with_control(|control| control.create_cq(&self.hw, &control.card.clone(), options))?;
        self.cq(id).ok_or(VerbsError::NoResources)?.put(cq);
        Ok(id)
    }

    fn destroy_cq(&self, id: CqId) -> Result<(), VerbsError> {
        self.with_control(|control| {
            let lock = self.cq(id).ok_or(VerbsError::NotFound)?;
            let taken = {
                let mut place = lock.queue.lock();
                let cq = place.as_ref().ok_or(VerbsError::NotFound)?;
                if cq.is_used() {
                    return Err(VerbsError::InvalidState);
                }
                place.take()
            };
            let Some(cq) = taken else { return Err(VerbsError::NotFound) };
            control.destroy_cq(&self.hw, id, &cq).inspect_err(|_| {
                // The card may still write into its memory.
                *lock.queue.lock() = Some(cq);
            })
        })
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        let QpOptions { send_cq, recv_cq, send_depth, recv_depth } = options;
        self.create(Service::Reliable, [send_cq, recv_cq], [send_depth, recv_depth])
    }

    fn create_ud_qp(&self, options: UdOptions) -> Result<UdQp, VerbsError> {
        let UdOptions { send_cq, recv_cq, send_depth, recv_depth, qkey } = options;
        self.create(Service::Datagram(qkey), [send_cq, recv_cq], [send_depth, recv_depth]).map(UdQp::new)
    }

    fn post_send_ud(&self, qp: UdQp, work: &[UdSendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        // A datagram is one packet.
        let most = self.max_mtu().map_or(0, PathMtu::bytes) as u64;
        let limits = PostLimits { max_message: &most, ..self.limits() };
        self.posting(qp.number(), |slot| slot.post_datagrams(&limits, self.card.port, work))
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        self.check_alive()?;
        let rd_atomic = connect.max_rd_atomic <= self.card.capabilities.max_rd_atomic;
        let link = *self.link.lock();
        let level = connect.address.service_level <= MAX_SERVICE_LEVEL;
        if !rd_atomic || !level || link.mtu.is_none_or(|largest| connect.mtu > largest) {
            return Err(VerbsError::InvalidArgument);
        }
        // The control lock is held to the end, so nobody else connects or destroys a queue pair in between.
        self.with_control(|control| {
            let known = self.with_qp(qp, |slot| (slot.state, slot.attributes));
            let (state, attributes) = known.ok_or(VerbsError::NotFound)?;
            if attributes.service != Service::Reliable {
                return Err(VerbsError::InvalidArgument);
            }
            if state != QpState::Created {
                return Err(VerbsError::InvalidState);
            }
            control.connect_qp(&self.hw, &control.card.clone(), &attributes, connect, &link)?;
            self.with_qp(qp, |slot| slot.state = QpState::Connected).ok_or(VerbsError::NotFound)
        })
    }

    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError> {
        self.with_control(|control| {
            // From here on nothing can be posted.
            let lock = self.slot(qp).ok_or(VerbsError::NotFound)?;
            let taken = lock.lock().take_if(|slot| slot.queue.number() == qp);
            let slot = taken.ok_or(VerbsError::NotFound)?;
            let reset = match slot.state {
                QpState::Lost => Ok(()),
                QpState::Created | QpState::Connected => control.reset_qp(&self.hw, &slot.attributes),
            };
            if let Err(error) = reset {
                self.fail("it does not release a queue pair");
                if !self.is_cut_off() && !self.cut_off() {
                    // The card may continue to serve the queue pair, which stays for another attempt: a reset
                    // ends it.
                    *lock.lock() = Some(slot);
                    return Err(VerbsError::StillServed);
                }
                self.destroyed_posts.lock().add(slot.posts);
                let flushed = self.flush(&slot);
                // After a reset the card may reach memory and use the rings again: their memory is never
                // reused.
                core::mem::forget(slot);
                return flushed.and(Err(error.into()));
            }
            self.destroyed_posts.lock().add(slot.posts);
            let flushed = self.flush(&slot);
            control.release_qp(&self.hw, &slot);
            flushed
        })
    }

    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.posting(qp, |slot| slot.post_send(&self.limits(), work))
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.posting(qp, |slot| slot.post_recv(&self.limits(), work))
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

    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::from_nanos(self.next_health.load(Ordering::Relaxed)))
    }

    fn arm(&self) -> bool {
        let mut waits = false;
        for place in &self.cqs {
            if let Some(cq) = &*place.queue.lock() {
                waits |= cq.arm(&self.hw);
            }
        }
        if let Some(packets) = &mut *self.agent.lock() {
            waits |= packets.arm(&self.hw);
        }
        if let Some(frames) = &mut *self.frames.lock() {
            waits |= frames.packets.arm(&self.hw);
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
            .map(|place| place.queue.lock().as_ref().map_or(0, |cq| cq.unexpected_entries()))
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
            ("qp_errors", count(&self.qp_errors)),
            ("cq_errors", count(&self.cq_errors)),
            ("stray_completions", unexpected),
            ("card_resets", count(&self.resets)),
        ] {
            each((name, value));
        }
    }
}
