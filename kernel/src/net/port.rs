//! An Ethernet port: one device, its resolver, and the distribution of its frames.
//!
//! RoCE frames go to the software RNIC, ARP and neighbour discovery to the resolver, all others to the host's
//! TCP stack. Frames are consumed in place and in the order of arrival. RNIC and stack may share a port: the
//! stack stops at a frame for the RNIC, and the RNIC copies a frame for the stack for later.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use neighbour::{FRAME_MAX, Resolution, Resolver, Traffic, classify};
use platform::Instant;
use verbs::MacAddr;

use super::nic::{ETHERNET_HEADER, Nic, Receive, Transmit};
use crate::sync::IrqMutex;
use crate::time;

/// Frames for the host that can wait while the RNIC polls. More are dropped, as a full ring would drop them.
const DEFERRED_MAX: usize = 32;
/// Frames that a service call handles at most if neither RNIC nor stack polls the port.
const SERVICE_BUDGET: usize = 64;
/// Tasks that can wait for addresses at a time.
const MAX_WAITERS: usize = 16;

/// Frames that were copied for later: a ring of buffers of one frame each.
struct DeferredFrames {
    bytes: Vec<u8>,
    lengths: [usize; DEFERRED_MAX],
    head: usize,
    len: usize,
    frame_max: usize,
}

impl DeferredFrames {
    fn push(&mut self, frame: &[u8]) -> bool {
        let slot = (self.head + self.len) % DEFERRED_MAX;
        let start = slot * self.frame_max;
        let Some(room) =
            self.bytes.get_mut(start..start + self.frame_max).and_then(|r| r.get_mut(..frame.len()))
        else {
            return false;
        };
        if self.len == DEFERRED_MAX {
            return false;
        }
        room.copy_from_slice(frame);
        self.lengths[slot] = frame.len();
        self.len += 1;
        true
    }

    fn front(&self) -> Option<&[u8]> {
        let start = self.head * self.frame_max;
        (self.len > 0).then(|| self.bytes.get(start..start + self.lengths[self.head]))?
    }

    fn pop(&mut self) {
        if self.len > 0 {
            self.head = (self.head + 1) % DEFERRED_MAX;
            self.len -= 1;
        }
    }
}

/// The part of a port that its lock protects.
pub(crate) struct Inner {
    pub device: Nic,
    /// The addresses of neighbours on the port's network.
    pub resolver: Resolver,
    deferred: DeferredFrames,
    waiters: Vec<Waker>,
    dropped: u64,
}

/// An Ethernet port. It is never freed.
pub(crate) struct Port {
    mac: MacAddr,
    mtu: usize,
    has_rnic: AtomicBool,
    has_stack: AtomicBool,
    inner: IrqMutex<Inner>,
}

/// Counters of frames.
#[cfg(feature = "selftest")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub received: u64,
    pub sent: u64,
    /// Frames received and dropped, because nothing handles them or there was no room.
    pub dropped: u64,
}

impl Port {
    /// Returns a port over a running device. This is the only allocation of a port.
    pub(crate) fn new(device: Nic) -> Self {
        let (mac, mtu) = (device.mac, device.mtu);
        let deferred = DeferredFrames {
            bytes: Vec::new(),
            lengths: [0; DEFERRED_MAX],
            head: 0,
            len: 0,
            frame_max: ETHERNET_HEADER + mtu,
        };
        let waiters = Vec::with_capacity(MAX_WAITERS);
        let inner = Inner { device, resolver: Resolver::new(mac), deferred, waiters, dropped: 0 };
        let no = || AtomicBool::new(false);
        Self { mac, mtu, has_rnic: no(), has_stack: no(), inner: IrqMutex::new(inner) }
    }

    /// Returns the port's Ethernet address.
    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Returns the largest payload of a frame, in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the number of frames so far.
    #[cfg(feature = "selftest")]
    pub(crate) fn counters(&self) -> Counters {
        let inner = self.inner.lock();
        Counters {
            received: inner.device.rx.frames(),
            sent: inner.device.tx.frames(),
            dropped: inner.dropped,
        }
    }

    /// Makes the host's stack handle frames of this port from now on.
    pub(crate) fn attach_stack(&self) {
        let mut inner = self.inner.lock();
        self.has_stack.store(true, Ordering::Relaxed);
        if self.has_rnic.load(Ordering::Relaxed) {
            inner.allocate_deferred();
        }
    }

    /// Makes the software RNIC handle RoCE frames of this port from now on.
    pub(crate) fn attach_rnic(&'static self) -> RocePort {
        let mut inner = self.inner.lock();
        self.has_rnic.store(true, Ordering::Relaxed);
        if self.has_stack.load(Ordering::Relaxed) {
            inner.allocate_deferred();
        }
        RocePort(self)
    }

    /// Runs `f` with the port locked.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Runs `f` with the port locked, unless the lock is held: for the last words of a processor that may
    /// hold it.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        self.inner.try_lock().map(|mut inner| f(&mut inner))
    }

    /// Returns true if a software RNIC handles RoCE frames.
    pub(crate) fn has_rnic(&self) -> bool {
        self.has_rnic.load(Ordering::Relaxed)
    }

    /// Returns true if a stack handles the host's frames.
    pub(crate) fn has_stack(&self) -> bool {
        self.has_stack.load(Ordering::Relaxed)
    }

    /// Runs the port's part of the poller: sends the resolver's frames, and consumes frames that nothing else
    /// handles. Bounded; neither allocates nor waits. Returns `true` if it did something.
    pub(crate) fn service(&self, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        let mut busy = false;
        if !self.has_rnic() && !self.has_stack() {
            busy = inner.drain(now);
        } else if !self.has_stack() {
            // The RNIC consumes frames in `receive`; the resolver's frames before it must not wait for that.
            busy = inner.take_neighbours(now);
        }
        inner.service(now) || busy
    }

    /// Returns the time at which [`service`](Self::service) has work next, if no frame arrives before.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.inner.lock().resolver.next_deadline()
    }

    /// Requests an interrupt at the next frame. Returns `true` if frames are waiting already.
    pub(crate) fn arm(&self) -> bool {
        self.inner.lock().device.arm()
    }

    /// Turns the device's interrupts off.
    pub(crate) fn disarm(&self) {
        self.inner.lock().device.disarm();
    }

    /// Makes the port answer for `ip` from now on. Returns `false` if it has eight addresses already.
    pub(crate) fn add_address(&self, ip: IpAddr) -> bool {
        self.inner.lock().resolver.add_own(ip)
    }

    /// Returns the Ethernet address of `ip` on this port's network, or `None` if there is no answer by
    /// `deadline`. The port must be polled meanwhile.
    #[cfg_attr(
        not(any(feature = "perftest", feature = "selftest")),
        expect(dead_code, reason = "only perftest and self-tests call it")
    )]
    pub(crate) async fn resolve(&self, ip: IpAddr, deadline: Instant) -> Option<MacAddr> {
        core::future::poll_fn(|cx| {
            let now = time::now();
            let mut inner = self.inner.lock();
            let found = match inner.resolver.lookup(now, ip) {
                Resolution::Unknown if now < deadline => inner.resolver.resolve(now, ip, deadline),
                found => found,
            };
            match found {
                Resolution::Known(mac) => core::task::Poll::Ready(Some(mac)),
                Resolution::Pending if now < deadline => {
                    let waker = cx.waker();
                    if !inner.waiters.iter().any(|w| w.will_wake(waker)) {
                        if inner.waiters.len() < MAX_WAITERS {
                            inner.waiters.push(waker.clone());
                        } else {
                            waker.wake_by_ref();
                        }
                    }
                    inner.service(now);
                    core::task::Poll::Pending
                }
                _ => core::task::Poll::Ready(None),
            }
        })
        .await
    }
}

impl Inner {
    fn allocate_deferred(&mut self) {
        if self.deferred.bytes.is_empty() {
            self.deferred.bytes = vec![0; DEFERRED_MAX * self.deferred.frame_max];
        }
    }

    /// Sends the resolver's frames and notifies the device, also of earlier frames that it still waits for.
    /// Returns `true` if frames were sent.
    pub(crate) fn service(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while self.resolver.next_deadline().is_some_and(|at| at <= now) {
            let tx = &mut self.device.tx;
            let Some(len) = tx.buffer(FRAME_MAX).and_then(|out| self.resolver.poll(now, out)) else { break };
            tx.send(len);
            busy = true;
        }
        self.device.tx.flush();
        self.device.rx.flush();
        busy
    }

    /// Passes the first waiting frame to the resolver, and wakes tasks that wait for an address.
    fn handle_neighbour(&mut self, now: Instant) {
        if let Some(frame) = self.device.rx.peek() {
            self.resolver.input(now, frame);
        }
        self.device.rx.pop();
        for waker in self.waiters.drain(..) {
            waker.wake();
        }
    }

    fn drop_frame(&mut self) {
        self.device.rx.pop();
        self.dropped += 1;
    }

    /// Consumes all frames; only the resolver's are handled.
    fn drain(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for _ in 0..SERVICE_BUDGET {
            match self.device.rx.peek().map(classify) {
                None => break,
                Some(Traffic::Neighbour) => self.handle_neighbour(now),
                Some(_) => self.drop_frame(),
            }
            busy = true;
        }
        busy
    }

    /// Consumes frames for the resolver, and for an absent stack, up to the first frame for the RNIC.
    fn take_neighbours(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for _ in 0..SERVICE_BUDGET {
            match self.device.rx.peek().map(classify) {
                None | Some(Traffic::Roce) => break,
                Some(Traffic::Neighbour) => self.handle_neighbour(now),
                Some(Traffic::Host) => self.drop_frame(),
            }
            busy = true;
        }
        busy
    }

    /// Returns true if a frame for the host's stack waits. Consumes the resolver's frames before it and,
    /// unless `rnic`, those for an absent RNIC. For the stack.
    pub(crate) fn has_host_frame(&mut self, now: Instant, rnic: bool) -> bool {
        if self.deferred.front().is_some() {
            return true;
        }
        for _ in 0..SERVICE_BUDGET {
            match self.device.rx.peek().map(classify) {
                Some(Traffic::Neighbour) => self.handle_neighbour(now),
                Some(Traffic::Roce) if !rnic => self.drop_frame(),
                Some(Traffic::Host) => return true,
                None | Some(Traffic::Roce) => return false,
            }
        }
        false
    }

    /// Returns the parts that the stack needs at the same time.
    pub(crate) fn split(&mut self) -> (HostFrames<'_>, &mut dyn Transmit, &mut Resolver) {
        (
            HostFrames { rx: &mut *self.device.rx, deferred: &mut self.deferred },
            &mut *self.device.tx,
            &mut self.resolver,
        )
    }
}

/// The frames of the host's stack.
pub(crate) struct HostFrames<'a> {
    rx: &'a mut dyn Receive,
    deferred: &'a mut DeferredFrames,
}

impl HostFrames<'_> {
    /// Passes the oldest frame to `each`, in place; an empty one if none waits. Call only if
    /// [`has_host_frame`](Inner::has_host_frame) returned true: otherwise the waiting frame may be another's.
    pub(crate) fn take<R>(self, each: impl FnOnce(&[u8]) -> R) -> R {
        if let Some(frame) = self.deferred.front() {
            let result = each(frame);
            self.deferred.pop();
            return result;
        }
        let result = each(self.rx.peek().unwrap_or_default());
        self.rx.pop();
        result
    }
}

/// A port, as the software RNIC uses it.
pub(crate) struct RocePort(&'static Port);

impl softroce::EthernetPort for RocePort {
    fn mac(&self) -> MacAddr {
        self.0.mac
    }

    fn mtu(&self) -> usize {
        self.0.mtu
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut inner = self.0.inner.lock();
        let has_stack = self.0.has_stack();
        let mut taken = 0;
        // Other frames have a budget of their own, so that a flood of them does not prolong this loop.
        let mut others = 0;
        while taken < budget && others < SERVICE_BUDGET {
            let Inner { device, deferred, dropped, .. } = &mut *inner;
            let Some(frame) = device.rx.peek() else { break };
            match classify(frame) {
                Traffic::Roce => {
                    each(frame);
                    device.rx.pop();
                    taken += 1;
                    continue;
                }
                Traffic::Neighbour => inner.handle_neighbour(time::now()),
                Traffic::Host => {
                    let kept = has_stack && deferred.push(frame);
                    *dropped += u64::from(!kept);
                    device.rx.pop();
                }
            }
            others += 1;
        }
        if others > 0 {
            inner.service(time::now());
        } else if taken > 0 {
            inner.device.rx.flush();
        }
        taken
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let tx = &mut self.0.inner.lock().device.tx;
        let Some(out) = tx.buffer(max_len) else { return false };
        let len = fill(out).min(max_len);
        if len > 0 {
            tx.send(len);
        }
        true
    }

    fn flush(&mut self) {
        self.0.inner.lock().device.tx.flush();
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }
}
