//! [`Lock`]: a lock of the cluster.

use super::FencingToken;
use super::object::{Kind, Place};
use super::queue::Mode;
use super::waiting::Outcome;
use crate::node::Node;
use crate::op::Moment;
use crate::planted::{Bug, planted};
use crate::rpc::{Answer, Ask};
use crate::scope::Scoped;
use crate::{Error, Lite};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use proto::NodeId;

/// A lock on some node, held by one task exclusively or by many shared.
///
/// Fair: tasks get it in the order in which their requests reach its home, whichever way they want it. A holder that dies loses
/// it, and the next ones are [told](LockGuard::after_death); what the dead node sent before is refused by every node from the
/// moment the next one holds it. A lock ends when it is destroyed or its home leaves; a former holder may not know that yet when
/// another lock of that name is made and taken: [`fencing_token`](LockGuard::fencing_token) tells the two apart. It is not
/// re-entrant.
///
/// Taking a free lock costs a round trip to its home, giving it back one message that nobody waits for. What this node wrote
/// while it held the lock is at its end before the lock is given back, also what it has given up.
///
/// ```
/// # use lite::{Error, Lite};
/// # use proto::NodeId;
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let lock = lite.create_lock(NodeId(2), "table").await?;
/// let held = lock.lock().await?;
/// if held.after_death() {
///     // Whoever held it before died: what it protects may be half changed.
/// }
/// held.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    node: Arc<Node>,
    place: Place,
    patience: Duration,
    scope: Scoped,
}

impl Lite {
    /// Makes a lock on `home`, which may be this node, and publishes it as `name`. Fails with `NameTaken`.
    pub async fn create_lock(&self, home: NodeId, name: &str) -> Result<Lock, Error> {
        self.by.scope.check()?;
        let place = self.by.node.new_object(Kind::Lock, home, name, self.deadline()).await?;
        self.by.scope.keep_object(&self.by.node, place)?;
        Ok(self.lock(place))
    }

    /// The lock that is published as `name`.
    pub async fn open_lock(&self, name: &str) -> Result<Lock, Error> {
        let place = self.by.node.find_object(Kind::Lock, name, self.deadline()).await?;
        Ok(self.lock(place))
    }

    fn lock(&self, place: Place) -> Lock {
        let (node, scope) = (self.by.node.clone(), self.by.scope.clone());
        Lock { node, place, patience: self.by.patience(), scope }
    }
}

impl Lock {
    /// The same lock; its operations have `d` from their call on.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { patience: d, ..self.clone() }
    }

    /// The node that keeps it.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.place.home
    }

    /// Waits until this task holds the lock alone. On `Deadline` it does not, and waits no more.
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        self.claim(Mode::Exclusive, true).await?.ok_or(Error::Deadline)
    }

    /// Waits until this task holds the lock, with others who hold it shared.
    pub async fn lock_shared(&self) -> Result<LockGuard, Error> {
        self.claim(Mode::Shared, true).await?.ok_or(Error::Deadline)
    }

    /// Holds the lock alone if nobody holds it or waits for it now, and the lock is not still being made.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.claim(Mode::Exclusive, false).await
    }

    /// Ends the lock: whoever waits for it gets [`Error::Freed`], as does whoever asks later. Its holders are not told. On errors,
    /// and if the future is dropped, it is being ended, which goes on until its home has heard of it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.scope.forget_object(self.place.secret);
        self.node.end_object(&self.place, self.node.platform.now() + self.patience).await
    }

    async fn claim(&self, mode: Mode, wait: bool) -> Result<Option<LockGuard>, Error> {
        let (node, place) = (&self.node, self.place);
        let deadline = node.platform.now() + self.patience;
        node.check_home(&place)?;
        let waiting = node.begin_wait(place.home())?;
        // From here on the home may hold it for this token: the guard gives it back, whatever happens.
        let mut guard = LockGuard {
            node: node.clone(),
            place,
            patience: self.patience,
            token: waiting.token,
            after_death: false,
            since: None,
            fencing: FencingToken::NONE,
            stage: Stage::Claimed,
        };
        let ask = Ask::Claim { place, mode, token: waiting.token, wait };
        let outcome = match node.ask_until(place.home(), &ask, deadline).await {
            Ok(Answer::Ended(outcome)) => outcome,
            Ok(Answer::Queued) if wait => {
                node.wait_until(&waiting, deadline).await.unwrap_or(Err(Error::Deadline))?
            }
            Ok(Answer::Queued) => {
                guard.stage = Stage::Over;
                return Ok(None);
            }
            Ok(_) => return Err(Error::Refused("unexpected answer".into())),
            // Whatever became of the claim, it is given back.
            Err(Error::Unknown) => return Err(Error::Deadline),
            Err(error) => {
                guard.stage = Stage::Over;
                return Err(error);
            }
        };
        let Outcome::Granted { after_death, token } = outcome else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        (guard.after_death, guard.fencing) = (after_death, token);
        guard.since = (!planted(Bug::UnlockedUnsettled)).then(|| node.moment());
        // The answer may have lain here while its home died, and another lock of that name was made.
        node.check_home(&place)?;
        guard.stage = Stage::Held;
        Ok(Some(guard))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} of {}", self.place.number, self.place.home)
    }
}

/// A lock that is held. Dropped, it is given back.
#[must_use = "the lock is given back when this is dropped"]
pub struct LockGuard {
    node: Arc<Node>,
    place: Place,
    patience: Duration,
    token: u64,
    after_death: bool,
    /// When it was granted.
    since: Option<Moment>,
    fencing: FencingToken,
    stage: Stage,
}

/// The claim of a guard, which gives back what it stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The home may hold the lock for it, or have it wait: nobody here has the lock.
    Claimed,
    /// The lock.
    Held,
    /// Nothing.
    Over,
}

impl LockGuard {
    /// The last one to hold the lock exclusively died with it, and nobody has held it exclusively since: what it protects may
    /// be half changed.
    #[must_use]
    pub const fn after_death(&self) -> bool {
        self.after_death
    }

    /// The number of this grant: larger than that of every grant before, of this lock and of former ones of its name. Whatever
    /// the lock protects can refuse who comes with a smaller one: see [`FencingToken`].
    #[must_use]
    pub const fn fencing_token(&self) -> FencingToken {
        self.fencing
    }

    /// Whether the lock protects nothing any more: its home is gone, or this node is no longer a member.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.node.check_home(&self.place).is_err()
    }

    /// Gives the lock back, with the deadline of the [`Lock`] it came from; on `Ok` its home has it. Otherwise as if dropped: the home is told as soon as it can be.
    ///
    /// The home is not told before each write and atomic of this node has come to its end that was given up or lost while the
    /// lock was held ([`Error::Unknown`], a deadline, a dropped future): the next holder finds what stays. It takes as long
    /// as [`Lite::settled`] does, and only if there are some.
    pub async fn unlock(mut self) -> Result<(), Error> {
        self.node.check_home(&self.place)?;
        let deadline = self.node.platform.now() + self.patience;
        if let Some(since) = self.since.filter(|since| !self.node.is_settled(*since)) {
            let settled = self.node.settled(since);
            if self.node.timers.before(deadline, settled).await.is_none() {
                self.node.missed();
                return Err(Error::Deadline);
            }
            self.since = None;
        }
        let ask = Ask::Leave { place: self.place, token: self.token, held: true };
        self.node.ask_node(self.place.home(), &ask, deadline).await?;
        self.stage = Stage::Over;
        Ok(())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        let (node, place, token) = (self.node.clone(), self.place, self.token);
        let held = self.stage == Stage::Held;
        match self.since.filter(|since| !node.is_settled(*since)) {
            None => node.spawn_leave(place, token, held),
            Some(since) => {
                let task = async move {
                    node.settled(since).await;
                    node.spawn_leave(place, token, held);
                };
                self.node.platform.spawn("lite-unlock", Box::pin(task));
            }
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} of {}, held", self.place.number, self.place.home)
    }
}
