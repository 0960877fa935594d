//! Quality of service at the sender: priorities, by one of the paper's two schemes, and limits for each
//! application.
//!
//! A handle ([`Lite`](crate::Lite), and the [`Lmr`](crate::Lmr)s that come from it) has a
//! [`Priority`] and may belong to an [`App`]. An operation without an application under no scheme
//! costs one load and is not counted. The schemes are those of the paper's section on quality of
//! service: **HW-Sep** gives low priority a queue pair of its own, **SW-Pri** delays operations of
//! low priority at the sender. They and the limits apply to reads, writes, atomics, calls and messages;
//! under HW-Sep, calls and messages of every priority have the queue pair of high priority.

use super::config::Config;
use super::standing::{DELAYED, SEPARATED, Standing};
use super::turns::Turns;
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::wait::Waiters;
use crate::base::writers::{AtomicU32, AtomicU64, Ordering};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use platform::Instant;

/// The importance of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Operations that yield to those of high priority.
    Low,
    /// Uses the queue pairs of high priority; no operation yields to it.
    #[default]
    Normal,
    /// Operations to which those of low priority yield.
    High,
}

/// The way in which priorities are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// No scheme: priorities have no effect.
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
    ///
    /// While a row applies, reads, writes and atomics of low priority go one at a time, and the delay is at
    /// least three times what the one before has taken, up to 10 ms: the original's times are short beside
    /// long operations and slow networks. Calls and messages of low priority wait for their turn and for
    /// the delay, and then no longer hold up others. A call counts as in flight until its reply.
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
    /// The longest time that the wait of an operation for these limits adds to its deadline. With zero, an
    /// operation that would begin only after its deadline is refused.
    pub patience: Duration,
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
    /// The time that all operations and calls together have waited for a limit.
    pub waited: Duration,
    /// The number of operations that were refused, or that waited for a limit until their deadline.
    pub refused: u64,
}

pub(super) struct Account {
    limits: Limits,
    pub(super) usage: Usage,
    /// The time at which all bytes so far have been sent at the limit's rate.
    paid: Instant,
    /// The places of operations that wait until fewer are in flight, in order.
    line: VecDeque<u64>,
    /// The number of places that were given.
    places: u64,
}

pub(super) struct AppState {
    name: String,
    pub(super) account: Mutex<Account>,
    pub(super) change: Waiters,
}

/// An application, to which use is counted and limits apply. Clones stand for the same application.
#[derive(Clone)]
pub struct App(pub(super) Arc<AppState>);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "app {}: {:?}", self.0.name, self.usage())
    }
}

impl App {
    /// Returns a new application without any use.
    #[must_use]
    pub fn new(name: &str, limits: Limits) -> Self {
        let (usage, paid, line) = (Usage::default(), Instant::ZERO, VecDeque::new());
        let account = Mutex::new(Account { limits, usage, paid, line, places: 0 });
        Self(Arc::new(AppState { name: name.into(), account, change: Waiters::default() }))
    }

    /// Returns the name of the application.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the application's present use of this node and its totals.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.account.lock().usage
    }

    /// Replaces the limits.
    pub fn set_limits(&self, limits: Limits) {
        self.0.account.lock().limits = limits;
        self.0.change.wake_all();
    }

    /// Returns true if the application has as many operations in flight as its limit allows.
    fn is_full(&self) -> bool {
        let account = self.0.account.lock();
        account.limits.outstanding.is_some_and(|most| account.usage.outstanding >= most.max(1))
    }

    /// Returns the longest time that a wait for the limits adds to the deadline of an operation.
    pub(super) fn patience(&self) -> Duration {
        self.0.account.lock().limits.patience
    }

    /// Returns a place for an operation that wants to begin. It is not in the line yet.
    pub(super) const fn place(&self) -> Place<'_> {
        Place { app: self, number: None }
    }
}

/// The place of an operation that wants to begin. Operations that must wait until fewer are in flight go in
/// the order in which they came: a task that begins one operation after another cannot keep others waiting.
pub(super) struct Place<'a> {
    app: &'a App,
    /// The number in the line, once the operation has had to wait.
    number: Option<u64>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.app.0.account.lock().line.retain(|place| *place != number);
        // The next one may go.
        self.app.0.change.wake_all();
    }
}

impl Place<'_> {
    /// Counts an operation of `bytes` as begun and returns the time at which it may go; fails with
    /// `Deadline` if that is too late. Returns `None`, and counts nothing, if too many operations are in
    /// flight, or others came before. The operation is in the line then.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        bytes: u64,
        deadline: Instant,
    ) -> Option<Result<Instant, Error>> {
        let mut account = self.app.0.account.lock();
        let Account { limits, usage, paid, line, places } = &mut *account;
        let is_full = limits.outstanding.is_some_and(|most| usage.outstanding >= most.max(1));
        if is_full || line.front().is_some_and(|first| self.number != Some(*first)) {
            if self.number.is_none() {
                *places += 1;
                line.push_back(*places);
                self.number = Some(*places);
            }
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
    pub(super) priority: Priority,
    pub(crate) app: Option<App>,
}

/// The queue pairs that an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All queue pairs but that of RPC.
    All,
    /// Low priority uses the last queue pair.
    Low,
    /// High priority uses all queue pairs but the last.
    High,
}

/// The time for which a slow operation of high priority counts.
const WINDOW: Duration = Duration::from_millis(100);

/// The state of the schemes on a node.
pub(crate) struct Qos {
    /// The scheme is in two bits of it.
    standing: Arc<Standing>,
    busy: AtomicU32,
    slow_ns: AtomicU64,
    high: AtomicU32,
    low: AtomicU32,
    /// The moving average of the latency of high-priority operations in nanoseconds, and the time at which
    /// the last one ended.
    taken_ns: AtomicU64,
    last_ns: AtomicU64,
    pub(super) turns: Turns,
}

impl Qos {
    pub(crate) fn new(standing: Arc<Standing>) -> Self {
        let (busy, high, low) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let [slow_ns, taken_ns, last_ns] = [const { AtomicU64::new(0) }; 3];
        Self { standing, busy, slow_ns, high, low, taken_ns, last_ns, turns: Turns::default() }
    }

    /// Returns whether an operation of `app` needs a ticket.
    #[inline]
    fn rates(&self, app: Option<&App>) -> bool {
        app.is_some() || self.standing.has(DELAYED)
    }

    /// Returns the queue pairs that operations of `priority` use now.
    fn share(&self, priority: Priority) -> Share {
        match priority {
            _ if !self.standing.has(SEPARATED) => Share::All,
            Priority::Low => Share::Low,
            Priority::Normal | Priority::High => Share::High,
        }
    }

    /// Returns the service level of the queue pairs of high priority on a connection that is opened now.
    pub(crate) fn level(&self, config: &Config) -> u8 {
        if self.standing.has(SEPARATED) { config.service_level } else { 0 }
    }

    fn is_fresh(&self, now: Instant) -> bool {
        let last = self.last_ns.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Instant::from_nanos(last)) < WINDOW
    }

    /// Returns the least and the most time that an operation of low priority waits, in microseconds; `None`
    /// if it need not wait.
    pub(super) fn pause(&self, now: Instant) -> Option<(u64, u64)> {
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

    pub(crate) fn for_app(&self, app: &App) -> Self {
        Self { app: Some(app.clone()), ..self.clone() }
    }

    /// Returns whether an operation needs a ticket.
    #[inline]
    pub(crate) fn is_rated(&self, qos: &Qos) -> bool {
        qos.rates(self.app.as_ref())
    }

    /// Returns the queue pairs that an operation uses now.
    pub(crate) fn share(&self, qos: &Qos) -> Share {
        qos.share(self.priority)
    }

    /// Returns the longest time that a wait for the application's limits adds to a deadline.
    pub(crate) fn patience(&self) -> Duration {
        self.app.as_ref().map_or(Duration::ZERO, App::patience)
    }

    /// Returns true if the application has as many operations in flight as its limit allows.
    pub(crate) fn is_full(&self) -> bool {
        self.app.as_ref().is_some_and(App::is_full)
    }

    /// Returns true if an operation may have to give way to those of high priority.
    pub(crate) fn gives_way(&self, qos: &Qos) -> bool {
        self.priority == Priority::Low && qos.standing.has(DELAYED)
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

impl Qos {
    /// Selects the scheme.
    pub(crate) fn configure(&self, scheme: Scheme) {
        let which = match scheme {
            Scheme::None => 0,
            Scheme::HwSep => SEPARATED,
            Scheme::SwPri { busy, slow } => {
                self.busy.store(busy.max(1), Ordering::Relaxed);
                let slow = u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX);
                self.slow_ns.store(slow, Ordering::Relaxed);
                DELAYED
            }
        };
        self.standing.replace(SEPARATED | DELAYED, which);
    }

    /// Counts the begin of an operation under SW-Pri. Returns false under another scheme.
    pub(crate) fn begin(&self, priority: Priority) -> bool {
        if !self.standing.has(DELAYED) {
            return false;
        }
        match priority {
            Priority::High => {
                self.high.fetch_add(1, Ordering::Relaxed);
            }
            Priority::Low => {
                self.low.fetch_add(1, Ordering::Relaxed);
            }
            Priority::Normal => {}
        }
        true
    }

    /// Counts the end of an operation that [`begin`](Self::begin) has counted at `begun`.
    pub(crate) fn end(&self, priority: Priority, begun: Instant, now: Instant) {
        match priority {
            Priority::High => {
                self.high.fetch_sub(1, Ordering::Relaxed);
                let taken = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
                let before = self.taken_ns.load(Ordering::Relaxed);
                let average = before / 8 * 7 + taken / 8;
                self.taken_ns.store(if self.is_fresh(now) { average } else { taken }, Ordering::Relaxed);
                self.last_ns.store(now.as_nanos(), Ordering::Relaxed);
            }
            Priority::Low => {
                self.low.fetch_sub(1, Ordering::Relaxed);
            }
            Priority::Normal => {}
        }
    }
}
