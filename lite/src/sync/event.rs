//! [`Event`]: a count of signals that tasks can wait for.

use super::waiting::Outcome;
use crate::Error;
use crate::base::names::ObjectAddress;
use crate::base::scope::Scoped;
use crate::sync::SyncHome;
use crate::sync::request::{Request, Response};
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use proto::NodeId;

/// A count on some node that only grows, and that tasks can wait for. A task that remembers the last count
/// it saw misses no signal, however late it waits again.
///
/// ```
/// # use lite::{Error, Lite};
/// # use proto::NodeId;
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let ready = lite.create_event(NodeId(1), "ready").await?;
/// ready.signal().await?;
/// // Anywhere, before or after:
/// let seen = lite.open_event("ready").await?.wait(0).await?;
/// assert!(seen >= 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Event {
    pub(crate) node: Arc<SyncHome>,
    pub(crate) address: ObjectAddress,
    pub(crate) timeout: Duration,
    pub(crate) scope: Scoped,
}

/// Tells the home that the task has stopped waiting, unless the wait has ended.
struct Listening<'a> {
    event: &'a Event,
    token: u64,
    armed: bool,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.event.node.spawn_leave(self.event.address, self.token, false);
        }
    }
}

impl Event {
    /// Returns a handle of the event whose operations end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { timeout: d, ..self.clone() }
    }

    /// Returns the node that keeps the event.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.address.home
    }

    /// Increments the count, wakes the tasks that wait for the new count, and returns it. On `Unknown` the
    /// signal may have been counted.
    pub async fn signal(&self) -> Result<u64, Error> {
        self.node.check_home(&self.address)?;
        let deadline = self.node.platform.now() + self.timeout;
        count(
            self.node
                .request(self.address.home(), &Request::Signal { address: self.address }, deadline)
                .await?,
        )
    }

    /// Waits until the count is above `past`, and returns it.
    pub async fn wait(&self, past: u64) -> Result<u64, Error> {
        let (node, address) = (&self.node, self.address);
        let deadline = node.platform.now() + self.timeout;
        node.check_home(&address)?;
        let waiting = node.begin_wait(address.home())?;
        let mut listening = Listening { event: self, token: waiting.token, armed: true };
        let ask = Request::Await { address, past, token: waiting.token };
        let ended = match node.request_until(address.home(), &ask, deadline).await {
            Ok(Response::Queued) => {
                let ended = node.wait_until(&waiting, deadline).await;
                ended.ok_or(Error::Deadline)?.and_then(|outcome| count(Response::Ended(outcome)))
            }
            // The operation only waited, so nothing has happened.
            Err(Error::Unknown) => return Err(Error::Deadline),
            other => other.and_then(count),
        };
        listening.armed = false;
        ended
    }

    /// Ends the event: tasks that wait for it, and later operations, get [`Error::Freed`]. On errors, and
    /// if the future is dropped, a background task goes on until the home has ended it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.scope.forget_object(self.address.secret);
        self.node.end_object(&self.address, self.node.platform.now() + self.timeout).await
    }
}

fn count(answer: Response) -> Result<u64, Error> {
    match answer {
        Response::Ended(Outcome::Count(count)) => Ok(count),
        _ => Err(Error::Refused("unexpected answer".into())),
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} of {}", self.address.number, self.address.home)
    }
}
