//! The waiting side: what tasks of this node wait for, and how the home ends a wait.

use crate::Error;
use crate::membership::Life;
use crate::node::Node;
use crate::op::RECONNECT_PAUSE;
use crate::rpc::Ask;
use crate::wait::Waiters;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;
use proto::NodeId;
use serde::{Deserialize, Serialize};
use spin::Mutex;

/// How long one attempt to end a wait takes.
const WAKE_DEADLINE: Duration = Duration::from_secs(2);

/// How a wait has ended, if well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The lock is held; whether the last one to hold it exclusively died with it.
    Granted { after_death: bool },
    /// The event has been signalled so often.
    Count(u64),
    /// The barrier is open.
    Open,
}

struct Wait {
    home: Life,
    ended: Option<Result<Outcome, Error>>,
}

/// The waits of a node, by the numbers that it chose.
#[derive(Default)]
pub(crate) struct Waits {
    last: AtomicU64,
    table: Mutex<BTreeMap<u64, Wait>>,
    changed: Waiters,
}

/// One wait. Dropped, it is forgotten here; the home must be told by whoever began it.
pub(crate) struct Waiting<'a> {
    waits: &'a Waits,
    pub(crate) token: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waits.table.lock().remove(&self.token);
    }
}

impl Waits {
    /// Begins a wait for something at `home`. To be called before the home is asked, which may end it at once.
    pub(crate) fn begin(&self, home: Life) -> Waiting<'_> {
        let token = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.table.lock().insert(token, Wait { home, ended: None });
        Waiting { waits: self, token }
    }

    /// A home says how a wait has ended. One that nobody waits for any more is ignored, and so is a second end.
    pub(crate) fn end(&self, from: Life, token: u64, outcome: Result<Outcome, Error>) {
        if let Some(wait) = self.table.lock().get_mut(&token)
            && wait.home == from
        {
            wait.ended.get_or_insert(outcome);
        }
        self.changed.wake_all();
    }

    /// A home is gone.
    pub(crate) fn forget(&self, home: Life) {
        self.end_some(|wait| wait.home == home, &Error::NodeDown(home.0));
    }

    /// Ends all waits.
    pub(crate) fn end_all(&self, error: &Error) {
        self.end_some(|_| true, error);
    }

    fn end_some(&self, which: impl Fn(&Wait) -> bool, error: &Error) {
        for wait in self.table.lock().values_mut().filter(|wait| which(wait)) {
            wait.ended.get_or_insert(Err(error.clone()));
        }
        self.changed.wake_all();
    }
}

impl Waiting<'_> {
    /// Waits until the home has said how it ended.
    pub(crate) async fn ended(&self) -> Result<Outcome, Error> {
        let ended = || self.waits.table.lock().get_mut(&self.token).and_then(|wait| wait.ended.take());
        self.waits.changed.until(ended).await
    }
}

impl Node {
    /// Which life of a node objects there belong to.
    pub(crate) fn life_of(&self, node: NodeId) -> Result<Life, Error> {
        if node == self.me {
            return Ok((node, self.incarnation));
        }
        match self.peer_life(node) {
            Some(life) => Ok((node, life)),
            None if self.has_left(node) => Err(Error::NodeDown(node)),
            None => Err(Error::NoSuchNode),
        }
    }

    /// As a home: ends the wait `token` of a task of that life, however long it takes to say so.
    pub(crate) fn wake(self: &Arc<Self>, by: Life, token: u64, outcome: Result<Outcome, Error>) {
        if by == (self.me, self.incarnation) {
            return self.waits.end(by, token, outcome);
        }
        let node = self.clone();
        let ask = Ask::Woken { token, outcome };
        self.platform.spawn("lite-wake", Box::pin(async move { node.insist(by, &ask, WAKE_DEADLINE).await }));
    }

    /// Asks a life of a node again and again until it has answered or is gone.
    pub(crate) async fn insist(self: &Arc<Self>, whom: Life, ask: &Ask, patience: Duration) {
        let is_there = || whom == (self.me, self.incarnation) || self.peer_life(whom.0) == Some(whom.1);
        while is_there() && !self.is_fenced() {
            let deadline = self.platform.now() + patience;
            match self.ask_node(whom.0, ask, deadline).await {
                Err(Error::Unknown | Error::Deadline | Error::NoMemory { .. } | Error::NoSharedLink(_)) => {
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
                // Done, or refused for good, or gone.
                _ => return,
            }
        }
    }

    /// Waits by `deadline` for how a wait ends. `None`: the deadline has passed.
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
