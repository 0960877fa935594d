//! A task: the execution of one operation, and the parts that all steps need.

use super::stage::{EACH, Owned, PATIENT, Thing};
use super::step::Step;
use crate::explore::check::{Check, End};
use crate::explore::random::Random;
use crate::explore::subject::Subject;
use lite::testing::Host;
use lite::{Error, Incarnation, Lite, Lmr, LocalMemory, NodeId, Placement, Watcher};
use platform::{ControlLink, Instant, Platform};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// One of the tasks that work on a node.
pub(super) struct Worker {
    pub(super) lite: Lite,
    pub(super) host: Arc<Host>,
    pub(super) control: Arc<dyn ControlLink>,
    pub(super) check: Arc<Check>,
    pub(super) random: Random,
    pub(super) name: String,
    pub(super) node: usize,
    /// The number among all tasks, which determines its part of regions.
    pub(super) number: usize,
    pub(super) initial: usize,
    /// The number of requests that the task has numbered so far.
    pub(super) count: u64,
    /// True if no faults happen any more, so that all operations of the task must succeed.
    pub(super) calm: bool,
    pub(super) subject: Subject,
    /// The number of shared objects of each kind that the task uses.
    pub(super) shared: usize,
    /// True while the step uses a region of which a part lay on a node that has ended.
    pub(super) partly_gone: bool,
    /// The objects that all tasks have made.
    pub(super) made: Arc<Mutex<Vec<Owned>>>,
    pub(super) regions: [Option<Lmr>; EACH],
    pub(super) gates: [Option<Lmr>; EACH],
    pub(super) cells: [Option<Lmr>; EACH],
    /// The shared regions that the task's node has made.
    pub(super) owned: Vec<(usize, Lmr)>,
    pub(super) owned_gates: Vec<(usize, Lmr)>,
    pub(super) named: Option<Named>,
    /// A region that belongs to the task alone, and its content.
    pub(super) kept: Option<(Lmr, Vec<u8>)>,
    /// A region that the task has lent to all tasks, and the number of the region.
    pub(super) pooled: Option<(usize, Lmr)>,
    /// The regions that other tasks have lent.
    pub(super) borrowed: [Option<Lmr>; EACH],
    /// Memory that no other node reaches, and its content.
    pub(super) private: Option<(LocalMemory, Vec<u8>)>,
    pub(super) watcher: Option<Watcher>,
}

/// A region of a task's own that is, or may be, bound to a name that other tasks want.
pub(super) struct Named {
    /// The number of the name.
    pub(super) name: usize,
    /// The number that the region contains.
    pub(super) id: u64,
    pub(super) region: Lmr,
}

/// The end of an operation: its result, or `None` if it was dropped before its end.
pub(super) type Ended<T> = Option<Result<T, Error>>;

/// Polls `future` at most `polls` times, then drops it.
pub(in crate::explore) async fn cut<T>(future: impl Future<Output = T>, polls: u64) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => {
                // It is dropped when it would be woken: until then there is no difference.
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns whether an error means that the operation may have happened.
pub(super) const fn is_unsure(error: &Error) -> bool {
    matches!(error, Error::Unknown | Error::NodeDown(_) | Error::LinkDown)
}

/// Returns the end of a one-sided operation on a word that returns the value before.
pub(super) fn saw(result: &Ended<u64>) -> End {
    match result {
        Some(Ok(value)) => End::Saw(*value),
        Some(Err(error)) if !is_unsure(error) => End::Never,
        None | Some(Err(_)) => End::Unknown,
    }
}

impl Worker {
    pub(super) fn now(&self) -> Instant {
        self.host.true_time()
    }

    /// Returns the present incarnation of the task's node.
    pub(super) fn member(&self) -> (NodeId, Incarnation) {
        (self.lite.node_id(), self.lite.incarnation())
    }

    pub(super) fn fresh(&mut self) -> u64 {
        self.count += 1;
        (self.number as u64 + 1) << 32 | self.count
    }

    pub(super) fn shared(&mut self) -> usize {
        self.random.below(self.shared as u64) as usize
    }

    /// Returns a node of the start, alive or dead; a live one if there are no faults.
    pub(super) fn anyone(&mut self) -> NodeId {
        if self.calm {
            let members = self.lite.members();
            return members[self.random.below(members.len() as u64) as usize].node;
        }
        NodeId(1 + self.random.below(self.initial as u64) as u16)
    }

    /// Returns a placement on one node or on two different nodes.
    pub(super) fn anywhere(&mut self) -> Placement {
        let (a, b) = (self.anyone(), self.anyone());
        match self.random.below(4) {
            0 if a != b => {
                // Nodes with two permits for connections open one for each stripe: without faults, a copy of
                // many stripes must not take longer than it may.
                let least = if self.calm { 1000 } else { 1 };
                let stripe = 8 * (least + self.random.below(1000));
                Placement::Striped { nodes: vec![a, b], stripe }
            }
            1 => Placement::Anywhere,
            _ => a.into(),
        }
    }

    pub(super) fn timeout(&mut self) -> Duration {
        if self.calm {
            return PATIENT;
        }
        Duration::from_millis(self.random.pick(self.subject.timeout()))
    }

    /// Keeps a region of the task, which is freed at the end of the run if not before.
    pub(super) fn keep(&self, region: &Lmr) {
        let owned = Owned { node: self.node, thing: Thing::Other(region.clone()) };
        self.made.lock().expect("no panic under the lock").push(owned);
    }

    pub(super) fn violated(&self, property: &'static str, seen: impl std::fmt::Display) {
        self.check.violated(property, format_args!("{} {seen}", self.name));
    }

    /// Runs one operation with the timeout `timeout`, and checks that it ends in time. Returns `None` if it
    /// was dropped before its end. Without faults it must succeed.
    pub(super) async fn run<T>(
        &mut self,
        what: impl std::fmt::Display + Send + Sync,
        timeout: Duration,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Ended<T> {
        let result = self.attempt(&what, timeout, operation).await;
        if let Some(Err(
            error @ (Error::OutOfBounds | Error::Permission | Error::Misaligned | Error::TooLarge { .. }),
        )) = &result
        {
            self.violated("no error without a cause", format_args!("{what}: {error}"));
        }
        if let Some(Err(error)) = result.as_ref().filter(|_| self.calm)
            && !self.is_explained(error)
        {
            self.violated("a healthy cluster works", format_args!("{what}: {error}"));
        }
        result
    }

    /// Returns whether the death of a node explains an error.
    pub(super) fn is_explained(&self, error: &Error) -> bool {
        match error {
            // That number may by now belong to another incarnation.
            Error::NodeDown(node) => self.check.has_ended(Some(*node)),
            // A node that joined late has never known a node that was dead by then.
            Error::NoSuchNode => self.check.has_ended(None),
            Error::Freed | Error::NoSuchName | Error::NameTaken => true,
            // One piece was written, and the node of another one has ended.
            Error::Unknown => self.partly_gone,
            _ => false,
        }
    }

    /// Does the same as [`run`](Self::run) for an operation that may be refused.
    pub(super) async fn attempt<T>(
        &mut self,
        what: impl std::fmt::Display + Send + Sync,
        timeout: Duration,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Ended<T> {
        let dropped = !self.calm && self.random.one_in(10);
        let polls = if dropped { 1 + self.random.below(6) } else { u64::MAX };
        let from = self.now();
        self.check.log(from, format_args!("{} {what}", self.name));
        let result = cut(operation, polls).await;
        let to = self.now();
        let outcome = match &result {
            Some(Ok(_)) => "ok".into(),
            Some(Err(error)) => error.to_string(),
            None => "dropped".into(),
        };
        self.check.log(to, format_args!("{} {what}: {outcome}", self.name));
        self.check.count(match &result {
            Some(Ok(_)) => 0,
            Some(Err(_)) => 1,
            None => 2,
        });
        // The clock of the node may be slow.
        let limit = timeout + timeout / 40 + Duration::from_millis(1);
        if to.saturating_since(from) > limit && !self.check.was_paused(self.node, from, to) {
            let took = to.saturating_since(from);
            let seen = format_args!("{what} took {took:?} of {timeout:?}");
            self.violated("no operation outlives its deadline", seen);
        }
        result
    }

    /// Does the same as [`run`](Self::run) for an operation that posts work requests: an operation that
    /// begins after the lease has passed must not succeed before the node receives an acknowledgement.
    pub(super) async fn post<T>(
        &mut self,
        what: impl std::fmt::Display + Send + Sync,
        timeout: Duration,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Ended<T> {
        let lapsed = self.lapsed();
        let result = self.run(&what, timeout, operation).await;
        if lapsed.is_some() && lapsed == self.lapsed() && matches!(result, Some(Ok(_))) {
            self.violated("a suspended node posts nothing", format_args!("{what} ended well"));
        }
        result
    }

    /// Returns the end of the node's lease, if the lease has passed.
    fn lapsed(&self) -> Option<Instant> {
        let until = self.control.lease_until();
        (self.host.now() > until).then_some(until)
    }

    /// Does a step. Returns whether this node is still a member.
    pub(super) async fn step(&mut self, step: Step) -> bool {
        self.partly_gone = false;
        let done = match step {
            Step::Write => self.write().await,
            Step::Read => self.read().await,
            Step::Memset => self.memset().await,
            Step::Vectored => self.vectored().await,
            Step::Copy => self.copy().await,
            Step::Queue => self.queue().await,
            Step::Add => self.add().await,
            Step::Tally => self.tally().await,
            Step::Swap => self.swap().await,
            Step::Flag => self.flag().await,
            Step::Exclusive => self.exclusive(true).await,
            Step::Try => self.exclusive(false).await,
            Step::Shared => self.hold_shared().await,
            Step::Call => self.call().await,
            Step::CallEach => self.call_each().await,
            Step::Send => self.send().await,
            Step::Notify => self.notify().await,
            Step::Register => self.register().await,
            Step::Mailbox => self.mailbox().await,
            Step::Signal => self.signal().await,
            Step::Await => self.wait().await,
            Step::Own => self.own_region().await,
            Step::Pool => self.pool().await,
            Step::Private => self.private_memory().await,
            Step::Name => self.name().await,
            Step::Objects => self.objects().await,
            Step::Scope => self.scope().await,
            Step::Rights => self.rights().await,
            Step::Admin => self.admin().await,
            Step::Limits => self.limits().await,
            Step::Settle => self.settle().await,
            Step::Watch => self.watch().await,
            Step::Refused => self.refused().await,
            Step::Remap => self.remap(),
            Step::Move => self.relocate().await,
            Step::Vacate => self.vacate().await,
        };
        // Whatever failed, the task continues unless its node has lost its membership.
        if done.is_some() {
            self.check.sometimes(step.done());
        }
        self.look_at_private();
        self.lite.is_member()
    }

    /// Checks the memory that the task keeps, and ends the task.
    pub(super) fn end(mut self) {
        self.look_at_private();
        self.private = None;
    }
}
