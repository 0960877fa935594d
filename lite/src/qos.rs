//! Quality of service at the sender: priorities, by one of the paper's two schemes, and what each application may use.
//!
//! A handle ([`Lite`], and the [`Lmr`](crate::Lmr)s that come from it) has a [`Priority`] and may belong to an [`App`]. One
//! with neither, under no scheme, costs one load and is not counted. The schemes are those of the paper's section on
//! quality of service: **HW-Sep** sets queue pairs apart, **SW-Pri** lets the sender of low priority yield. They concern
//! reads, writes and atomics; limits concern calls as well.

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

/// How much an operation matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Yields to the others.
    Low,
    /// Between the two: goes the way of high priority, and nobody yields to it.
    #[default]
    Normal,
    /// Others yield to it.
    High,
}

/// How priorities are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Not at all.
    #[default]
    None,
    /// By queue pairs: low priority has the last of a connection's, the others have the rest (with two queue pairs, that of
    /// RPC). Needs [`Config::queue_pairs`](crate::Config::queue_pairs) of 2 at least.
    HwSep,
    /// By the sender: an operation of low priority waits before it is posted, for 96 to 128 µs while as many operations of
    /// high priority as `busy` are under way, for 64 to 128 µs while they are slow, for 32 to 64 µs while there are any, but
    /// fewer than of low priority. The times are the original's.
    SwPri {
        /// So many are a crowd; the original's is 2.
        busy: u32,
        /// High priority is slow if its operations take longer than this, averaged over the last ones of the last 100 ms;
        /// the original's is 32 µs.
        slow: Duration,
    },
}

impl Scheme {
    /// SW-Pri with the original's bounds.
    pub const SW_PRI: Self = Self::SwPri { busy: 2, slow: Duration::from_micros(32) };
}

/// What an application may use on this node; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of operations and calls in a second, after a first [`burst`](Self::burst). Those beyond wait.
    pub bytes_per_second: Option<u64>,
    /// Bytes that may go at once after a pause.
    pub burst: u64,
    /// Operations and calls under way. Those beyond wait.
    pub outstanding: Option<u32>,
    /// Bytes of the regions allocated through the application's handles and still held. Those beyond are refused.
    pub memory: Option<u64>,
}

/// What an application has used and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Operations and calls begun.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those under way.
    pub outstanding: u32,
    /// Bytes of regions allocated and held.
    pub memory: u64,
    /// Times that it has waited for a limit.
    pub delayed: u64,
    /// Operations that it was refused, or that a limit has kept waiting until their deadline.
    pub refused: u64,
}

struct Account {
    limits: Limits,
    usage: Usage,
    /// When all bytes so far have been sent at the limit's rate.
    paid: Instant,
}

struct AppState {
    name: String,
    account: Mutex<Account>,
    change: Waiters,
}

/// An application, as accounts and limits know it. Clones are the same application.
#[derive(Clone)]
pub struct App(Arc<AppState>);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "app {}: {:?}", self.0.name, self.usage())
    }
}

impl App {
    /// An application that has used nothing yet.
    #[must_use]
    pub fn new(name: &str, limits: Limits) -> Self {
        let account = Account { limits, usage: Usage::default(), paid: Instant::ZERO };
        let account = Mutex::new(account);
        Self(Arc::new(AppState { name: name.into(), account, change: Waiters::default() }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it has used and uses.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.account.lock().usage
    }

    /// Other limits from now on.
    pub fn set_limits(&self, limits: Limits) {
        self.0.account.lock().limits = limits;
        self.0.change.wake_all();
    }

    /// Whether it has as many operations under way as it may.
    fn is_full(&self) -> bool {
        let account = self.0.account.lock();
        account.limits.outstanding.is_some_and(|most| account.usage.outstanding >= most.max(1))
    }

    /// Takes a place for an operation of `bytes`, if there is one: when it may go.
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

/// Whose operation it is.
#[derive(Clone, Default)]
pub(crate) struct Class {
    priority: Priority,
    app: Option<App>,
}

/// Which queue pairs an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All but that of RPC.
    All,
    /// The last.
    Low,
    /// All but the last.
    High,
}

const NONE: u8 = 0;
const HW_SEP: u8 = 1;
const SW_PRI: u8 = 2;
/// For how long a slow operation counts.
const WINDOW: Duration = Duration::from_millis(100);

/// The state of the schemes on a node.
#[derive(Default)]
pub(crate) struct Qos {
    scheme: AtomicU8,
    busy: AtomicU32,
    slow_ns: AtomicU64,
    high: AtomicU32,
    low: AtomicU32,
    /// An average of how long operations of high priority have taken, in nanoseconds; and when the last ended.
    taken_ns: AtomicU64,
    last_ns: AtomicU64,
}

/// Stands for an operation that has been let go; gives back what it took when dropped.
pub(crate) struct Ticket {
    node: Arc<Node>,
    app: Option<App>,
    /// Under SW-Pri: its priority, and when it began.
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
    /// Whether an operation of `app` needs a [`Ticket`].
    #[inline]
    fn rates(&self, app: Option<&App>) -> bool {
        app.is_some() || self.scheme.load(Ordering::Relaxed) == SW_PRI
    }

    /// The queue pairs that operations of `priority` use now.
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

    /// For how long an operation of low priority waits: at least, and at most, in microseconds.
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

    /// Whether an operation needs a [`Ticket`].
    #[inline]
    pub(crate) fn is_rated(&self, node: &Node) -> bool {
        node.qos.rates(self.app.as_ref())
    }

    /// The queue pairs that operations use now.
    #[inline]
    pub(crate) fn share(&self, node: &Node) -> Share {
        node.qos.share(self.priority)
    }

    /// Whether the application has as many operations under way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.app.as_ref().is_some_and(App::is_full)
    }

    /// Takes what an allocation of `bytes` needs.
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

/// Memory that an application holds, until this is dropped.
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
    /// Waits until an operation of `bytes` may go. `one_sided`: the schemes count it.
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
    /// Tells priorities apart from now on, as `scheme` says, or no more. Concerns what this node sends.
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

    /// The same LITE; operations of this handle, and of regions made by it, have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { by: self.by.classed(self.by.class.with_priority(priority)) }
    }

    /// The same LITE; what goes through this handle, and regions made by it, is `app`'s.
    #[must_use]
    pub fn for_app(&self, app: &App) -> Self {
        Self { by: self.by.classed(Class { app: Some(app.clone()), ..self.by.class.clone() }) }
    }
}
