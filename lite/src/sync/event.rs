//! [`Event`]: a count of signals that tasks can wait for.

use super::object::{Kind, Place};
use super::waiting::Outcome;
use crate::node::Node;
use crate::rpc::{Answer, Ask};
use crate::scope::Scoped;
use crate::{Error, Lite};
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
    node: Arc<Node>,
    place: Place,
    patience: Duration,
    scope: Scoped,
}

impl Lite {
    /// Creates an event on `home`, which may be this node, and publishes it as `name`.
    ///
    /// # Errors
    /// `NameTaken` if something is published under that name.
    pub async fn create_event(&self, home: NodeId, name: &str) -> Result<Event, Error> {
        self.by.scope.check()?;
        let place = self.by.node.new_object(Kind::Event, home, name, self.deadline()).await?;
        self.by.scope.keep_object(&self.by.node, place)?;
        Ok(self.event(place))
    }

    /// Opens the event that is published as `name`.
    pub async fn open_event(&self, name: &str) -> Result<Event, Error> {
        let place = self.by.node.find_object(Kind::Event, name, self.deadline()).await?;
        Ok(self.event(place))
    }

    fn event(&self, place: Place) -> Event {
        let (node, scope) = (self.by.node.clone(), self.by.scope.clone());
        Event { node, place, patience: self.by.patience(), scope }
    }
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
            self.event.node.spawn_leave(self.event.place, self.token, false);
        }
    }
}

impl Event {
    /// Returns a handle of the event whose operations end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { patience: d, ..self.clone() }
    }

    /// Returns the node that keeps the event.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.place.home
    }

    /// Increments the count, wakes the tasks that wait for the new count, and returns it. On `Unknown` the
    /// signal may have been counted.
    pub async fn signal(&self) -> Result<u64, Error> {
        self.node.check_home(&self.place)?;
        let deadline = self.node.platform.now() + self.patience;
        count(self.node.ask_node(self.place.home(), &Ask::Signal { place: self.place }, deadline).await?)
    }

    /// Waits until the count is above `past`, and returns it.
    pub async fn wait(&self, past: u64) -> Result<u64, Error> {
        let (node, place) = (&self.node, self.place);
        let deadline = node.platform.now() + self.patience;
        node.check_home(&place)?;
        let waiting = node.begin_wait(place.home())?;
        let mut listening = Listening { event: self, token: waiting.token, armed: true };
        let ask = Ask::Await { place, past, token: waiting.token };
        let ended = match node.ask_until(place.home(), &ask, deadline).await {
            Ok(Answer::Queued) => {
                let ended = node.wait_until(&waiting, deadline).await;
                ended.ok_or(Error::Deadline)?.and_then(|outcome| count(Answer::Ended(outcome)))
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
        self.scope.forget_object(self.place.secret);
        self.node.end_object(&self.place, self.node.platform.now() + self.patience).await
    }
}

fn count(answer: Answer) -> Result<u64, Error> {
    match answer {
        Answer::Ended(Outcome::Count(count)) => Ok(count),
        _ => Err(Error::Refused("unexpected answer".into())),
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} of {}", self.place.number, self.place.home)
    }
}
