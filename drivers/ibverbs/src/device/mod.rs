//! [`IbvRnic`]: the trait's calls, on the objects of libibverbs.

mod cq;
mod open;
mod port;
mod qp;
mod raw;
mod work;

use crate::Arena;
use crate::sync::lock;
use crate::sysfs::Counters;
use cq::Cq;
use hashbrown::HashMap;
use platform::{Instant, Memory as _};
use port::Port;
use qp::{Qp, verbs_error};
use raw::{AsyncEvent, Channel, Context, Domain, QueuePair, Region};
use rdma_mummy_sys as ibv;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, MemoryKey, PortState, QpConnect, QpNum, QpOptions,
    RecvWr, Rnic, SendWr, VerbsError,
};
use work::{Limits, MAX_SGE};

pub use open::open;

/// The time between two checks for asynchronous events. A check is a system call, and little depends on it.
const EVENT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The kernel's errors for objects of a device that has gone.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
/// The maximum number of work requests in a queue, whatever the device supports.
const MAX_DEPTH: u32 = 16_384;

/// An RDMA device that the Linux kernel drives.
#[derive(Debug)]
pub struct IbvRnic {
    // Each object may only be destroyed before those below it. Reference counts ensure that.
    qps: RwLock<HashMap<QpNum, Arc<Qp>>>,
    cqs: RwLock<Vec<Option<Arc<Cq>>>>,
    channel: Arc<Channel>,
    region: Region,
    domain: Arc<Domain>,
    context: Arc<Context>,
    device: String,
    port: Port,
    limits: DeviceLimits,
    counters: Counters,
    state: Mutex<PortState>,
    failed: AtomicBool,
    /// True if an event may have arrived since [`Rnic::arm`].
    armed: AtomicBool,
    /// The time of the last check for asynchronous events, in nanoseconds.
    checked_at: AtomicU64,
}

/// The limits of the device, reduced to those that the driver uses.
#[derive(Clone, Copy, Debug)]
struct DeviceLimits {
    max_qps: u32,
    max_cqs: u32,
    max_cq_depth: u32,
    max_depth: u32,
    max_sge: u32,
    max_inline: u32,
}

impl IbvRnic {
    /// Returns the device's name, as `rdma link` shows it.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the descriptors to wait on: completions, once [`Rnic::arm`] has returned false, and
    /// asynchronous events. When one is readable, [`Rnic::progress`] takes the event.
    #[must_use]
    pub fn event_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.fd(), self.context.async_fd()]
    }

    fn qps(&self) -> RwLockReadGuard<'_, HashMap<QpNum, Arc<Qp>>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn qps_mut(&self) -> RwLockWriteGuard<'_, HashMap<QpNum, Arc<Qp>>> {
        self.qps.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn qp(&self, number: QpNum) -> Result<Arc<Qp>, VerbsError> {
        self.qps().get(&number).cloned().ok_or(VerbsError::NotFound)
    }

    fn cqs(&self) -> RwLockReadGuard<'_, Vec<Option<Arc<Cq>>>> {
        self.cqs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cq(&self, id: CqId) -> Option<Arc<Cq>> {
        self.cqs().get(usize::from(id.0)).cloned().flatten()
    }

    fn limits(&self) -> Limits<'_> {
        let arena: &Arena = self.region.arena();
        Limits {
            arena,
            lkey: self.region.lkey(),
            max_sge: self.limits.max_sge as usize,
            max_inline: self.limits.max_inline as usize,
            max_message: self.port.max_message,
        }
    }

    /// Interprets a completion of the device. Returns `None` if its queue pair has been destroyed.
    fn translate(&self, wc: &ibv::ibv_wc) -> Option<Completion> {
        // This field is valid for any status.
        let qp = self.qp(QpNum::new(wc.qp_num)).ok()?;
        qp.translate(wc)
    }

    /// Handles pending asynchronous events of the device. Returns true if any were pending.
    fn take_async_events(&self) -> bool {
        let (mut any, mut port) = (false, false);
        while let Some(event) = self.context.take_event() {
            any = true;
            match event {
                AsyncEvent::DeviceFatal => self.failed.store(true, Ordering::Release),
                AsyncEvent::Port => port = true,
                AsyncEvent::Other => {}
            }
        }
        if port && let Ok(state) = port::query_state(&self.context, self.port.number) {
            *lock(&self.state) = state;
        }
        any
    }

    fn check_alive(&self) -> Result<(), VerbsError> {
        if self.failed.load(Ordering::Acquire) { Err(VerbsError::DeviceFailed) } else { Ok(()) }
    }

    fn capacity(&self, send_depth: u32, recv_depth: u32) -> ibv::ibv_qp_cap {
        ibv::ibv_qp_cap {
            max_send_wr: send_depth,
            max_recv_wr: recv_depth,
            max_send_sge: self.limits.max_sge,
            max_recv_sge: self.limits.max_sge,
            max_inline_data: self.limits.max_inline,
        }
    }
}

impl Rnic for IbvRnic {
    fn attributes(&self) -> Attributes {
        let DeviceLimits { max_qps, max_depth, max_sge, max_inline, .. } = self.limits;
        Attributes {
            driver: "ibverbs",
            links: self.port.links(),
            port: self.port.address(),
            port_state: *lock(&self.state),
            max_mtu: self.port.max_mtu,
            max_qps,
            max_depth,
            max_sge,
            max_inline,
            max_rd_atomic: self.port.max_rd_atomic,
        }
    }

    fn memory_key(&self) -> MemoryKey {
        let (base, len) = self.region.arena().range();
        MemoryKey { rkey: self.region.rkey(), base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.check_alive()?;
        if options.depth == 0 || options.depth > self.limits.max_cq_depth {
            return Err(VerbsError::InvalidArgument);
        }
        let mut cqs = self.cqs.write().unwrap_or_else(PoisonError::into_inner);
        let free = cqs.iter().position(Option::is_none);
        let id = free.unwrap_or(cqs.len());
        if id as u64 >= u64::from(self.limits.max_cqs) {
            return Err(VerbsError::NoResources);
        }
        let number = u16::try_from(id).map_err(|_| VerbsError::NoResources)?;
        let cq = Cq::new(self.channel.clone(), options.depth).map_err(|e| verbs_error(&e))?;
        if id == cqs.len() {
            cqs.push(None);
        }
        if let Some(slot) = cqs.get_mut(id) {
            *slot = Some(Arc::new(cq));
        }
        Ok(CqId(number))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        let mut cqs = self.cqs.write().unwrap_or_else(PoisonError::into_inner);
        let slot = cqs.get_mut(usize::from(cq.0)).ok_or(VerbsError::NotFound)?;
        let cq = slot.as_ref().ok_or(VerbsError::NotFound)?;
        let uses = |qp: &Arc<Qp>| qp.cqs().iter().any(|used| Arc::ptr_eq(used, cq));
        if self.qps().values().any(uses) {
            return Err(VerbsError::InvalidState);
        }
        // The device's queue is destroyed when its last user has polled it.
        *slot = None;
        Ok(())
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        self.check_alive()?;
        let QpOptions { send_cq, recv_cq, send_depth, recv_depth } = options;
        let cq = |id| self.cq(id).ok_or(VerbsError::NotFound);
        let (send_cq, recv_cq) = (cq(send_cq)?, cq(recv_cq)?);
        if [send_depth, recv_depth].iter().any(|&depth| depth == 0 || depth > self.limits.max_depth) {
            return Err(VerbsError::InvalidArgument);
        }
        let cap = self.capacity(send_depth, recv_depth);
        let raw = QueuePair::new(self.domain.clone(), send_cq.raw().clone(), recv_cq.raw().clone(), cap)
            .map_err(|e| verbs_error(&e))?;
        let qp = Qp::new(raw, (send_cq, send_depth), (recv_cq, recv_depth), self.port.number)
            .map_err(|e| verbs_error(&e))?;
        let number = qp.number();
        self.qps_mut().insert(number, Arc::new(qp));
        Ok(number)
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        self.check_alive()?;
        self.qp(qp)?.connect(connect, &self.port)
    }

    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError> {
        let qp = self.qp(qp)?;
        let drain = || qp.cqs().into_iter().for_each(|cq| cq.drain(&mut |wc| self.translate(wc)));
        let raw = match qp.take() {
            Some(raw) => {
                qp::flush(&raw);
                // Takes completions as far as the device has come: cards discard them with the queue pair.
                drain();
                // The only reference left: `take` has taken those of the queues.
                Arc::into_inner(raw)
            }
            None => qp.take_undestroyed(),
        };
        // With the kernel's reply the device has released the queue pair.
        if let Err((raw, error)) = raw.ok_or(VerbsError::NotFound)?.destroy() {
            // If the device has gone, the kernel has destroyed everything itself.
            let gone = matches!(error.raw_os_error(), Some(EIO | ENODEV)) && self.check_alive().is_err();
            if !gone {
                qp.keep(raw);
                return Err(VerbsError::StillServed);
            }
            raw.forget();
        }
        drain();
        qp.flush_all();
        self.qps_mut().remove(&qp.number());
        Ok(())
    }

    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.check_alive().map_err(|e| (0, e))?;
        self.qp(qp).map_err(|e| (0, e))?.post_send(work, &self.limits())
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.check_alive().map_err(|e| (0, e))?;
        self.qp(qp).map_err(|e| (0, e))?.post_recv(work, &self.limits())
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        self.cq(cq).map_or(0, |cq| cq.poll(out, &mut |wc| self.translate(wc)))
    }

    fn progress(&self, now: Instant, _budget: usize) -> bool {
        let woken = self.armed.swap(false, Ordering::AcqRel);
        let completions = woken && self.channel.take_events();
        let checked_at = Instant::from_nanos(self.checked_at.load(Ordering::Relaxed));
        // A thread that an event has woken must take the event, or it would be woken again.
        let due = woken || now.saturating_since(checked_at) >= EVENT_CHECK_INTERVAL;
        if due {
            self.checked_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        let events = due && self.take_async_events();
        completions || events
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&self) -> bool {
        self.armed.store(true, Ordering::Release);
        // All queues are armed: one that is not armed would wake nobody.
        let mut waits = false;
        for cq in self.cqs().iter().flatten() {
            waits |= cq.arm(&mut |wc| self.translate(wc));
        }
        waits
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        self.counters.for_each(each);
    }
}
