//! Quality of service at the sender: priorities, by one of the paper's two schemes, and limits for each
//! application.
//!
//! A handle ([`Lite`], and the [`Lmr`](crate::Lmr)s that come from it) has a [`Priority`] and may belong to
//! an [`App`]. An operation without an application under no scheme costs one load and is not counted. The
//! schemes are those of the paper's section on quality of service: **HW-Sep** gives low priority a queue
//! pair of its own, **SW-Pri** delays operations of low priority at the sender. They apply to reads, writes
//! and atomics; limits apply to calls as well.

use crate::lock::Mutex;
use crate::node::Node;
use crate::wait::Waiters;
use crate::{Error, Lite};
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

/// The importance of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Yields to high priority.
    Low,
    /// Uses the queue pairs of high priority; no operation yields to it.
    #[default]
    Normal,
    /// Operations of low priority yield to it.
    High,
}

/// The way in which priorities are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Priorities have no effect.
    #[default]
    None,
    /// Separates priorities by queue pairs: low priority uses the last queue pair of a connection, the
    /// others use the rest (with two queue pairs, that of RPC). Needs
    /// [`Config::queue_pairs`](crate::Config::queue_pairs) of at least 2.
    HwSep,
    /// Delays operations of low priority before they are posted. The first row that applies counts; the
    /// times are the original's.
    ///
    /// | condition | delay |
    /// |---|---|
    /// | at least `busy` operations of high priority are in flight | 96 to 128 µs |
    /// | operations of high priority are slow | 64 to 128 µs |
    /// | some of high priority are in flight, but fewer than of low priority | 32 to 64 µs |
    SwPri {
        /// The number of high-priority operations in flight that counts as busy. The original LITE used 2.
        busy: u32,
        /// The average latency above which high priority counts as slow. It is a moving average, and counts
        /// for 100 ms after the last operation of high priority. The original LITE used 32 µs.
        slow: Duration,
    },
}

impl Scheme {
    /// SW-Pri with the bounds of the original LITE.
    pub const SW_PRI: Self = Self::SwPri { busy: 2, slow: Duration::from_micros(32) };
}

/// The limits of an application on this node; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The rate of operations and calls, in bytes per second, beyond a first [`burst`](Self::burst).
    /// Further ones wait.
    pub bytes_per_second: Option<u64>,
    /// The number of bytes that may be sent at once after a pause.
    pub burst: u64,
    /// The number of operations and calls in flight. Further ones wait.
    pub outstanding: Option<u32>,
    /// The number of bytes of regions that are allocated through the application's handles and still held.
    /// Further allocations are refused.
    pub memory: Option<u64>,
}

/// The use that an application makes, and has made, of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of operations and calls begun.
    pub operations: u64,
    /// The bytes of all operations and calls begun.
    pub bytes: u64,
    /// The number of operations and calls in flight.
    pub outstanding: u32,
    /// The bytes of regions that are allocated and held.
    pub memory: u64,
    /// The number of times that an operation had to wait for a limit.
    pub delayed: u64,
    /// The number of operations that were refused, or that waited for a limit until their deadline.
    pub refused: u64,
}

struct Account {
    limits: Limits,
    usage: Usage,
    /// The time at which all bytes so far have been sent at the limit's rate.
    paid: Instant,
}

struct AppState {
    name: String,
    account: Mutex<Account>,
    change: Waiters,
}

/// An application, to which use is counted and limits apply. Clones stand for the same application.
#[derive(Clone)]
pub struct App(Arc<AppState>);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "app {}: {:?}", self.0.name, self.usage())
    }
}

impl App {
    /// Returns a new application without any use.
    #[must_use]
    pub fn new(name: &str, limits: Limits) -> Self {
        let account = Account { limits, usage: Usage::default(), paid: Instant::ZERO };
        let account = Mutex::new(account);
        Self(Arc::new(AppState { name: name.into(), account, change: Waiters::default() }))
    }

    /// Returns the name of the application.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the use that it makes and has made.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.account.lock().usage
    }

    /// Replaces the limits.
    pub fn set_limits(&self, limits: Limits) {
        self.0.account.lock().limits = limits;
        self.0.change.wake_all();
    }

    /// Returns whether the application has as many operations in flight as it may.
    fn is_full(&self) -> bool {
        let account = self.0.account.lock();
        account.limits.outstanding.is_some_and(|most| account.usage.outstanding >= most.max(1))
    }

    /// Counts an operation of `bytes` as begun and returns the time at which it may go; fails with
    /// `Deadline` if that is too late. Returns `None`, and counts nothing, if too many operations are in
    /// flight.
    fn enter(&self, now: Instant, bytes: u64, deadline: Instant) -> Option<Result<Instant, Error>> {
        let mut account = self.0.account.lock();
        let Account { limits, usage, paid } = &mut *account;
        if limits.outstanding.is_some_and(|most| usage.outstanding >= most.max(1)) {
            return None;
        }
        let mut go = now;
        if let Some(rate) = limits.bytes_per_second {
            let time = |bytes: u64| {
                let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
                Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
            };
            let begin = (*paid).max(now);
            go = now + (begin + time(bytes)).saturating_since(now + time(limits.burst.max(bytes)));
            if go >= deadline {
                usage.refused += 1;
                return Some(Err(Error::Deadline));
            }
            *paid = begin + time(bytes);
        }
        usage.operations += 1;
        usage.bytes += bytes;
        usage.outstanding += 1;
        usage.delayed += u64::from(go > now);
        Some(Ok(go))
    }
}

/// The priority and the application of an operation.
#[derive(Clone, Default)]
pub(crate) struct Class {
    priority: Priority,
    app: Option<App>,
}

/// The queue pairs that an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All queue pairs but that of RPC.
    All,
    /// The last queue pair.
    Low,
    /// All queue pairs but the last.
    High,
}

const NONE: u8 = 0;
const HW_SEP: u8 = 1;
const SW_PRI: u8 = 2;
/// The time for which a slow operation of high priority counts.
const WINDOW: Duration = Duration::from_millis(100);

/// The state of the schemes on a node.
#[derive(Default)]
pub(crate) struct Qos {
    scheme: AtomicU8,
    busy: AtomicU32,
    slow_ns: AtomicU64,
    high: AtomicU32,
    low: AtomicU32,
    /// The moving average of the latency of high-priority operations in nanoseconds, and the time at which
    /// the last one ended.
    taken_ns: AtomicU64,
    last_ns: AtomicU64,
}

/// An operation that has been admitted; dropping it returns what the operation counted against its limits.
pub(crate) struct Ticket {
    node: Arc<Node>,
    app: Option<App>,
    /// Set under SW-Pri: the priority of the operation and the time at which it began.
    counted: Option<(Priority, Instant)>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(app) = &self.app {
            let mut account = app.0.account.lock();
            account.usage.outstanding -= 1;
            drop(account);
            app.0.change.wake_all();
        }
        let qos = &self.node.qos;
        match self.counted {
            Some((Priority::High, begun)) => {
                qos.high.fetch_sub(1, Ordering::Relaxed);
                let now = self.node.platform.now();
                let taken = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
                let before = qos.taken_ns.load(Ordering::Relaxed);
                let average = before / 8 * 7 + taken / 8;
                qos.taken_ns.store(if qos.is_fresh(now) { average } else { taken }, Ordering::Relaxed);
                qos.last_ns.store(now.as_nanos(), Ordering::Relaxed);
            }
            Some((Priority::Low, _)) => {
                qos.low.fetch_sub(1, Ordering::Relaxed);
            }
            Some((Priority::Normal, _)) | None => {}
        }
    }
}

impl Qos {
    /// Returns whether an operation of `app` needs a [`Ticket`].
    #[inline]
    fn rates(&self, app: Option<&App>) -> bool {
        app.is_some() || self.scheme.load(Ordering::Relaxed) == SW_PRI
    }

    /// Returns the queue pairs that operations of `priority` use now.
    #[inline]
    fn share(&self, priority: Priority) -> Share {
        match (self.scheme.load(Ordering::Relaxed), priority) {
            (HW_SEP, Priority::Low) => Share::Low,
            (HW_SEP, _) => Share::High,
            _ => Share::All,
        }
    }

    fn is_fresh(&self, now: Instant) -> bool {
        let last = self.last_ns.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Instant::from_nanos(last)) < WINDOW
    }

    /// Returns the least and the most time that an operation of low priority waits, in microseconds.
    fn pause(&self, now: Instant) -> Option<(u64, u64)> {
        let high = self.high.load(Ordering::Relaxed);
        if high >= self.busy.load(Ordering::Relaxed) {
            return Some((96, 128));
        }
        if self.is_fresh(now) && self.taken_ns.load(Ordering::Relaxed) > self.slow_ns.load(Ordering::Relaxed)
        {
            return Some((64, 128));
        }
        (high > 0 && high < self.low.load(Ordering::Relaxed)).then_some((32, 64))
    }
}

impl Class {
    pub(crate) fn with_priority(&self, priority: Priority) -> Self {
        Self { priority, ..self.clone() }
    }

    /// Returns whether an operation needs a [`Ticket`].
    #[inline]
    pub(crate) fn is_rated(&self, node: &Node) -> bool {
        node.qos.rates(self.app.as_ref())
    }

    #[inline]
    pub(crate) fn share(&self, node: &Node) -> Share {
        node.qos.share(self.priority)
    }

    /// Returns whether the application has as many operations in flight as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.app.as_ref().is_some_and(App::is_full)
    }

    /// Counts an allocation of `bytes` against the application's limit; fails with `NoMemory` beyond it.
    pub(crate) fn hold(&self, bytes: u64) -> Result<MemoryCharge, Error> {
        let Some(app) = &self.app else { return Ok(MemoryCharge(None)) };
        let mut account = app.0.account.lock();
        let Account { limits, usage, .. } = &mut *account;
        let free = limits.memory.map_or(u64::MAX, |most| most.saturating_sub(usage.memory));
        if bytes > free {
            usage.refused += 1;
            return Err(Error::NoMemory { asked: bytes, free });
        }
        usage.memory += bytes;
        Ok(MemoryCharge(Some((app.clone(), bytes))))
    }
}

/// Memory that counts against an application's limit until this is dropped.
#[derive(Default)]
pub(crate) struct MemoryCharge(Option<(App, u64)>);

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if let Some((app, bytes)) = self.0.take() {
            app.0.account.lock().usage.memory -= bytes;
        }
    }
}

impl Node {
    /// Waits until an operation of `bytes` may go. `one_sided`: the schemes apply to it.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        class: &Class,
        bytes: u64,
        deadline: Instant,
        one_sided: bool,
    ) -> Result<Ticket, Error> {
        let mut ticket = Ticket { node: self.clone(), app: None, counted: None };
        if let Some(app) = &class.app {
            let mut waited = false;
            let enter = || {
                let entered = app.enter(self.platform.now(), bytes, deadline);
                waited |= entered.is_none();
                entered
            };
            let entered = self.timers.before(deadline, app.0.change.until(enter)).await;
            {
                let usage = &mut app.0.account.lock().usage;
                usage.delayed += u64::from(waited);
                usage.refused += u64::from(entered.is_none());
            }
            let go = entered.unwrap_or(Err(Error::Deadline))?;
            ticket.app = Some(app.clone());
            if go > self.platform.now() {
                self.timers.until(go).await;
            }
        }
        let qos = &self.qos;
        if one_sided && qos.scheme.load(Ordering::Relaxed) == SW_PRI {
            let now = self.platform.now();
            match class.priority {
                Priority::High => {
                    qos.high.fetch_add(1, Ordering::Relaxed);
                }
                Priority::Low => {
                    qos.low.fetch_add(1, Ordering::Relaxed);
                }
                Priority::Normal => {}
            }
            ticket.counted = Some((class.priority, now));
            if class.priority == Priority::Low
                && let Some((least, most)) = qos.pause(now)
            {
                let pause = Duration::from_micros(least + self.random() % (most - least + 1));
                self.timers.until((now + pause).min(deadline)).await;
            }
        }
        Ok(ticket)
    }
}

impl Lite {
    /// Selects the scheme for what this node sends from now on.
    pub fn configure_qos(&self, scheme: Scheme) {
        let qos = &self.by.node.qos;
        let which = match scheme {
            Scheme::None => NONE,
            Scheme::HwSep => HW_SEP,
            Scheme::SwPri { busy, slow } => {
                qos.busy.store(busy.max(1), Ordering::Relaxed);
                let slow = u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX);
                qos.slow_ns.store(slow, Ordering::Relaxed);
                SW_PRI
            }
        };
        qos.scheme.store(which, Ordering::Relaxed);
    }

    /// Returns a handle whose operations, and those of regions that it makes, have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { by: self.by.classed(self.by.class.with_priority(priority)) }
    }

    /// Returns a handle whose operations and regions count as `app`'s.
    #[must_use]
    pub fn for_app(&self, app: &App) -> Self {
        Self { by: self.by.classed(Class { app: Some(app.clone()), ..self.by.class.clone() }) }
    }
}
