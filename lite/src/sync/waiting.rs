//! The waiting side: the waits of this node's tasks, and their end by a message of the home.

use super::fencing::FencingToken;
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::sync::SyncHome;
use crate::sync::request::Request;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use platform::Instant;
use serde::{Deserialize, Serialize};

/// The successful end of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The lock is held. `after_death`: the last exclusive holder died with it; `token`: the number of the
    /// grant.
    Granted { after_death: bool, token: FencingToken },
    /// The event's count.
    Count(u64),
    /// The barrier has opened.
    Open,
}

struct Wait {
    home: MemberId,
    at_barrier: bool,
    ended: Option<Result<Outcome, Error>>,
    waker: Option<Waker>,
}

/// The waits of this node's tasks, by the numbers (tokens) that this node chose.
#[derive(Default)]
pub(crate) struct WaitTable {
    last: AtomicU64,
    table: Mutex<BTreeMap<u64, Wait>>,
}

/// One wait. Dropping it removes it here; the task that began it must tell the home.
pub(crate) struct Waiting<'a> {
    waits: &'a WaitTable,
    pub(crate) token: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waits.table.lock().remove(&self.token);
    }
}

impl WaitTable {
    /// Returns the number of waits.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// Ends a wait, as a home has said. An unknown wait is ignored, and so is a second end.
    pub(crate) fn end(&self, from: MemberId, token: u64, outcome: Result<Outcome, Error>) {
        let waker = {
            let mut table = self.table.lock();
            let wait = table.get_mut(&token).filter(|wait| wait.home == from);
            wait.and_then(|wait| wait.end(outcome))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the lowest token of a wait at a barrier of `home`, or 0 if there is none.
    pub(crate) fn oldest_at_barriers(&self, home: MemberId) -> u64 {
        let table = self.table.lock();
        let oldest = table.iter().find(|(_, wait)| wait.at_barrier && wait.home == home);
        oldest.map_or(0, |(token, _)| *token)
    }

    /// Ends all waits at a home that has departed.
    pub(crate) fn forget(&self, home: MemberId) {
        self.end_some(|wait| wait.home == home, &Error::NodeDown(home.0));
    }

    /// Ends all waits of this node with an error.
    pub(crate) fn end_all(&self, error: &Error) {
        self.end_some(|_| true, error);
    }

    fn end_some(&self, which: impl Fn(&Wait) -> bool, error: &Error) {
        let wakers: Vec<Waker> = {
            let mut table = self.table.lock();
            let ended = table.values_mut().filter(|wait| which(wait));
            ended.filter_map(|wait| wait.end(Err(error.clone()))).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_ended(&self, token: u64, cx: &Context<'_>) -> Poll<Result<Outcome, Error>> {
        let mut table = self.table.lock();
        // A wait is in the table for as long as its `Waiting` exists.
        let Some(wait) = table.get_mut(&token) else { return Poll::Pending };
        if let Some(ended) = wait.ended.take() {
            return Poll::Ready(ended);
        }
        wait.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Wait {
    /// Ends a wait, unless it has ended already, and returns the waker of its task.
    fn end(&mut self, outcome: Result<Outcome, Error>) -> Option<Waker> {
        self.ended.get_or_insert(outcome);
        self.waker.take()
    }
}

impl Waiting<'_> {
    /// Waits until the home has ended the wait.
    pub(crate) async fn ended(&self) -> Result<Outcome, Error> {
        poll_fn(|cx| self.waits.poll_ended(self.token, cx)).await
    }
}

impl SyncHome {
    /// Begins a wait for a lock or event at `home`. Must be called before the home is asked, because the
    /// home may end the wait at once. Fails with `NodeDown` if that incarnation has ended.
    pub(crate) fn begin_wait(&self, home: MemberId) -> Result<Waiting<'_>, Error> {
        self.begin(home, false)
    }

    /// Begins a wait at a barrier of `home`, as [`begin_wait`](Self::begin_wait) does.
    pub(crate) fn begin_wait_at_barrier(&self, home: MemberId) -> Result<Waiting<'_>, Error> {
        self.begin(home, true)
    }

    fn begin(&self, home: MemberId, at_barrier: bool) -> Result<Waiting<'_>, Error> {
        let waits = &self.waits;
        let mut table = self.lock_for(&waits.table, home)?;
        // Under the lock, so that a wait's token is above those of all waits before it.
        let token = waits.last.fetch_add(1, Ordering::Relaxed) + 1;
        let home = table.member();
        table.insert(token, Wait { home, at_barrier, ended: None, waker: None });
        drop(table);
        Ok(Waiting { waits, token })
    }

    /// Ends the wait `token` of a task of that incarnation. This node is the home of the object, and
    /// repeats the message until it is acknowledged.
    pub(crate) fn wake(self: &Arc<Self>, by: MemberId, token: u64, outcome: Result<Outcome, Error>) {
        if by == (self.me, self.incarnation) {
            return self.waits.end(by, token, outcome);
        }
        self.spawn_retry(by, Request::Woken { token, outcome });
    }

    /// Waits until `deadline` for the end of a wait. Returns `None` if the deadline has passed.
    pub(crate) async fn wait_until(
        &self,
        waiting: &Waiting<'_>,
        deadline: Instant,
    ) -> Option<Result<Outcome, Error>> {
        let result = self.timers.before(deadline, waiting.ended()).await;
        if result.is_none() {
            self.counters.deadline_misses.add(1);
        }
        result
    }
}
