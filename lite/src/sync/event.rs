//! [`Event`]: something that has happened so often.

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

/// A count that only grows, on some node, with tasks that wait for it to pass a value. Whoever remembers the last count it saw
/// misses nothing, however late it asks.
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
    /// Makes an event on `home`, which may be this node, and publishes it as `name`. Fails with `NameTaken`.
    pub async fn create_event(&self, home: NodeId, name: &str) -> Result<Event, Error> {
        self.by.scope.check()?;
        let place = self.by.node.new_object(Kind::Event, home, name, self.deadline()).await?;
        self.by.scope.keep_object(&self.by.node, place)?;
        Ok(self.event(place))
    }

    /// The event that is published as `name`.
    pub async fn open_event(&self, name: &str) -> Result<Event, Error> {
        let place = self.by.node.find_object(Kind::Event, name, self.deadline()).await?;
        Ok(self.event(place))
    }

    fn event(&self, place: Place) -> Event {
        let (node, scope) = (self.by.node.clone(), self.by.scope.clone());
        Event { node, place, patience: self.by.patience(), scope }
    }
}

/// Tells the home that nobody waits any more, unless the wait has ended.
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
    /// The same event; its operations have `d` from their call on.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { patience: d, ..self.clone() }
    }

    /// The node that keeps it.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.place.home
    }

    /// Counts up by one and wakes whoever waits for that; gives the count. On `Unknown` it may have been counted.
    pub async fn signal(&self) -> Result<u64, Error> {
        self.node.check_home(&self.place)?;
        let deadline = self.node.platform.now() + self.patience;
        count(self.node.ask_node(self.place.home(), &Ask::Signal { place: self.place }, deadline).await?)
    }

    /// Waits until the count is above `past`; gives it.
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
            // It only waited: nothing has happened.
            Err(Error::Unknown) => return Err(Error::Deadline),
            other => other.and_then(count),
        };
        listening.armed = false;
        ended
    }

    /// Ends the event: whoever waits for it gets [`Error::Freed`], as does whoever asks later. On errors, and if the future is
    /// dropped, it is being ended, which goes on until its home has heard of it.
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
