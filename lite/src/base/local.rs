//! The part of a node that all layers use: its identity, its clock and timers, its lease, and its counters.

use super::config::Config;
use super::control::Control;
use super::counters::CoreCounters;
use super::error::Error;
use super::lease::Lease;
use super::member::MemberId;
use super::qos::Qos;
use super::standing::Standing;
use super::timer::Timers;
use super::trace::{Event, Trace};
use super::wait::{DeferredList, Waiters};
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::{ControlLink, Instant, Platform};
use proto::{Incarnation, NodeId, Welcome};

/// The lowest layer of a node. The other layers extend it: each one dereferences to the layer below.
pub(crate) struct Local {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) config: Config,
    pub(crate) me: NodeId,
    pub(crate) incarnation: Incarnation,
    /// The words that operations and the poller look at.
    pub(crate) standing: Arc<Standing>,
    pub(crate) lease: Lease,
    /// Tasks that wait for the end of a suspension.
    pub(crate) resumption: Waiters,
    pub(crate) timers: Timers,
    pub(crate) counters: CoreCounters,
    pub(crate) qos: Qos,
    pub(crate) trace: Trace,
    /// The messages to the manager, and the answers that tasks wait for.
    pub(crate) control: Control,
}

impl Local {
    /// Makes the state of a node that joined with `welcome` over `link`.
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        (welcome, link): (&Welcome, &dyn ControlLink),
        config: Config,
    ) -> Self {
        let lease = platform.now() + Duration::from_millis(u64::from(welcome.lease_ms));
        let standing = Arc::<Standing>::default();
        let qos = Qos::new(standing.clone());
        qos.configure(config.scheme);
        Self {
            me: welcome.node,
            incarnation: welcome.incarnation,
            lease: Lease::new(link.lease_until().min(lease), config.silence, standing.clone()),
            resumption: Waiters::default(),
            timers: Timers::new(platform.clone(), standing.clone()),
            counters: CoreCounters::new(platform.clone(), config.shards(&*platform)),
            qos,
            trace: Trace::new(standing.clone()),
            standing,
            control: Control::new(link.version()),
            config,
            platform,
        }
    }

    /// Returns this node in its present incarnation.
    pub(crate) fn own_id(&self) -> MemberId {
        (self.me, self.incarnation)
    }

    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.platform.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns true if this node begins nothing as a member any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.lease.is_fenced()
    }

    /// Suspends this node if its lease has passed at `now`. Must be called before an operation begins.
    pub(crate) fn look_at_lease(&self, now: Instant) {
        if self.lease.has_passed(now) {
            self.lapsed(now);
        }
    }

    #[cold]
    fn lapsed(&self, now: Instant) {
        if self.lease.suspend(now) {
            sometimes!("a node suspended itself");
            // The poller's deadlines have changed.
            self.platform.wake_poller();
        }
    }

    /// Waits while this node is suspended. Fails with `LinkDown` if it is no longer a member, or about to
    /// leave.
    pub(crate) async fn resumed(&self) -> Result<(), Error> {
        let standing = || {
            if self.is_fenced() {
                return Some(Err(Error::LinkDown));
            }
            (!self.lease.is_suspended()).then_some(Ok(()))
        };
        self.resumption.until(standing).await
    }

    /// Counts a deadline that has passed.
    pub(crate) fn missed(&self) {
        self.counters.deadline_misses.add(1);
        self.trace(|| Event::Missed);
    }

    /// Runs `work` until `deadline`; after that, the result is `Unknown` if something was issued.
    pub(crate) async fn limit<T>(
        &self,
        deadline: Instant,
        issued: &AtomicBool,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = || {
            self.missed();
            // An attempt that was lost before this call counts too.
            let issued = issued.load(Ordering::Relaxed) && !planted(Bug::UnknownAsDeadline);
            if issued { Error::Unknown } else { Error::Deadline }
        };
        if !self.lease.may_begin() {
            self.timers.before(deadline, self.resumed()).await.ok_or_else(late)??;
        }
        if planted(Bug::NoDeadline) {
            return work.await;
        }
        self.timers.before(deadline, work).await.unwrap_or_else(|| Err(late()))
    }

    /// Adds an entry to a list that the poller looks at in its next turn.
    pub(crate) fn defer<T>(&self, list: &DeferredList<T>, entry: T) {
        list.push(entry);
        self.standing.due_by(Instant::ZERO);
    }

    /// Records an event.
    #[cold]
    pub(crate) fn record(&self, event: Event) {
        self.trace.record(self.platform.cpu(), self.platform.now(), event);
    }

    /// Records an event if tracing is on.
    // It is inlined everywhere, so that the closure's captures stay in registers while tracing is off.
    #[inline(always)]
    pub(crate) fn trace(&self, event: impl FnOnce() -> Event) {
        if self.standing.is_traced() {
            self.record(event());
        }
    }
}
