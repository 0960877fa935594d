//! Locks and events as their home keeps them, and their names.

use super::queue::{Claim, Grant, Mode, Queue};
use super::waiting::Outcome;
use super::{LONGEST_NAME, barrier::Barriers};
use crate::Error;
use crate::membership::Life;
use crate::names::{Bearer, Named};
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::rpc::{Answer, Ask, Call, Undo, answer};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// The time that the directory may take to bind a name.
const BIND_DEADLINE: Duration = Duration::from_secs(5);

/// The kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Lock,
    Event,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "a lock",
            Self::Event => "an event",
        }
    }
}

/// The home of an object and the secret that each request for it must carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) home: NodeId,
    pub(crate) life: Incarnation,
    pub(crate) number: u64,
    pub(crate) secret: u64,
}

impl Place {
    pub(crate) fn home(&self) -> Life {
        (self.home, self.life)
    }
}

/// A task that waits until an event's count exceeds `past`.
struct Listener {
    by: Life,
    token: u64,
    past: u64,
}

enum State {
    Lock(Queue),
    Event { count: u64, listeners: Vec<Listener> },
}

struct Object {
    secret: u64,
    name: String,
    state: State,
}

/// The locks and events whose home this node is, and the barriers.
#[derive(Default)]
pub(crate) struct Objects {
    last: u64,
    objects: BTreeMap<u64, Object>,
    pub(super) barriers: Barriers,
}

impl Objects {
    /// Returns the number of locks and events, and of barriers with waiters.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.objects.len(), self.barriers.len())
    }

    /// Returns the number of holders and waiters whose incarnations `which` selects.
    #[cfg(feature = "testing")]
    pub(crate) fn places_of(&self, which: &dyn Fn(Life) -> bool) -> usize {
        let at = |object: &Object| match &object.state {
            State::Lock(queue) => queue.places_of(which),
            State::Event { listeners, .. } => listeners.iter().filter(|l| which(l.by)).count(),
        };
        self.objects.values().map(at).sum::<usize>() + self.barriers.places_of(which)
    }

    fn find(&mut self, place: &Place) -> Result<&mut State, Error> {
        let object = self.objects.get_mut(&place.number).filter(|o| o.secret == place.secret);
        object.map(|o| &mut o.state).ok_or(Error::Freed)
    }

    fn find_lock(&mut self, place: &Place) -> Result<&mut Queue, Error> {
        match self.find(place)? {
            State::Lock(queue) => Ok(queue),
            State::Event { .. } => Err(Error::Freed),
        }
    }
}

impl Node {
    // ---- At the home ----

    /// Creates an object, binds its name, and then answers.
    pub(crate) fn create_object(self: &Arc<Self>, call: Call, kind: Kind, secret: u64, name: String) {
        let state = match kind {
            Kind::Lock => State::Lock(Queue::default()),
            Kind::Event => State::Event { count: 0, listeners: Vec::new() },
        };
        let number = {
            let mut objects = match self.lock_for(&self.objects, (call.from(), call.incarnation())) {
                Ok(objects) => objects,
                Err(error) => return answer(call, Err(error)),
            };
            objects.last += 1;
            let number = objects.last;
            objects.objects.insert(number, Object { secret, name: name.clone(), state });
            number
        };
        let place = Place { kind, home: self.me, life: self.incarnation, number, secret };
        let node = self.clone();
        let task = async move {
            let deadline = node.platform.now() + BIND_DEADLINE;
            let bound = node.bind_named(&name, &Named::Object(place), deadline).await;
            match &bound {
                Ok(binding) => node.object_bound(number, *binding),
                Err(_) => {
                    let removed = node.objects.lock().objects.remove(&number);
                    node.tell_freed(removed);
                }
            }
            let unsure = matches!(bound, Err(Error::Unknown));
            answer(call, bound.map(|_| Answer::Created(place)));
            if unsure {
                node.unbind_at_last(&name, Bearer::Object(number)).await;
            }
        };
        self.platform.spawn("lite-create", Box::pin(task));
    }

    /// Opens an object whose name has been bound. Other nodes may have found it already, and wait.
    fn object_bound(self: &Arc<Self>, number: u64, binding: u64) {
        let mut objects = self.objects.lock();
        let grants = match objects.objects.get_mut(&number).map(|o| &mut o.state) {
            Some(State::Lock(queue)) => queue.bound(binding),
            _ => Vec::new(),
        };
        drop(objects);
        self.tell_granted(grants);
    }

    /// Removes the object that was made under `secret`, if there is one, and tells its waiters.
    pub(crate) fn destroy_object(self: &Arc<Self>, secret: u64) {
        let (number, removed) = {
            let mut objects = self.objects.lock();
            let number = objects.objects.iter().find(|(_, o)| o.secret == secret).map(|(number, _)| *number);
            let Some(number) = number else { return };
            (number, objects.objects.remove(&number))
        };
        let Some(name) = self.tell_freed(removed) else { return };
        let node = self.clone();
        let task = async move { node.unbind_at_last(&name, Bearer::Object(number)).await };
        self.platform.spawn("lite-unbind", Box::pin(task));
    }

    /// Tells the waiters of an object that it has ended, and returns its name.
    fn tell_freed(self: &Arc<Self>, removed: Option<Object>) -> Option<String> {
        let Object { name, state, .. } = removed?;
        let waiting: Vec<(Life, u64)> = match state {
            State::Lock(queue) => queue.into_waiting().map(|c| (c.by, c.token)).collect(),
            State::Event { listeners, .. } => listeners.into_iter().map(|l| (l.by, l.token)).collect(),
        };
        for (by, token) in waiting {
            self.wake(by, token, Err(Error::Freed));
        }
        Some(name)
    }

    /// Serves a claim on a lock.
    pub(crate) fn claim_lock(
        &self,
        by: Life,
        place: &Place,
        mode: Mode,
        token: u64,
        wait: bool,
    ) -> Result<Answer, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let claim = Claim { by: objects.life(), token, mode };
        let granted = objects.find_lock(place)?.claim(claim, wait);
        Ok(match granted {
            Some(Grant { after_death, token, .. }) => Answer::Ended(Outcome::Granted { after_death, token }),
            None => Answer::Queued,
        })
    }

    /// Increments an event's count.
    pub(crate) fn signal_event(self: &Arc<Self>, by: Life, place: &Place) -> Result<Answer, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let State::Event { count, listeners } = objects.find(place)? else { return Err(Error::Freed) };
        *count += 1 + u64::from(planted(Bug::SignalTwice));
        let now = *count;
        let woken: Vec<_> = listeners.extract_if(.., |l| l.past < now && !planted(Bug::LostSignal)).collect();
        drop(objects);
        for listener in woken {
            self.wake(listener.by, listener.token, Ok(Outcome::Count(now)));
        }
        Ok(Answer::Ended(Outcome::Count(now)))
    }

    /// Serves a task that waits until an event's count is above `past`.
    pub(crate) fn await_event(
        &self,
        by: Life,
        place: &Place,
        past: u64,
        token: u64,
    ) -> Result<Answer, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let State::Event { count, listeners } = objects.find(place)? else { return Err(Error::Freed) };
        if *count > past {
            return Ok(Answer::Ended(Outcome::Count(*count)));
        }
        if !listeners.iter().any(|l| (l.by, l.token) == (by, token)) {
            listeners.push(Listener { by, token, past });
        }
        Ok(Answer::Queued)
    }

    /// Removes a waiter or holder. `held`: the object is a lock, and the task has had it.
    pub(crate) fn leave_object(self: &Arc<Self>, by: Life, place: &Place, token: u64, held: bool) {
        let mut objects = self.objects.lock();
        let grants = match objects.find(place) {
            Ok(State::Lock(queue)) => queue.release(by, token, held),
            Ok(State::Event { listeners, .. }) => {
                listeners.retain(|l| (l.by, l.token) != (by, token));
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        drop(objects);
        self.tell_granted(grants);
    }

    /// Removes the waits and holds of an incarnation that has ended.
    pub(crate) fn end_waits_of(self: &Arc<Self>, life: Life) {
        let mut objects = self.objects.lock();
        let mut grants = Vec::new();
        for object in objects.objects.values_mut() {
            match &mut object.state {
                State::Lock(queue) => grants.extend(queue.end(life)),
                State::Event { listeners, .. } => listeners.retain(|l| l.by != life),
            }
        }
        let failed = objects.barriers.forget(life);
        drop(objects);
        self.tell_granted(grants);
        self.tell_barrier(failed, &Err(Error::NodeDown(life.0)));
    }

    /// Unblocks the locks that an ended incarnation held exclusively, once all nodes know of its end.
    pub(crate) fn unblock_locks(self: &Arc<Self>, life: Life) {
        let mut grants = Vec::new();
        for object in self.objects.lock().objects.values_mut() {
            if let State::Lock(queue) = &mut object.state {
                grants.extend(queue.settled(life));
            }
        }
        self.tell_granted(grants);
    }

    fn tell_granted(self: &Arc<Self>, grants: Vec<Grant>) {
        for Grant { claim, after_death, token } in grants {
            self.wake(claim.by, claim.token, Ok(Outcome::Granted { after_death, token }));
        }
    }

    // ---- At the user ----

    /// Creates an object on `home`.
    pub(crate) async fn new_object(
        self: &Arc<Self>,
        kind: Kind,
        home: NodeId,
        name: &str,
        deadline: Instant,
    ) -> Result<Place, Error> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Error::Refused("a name has 1 to 256 bytes".into()));
        }
        let secret = self.random();
        let home = self.life_of(home)?;
        let undo = Undo::new(self, home, Ask::Destroy { secret });
        let ask = Ask::Create { kind, secret, name: name.into() };
        let result = self.ask_node(home, &ask, deadline).await;
        if !matches!(result, Err(Error::Unknown)) {
            undo.disarm();
        }
        match result? {
            Answer::Created(place) => Ok(place),
            _ => Err(Error::Refused("unexpected answer".into())),
        }
    }

    /// Finds an object by its name.
    pub(crate) async fn find_object(
        &self,
        kind: Kind,
        name: &str,
        deadline: Instant,
    ) -> Result<Place, Error> {
        match self.find_named(name, deadline).await? {
            Named::Object(place) if place.kind == kind => Ok(place),
            other => Err(Error::Refused(alloc::format!("`{name}` is {}, not {}", other.what(), kind.name()))),
        }
    }

    /// Ends an object. On `Ok` its waiters are being told. On an error its home is told as soon as
    /// possible.
    pub(crate) async fn end_object(self: &Arc<Self>, place: &Place, deadline: Instant) -> Result<(), Error> {
        self.check_home(place)?;
        let ask = Ask::Destroy { secret: place.secret };
        let again = Undo::new(self, place.home(), ask.clone());
        let ended = self.ask_until(place.home(), &ask, deadline).await;
        if ended.is_ok() {
            again.disarm();
        }
        ended.map(drop)
    }

    /// Fails unless the object's home is still the incarnation that created it.
    pub(crate) fn check_home(&self, place: &Place) -> Result<(), Error> {
        if place.home() == (self.me, self.incarnation) {
            return if self.is_fenced() { Err(Error::LinkDown) } else { Ok(()) };
        }
        self.gone(place.home, place.life).map_or(Ok(()), Err)
    }

    /// Tells an object's home that a task has stopped waiting or holding, and repeats that until it is
    /// acknowledged. `held`: the task has had the lock.
    pub(crate) fn spawn_leave(self: &Arc<Self>, place: Place, token: u64, held: bool) {
        // A home on this node is told by a message, too: the claim or the wait may not have been served
        // yet, and this must follow it.
        self.spawn_insist(place.home(), Ask::Leave { place, token, held });
    }
}
