//! [`Lock`]: a lock of the cluster.

use super::fencing::FencingToken;
use super::queue::Mode;
use super::waiting::Outcome;
use crate::Error;
use crate::base::names::ObjectAddress;
use crate::base::scope::Scoped;
use crate::planted::{Bug, planted};
use crate::sync::SyncHome;
use crate::sync::request::{Request, Response};
use crate::transport::op::Moment;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use proto::NodeId;

/// A lock on some node, held by one task exclusively or by many shared.
///
/// The lock is fair: tasks get it in the order in which their requests reach its home, in either mode. A
/// holder that dies loses it, and the next holders are [told](LockGuard::after_death); from the moment the
/// next one holds it, every node refuses what the dead node sent before. A lock ends when it is destroyed
/// or its home leaves. A former holder may not know that yet when another lock of the same name is created
/// and taken: [`fencing_token`](LockGuard::fencing_token) tells the two apart. The lock is not re-entrant.
///
/// Taking a free lock costs a round trip to its home; releasing it costs one message, for which no task
/// waits. The release waits until the fate of everything that this node wrote while it held the lock is
/// decided, also of writes that it has given up.
///
/// ```
/// # use lite::{Error, Lite};
/// # use proto::NodeId;
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let lock = lite.create_lock(NodeId(2), "table").await?;
/// let held = lock.lock().await?;
/// if held.after_death() {
///     // The last holder has died: the data that the lock protects may be half changed.
/// }
/// held.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    pub(crate) node: Arc<SyncHome>,
    pub(crate) address: ObjectAddress,
    pub(crate) timeout: Duration,
    pub(crate) scope: Scoped,
}

impl Lock {
    /// Returns a handle of the lock whose operations end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { timeout: d, ..self.clone() }
    }

    /// Returns the node that keeps the lock.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.address.home
    }

    /// Waits until this task holds the lock exclusively. On `Deadline` it does not hold it and has stopped
    /// waiting.
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        self.claim(Mode::Exclusive, true).await?.ok_or(Error::Deadline)
    }

    /// Waits until this task holds the lock, shared with others.
    pub async fn lock_shared(&self) -> Result<LockGuard, Error> {
        self.claim(Mode::Shared, true).await?.ok_or(Error::Deadline)
    }

    /// Takes the lock exclusively if no task holds it or waits for it, and its creation has ended; returns
    /// `None` otherwise.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.claim(Mode::Exclusive, false).await
    }

    /// Ends the lock: tasks that wait for it, and later operations, get [`Error::Freed`]. Its holders are
    /// not told. On errors, and if the future is dropped, a background task goes on until the home has
    /// ended it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.scope.forget_object(self.address.secret);
        self.node.end_object(&self.address, self.node.platform.now() + self.timeout).await
    }

    async fn claim(&self, mode: Mode, wait: bool) -> Result<Option<LockGuard>, Error> {
        let (node, address) = (&self.node, self.address);
        let deadline = node.platform.now() + self.timeout;
        node.check_home(&address)?;
        let waiting = node.begin_wait(address.home())?;
        // From here on the home may hold the lock for this token: dropping the guard releases it in any
        // case.
        let mut guard = LockGuard {
            node: node.clone(),
            address,
            timeout: self.timeout,
            token: waiting.token,
            after_death: false,
            since: None,
            fencing: FencingToken::NONE,
            state: ClaimState::Claimed,
        };
        let ask = Request::Claim { address, mode, token: waiting.token, wait };
        let outcome = match node.request_until(address.home(), &ask, deadline).await {
            Ok(Response::Ended(outcome)) => outcome,
            Ok(Response::Queued) if wait => {
                node.wait_until(&waiting, deadline).await.unwrap_or(Err(Error::Deadline))?
            }
            Ok(Response::Queued) => {
                guard.state = ClaimState::Over;
                return Ok(None);
            }
            Ok(_) => return Err(Error::Refused("unexpected answer".into())),
            // The outcome of the claim is not known, so dropping the guard releases it.
            Err(Error::Unknown) => return Err(Error::Deadline),
            Err(error) => {
                guard.state = ClaimState::Over;
                return Err(error);
            }
        };
        let Outcome::Granted { after_death, token } = outcome else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        (guard.after_death, guard.fencing) = (after_death, token);
        guard.since = (!planted(Bug::UnlockedUnsettled)).then(|| node.moment());
        // While the answer waited here, the lock's home may have died and another lock of that name may
        // exist.
        node.check_home(&address)?;
        guard.state = ClaimState::Held;
        Ok(Some(guard))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} of {}", self.address.number, self.address.home)
    }
}

/// The lock while it is held. Dropping this releases it.
#[must_use = "the lock is given back when this is dropped"]
pub struct LockGuard {
    node: Arc<SyncHome>,
    address: ObjectAddress,
    timeout: Duration,
    token: u64,
    after_death: bool,
    /// The time at which the lock was granted.
    since: Option<Moment>,
    fencing: FencingToken,
    state: ClaimState,
}

/// The state of a guard's claim, which is released when the guard is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimState {
    /// The home may hold the lock for this claim, or keep it waiting; the task does not have the lock.
    Claimed,
    /// The task holds the lock.
    Held,
    /// The claim has ended, and nothing is left to release.
    Over,
}

impl LockGuard {
    /// Returns true if the last exclusive holder died with the lock, and no task has held it exclusively
    /// since: the data that it protects may be half changed.
    #[must_use]
    pub const fn after_death(&self) -> bool {
        self.after_death
    }

    /// Returns the number of this grant: larger than that of every earlier grant, of this lock and of
    /// former locks of its name. The resource that the lock protects can refuse a smaller one: see
    /// [`FencingToken`].
    #[must_use]
    pub const fn fencing_token(&self) -> FencingToken {
        self.fencing
    }

    /// Returns true if the lock protects nothing any more: its home has departed, or this node is no longer
    /// a member.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.node.check_home(&self.address).is_err()
    }

    /// Releases the lock, with the deadline of the [`Lock`] that it came from. On `Ok` the home has
    /// released it. On an error a background task tells the home as soon as possible, as after a drop.
    ///
    /// Writes and atomics of this node that were given up or lost while the lock was held
    /// ([`Error::Unknown`], a deadline, a dropped future) may still happen. The home is told only after
    /// each of them has ended, so that the next holder finds the final data. If there are any, this takes
    /// as long as [`Lite::settled`](crate::Lite::settled).
    pub async fn unlock(mut self) -> Result<(), Error> {
        self.node.check_home(&self.address)?;
        let deadline = self.node.platform.now() + self.timeout;
        if let Some(since) = self.since.filter(|since| !self.node.is_settled(*since)) {
            let settled = self.node.settled(since);
            if self.node.timers.before(deadline, settled).await.is_none() {
                self.node.missed();
                return Err(Error::Deadline);
            }
            self.since = None;
        }
        let ask = Request::Leave { address: self.address, token: self.token, held: true };
        self.node.request(self.address.home(), &ask, deadline).await?;
        self.state = ClaimState::Over;
        Ok(())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.state == ClaimState::Over {
            return;
        }
        let (node, address, token) = (self.node.clone(), self.address, self.token);
        let held = self.state == ClaimState::Held;
        match self.since.filter(|since| !node.is_settled(*since)) {
            None => node.spawn_leave(address, token, held),
            Some(since) => {
                let task = async move {
                    node.settled(since).await;
                    node.spawn_leave(address, token, held);
                };
                self.node.platform.spawn("lite-unlock", Box::pin(task));
            }
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} of {}, held", self.address.number, self.address.home)
    }
}
