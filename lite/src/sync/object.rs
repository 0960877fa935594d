//! Locks and events as their home keeps them, and their names.

use super::queue::{Claim, Grant, Mode, Queue};
use super::waiting::Outcome;
use super::{LONGEST_NAME, barrier::Barriers};
use crate::Error;
use crate::base::member::MemberId;
use crate::base::names::{Bearer, Named};
use crate::base::names::{Kind, ObjectAddress};
use crate::planted::{Bug, planted};
use crate::rpc::Call;
use crate::rpc::Rollback;
use crate::rpc::answer;
use crate::sync::SyncHome;
use crate::sync::request::{Request, Response};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// The time that the directory may take to bind a name.
const BIND_DEADLINE: Duration = Duration::from_secs(5);

/// A task that waits until an event's count exceeds `past`.
struct Listener {
    by: MemberId,
    token: u64,
    past: u64,
}

enum ObjectState {
    Lock(Queue),
    Event { count: u64, listeners: Vec<Listener> },
}

struct Object {
    secret: u64,
    name: String,
    state: ObjectState,
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
    pub(crate) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let at = |object: &Object| match &object.state {
            ObjectState::Lock(queue) => queue.places_of(which),
            ObjectState::Event { listeners, .. } => listeners.iter().filter(|l| which(l.by)).count(),
        };
        self.objects.values().map(at).sum::<usize>() + self.barriers.places_of(which)
    }

    fn find(&mut self, address: &ObjectAddress) -> Result<&mut ObjectState, Error> {
        let object = self.objects.get_mut(&address.number).filter(|o| o.secret == address.secret);
        object.map(|o| &mut o.state).ok_or(Error::Freed)
    }

    fn find_lock(&mut self, address: &ObjectAddress) -> Result<&mut Queue, Error> {
        match self.find(address)? {
            ObjectState::Lock(queue) => Ok(queue),
            ObjectState::Event { .. } => Err(Error::Freed),
        }
    }
}

impl SyncHome {
    // ---- At the home ----

    /// Creates an object, binds its name, and then answers.
    pub(crate) fn create_object(self: &Arc<Self>, call: Call, kind: Kind, secret: u64, name: String) {
        let state = match kind {
            Kind::Lock => ObjectState::Lock(Queue::default()),
            Kind::Event => ObjectState::Event { count: 0, listeners: Vec::new() },
        };
        let number = {
            let mut objects = match self.lock_for(&self.objects, (call.from(), call.incarnation())) {
                Ok(objects) => objects,
                Err(error) => return answer::<Response>(call, &Err(error)),
            };
            objects.last += 1;
            let number = objects.last;
            objects.objects.insert(number, Object { secret, name: name.clone(), state });
            number
        };
        let address = ObjectAddress { kind, home: self.me, incarnation: self.incarnation, number, secret };
        let node = self.clone();
        let task = async move {
            let deadline = node.platform.now() + BIND_DEADLINE;
            let bound = node.bind_named(&name, &Named::Object(address), deadline).await;
            match &bound {
                Ok(binding) => node.object_bound(number, *binding),
                Err(_) => {
                    let removed = node.objects.lock().objects.remove(&number);
                    node.tell_freed(removed);
                }
            }
            let unsure = matches!(bound, Err(Error::Unknown));
            answer(call, &bound.map(|_| Response::Created(address)));
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
            Some(ObjectState::Lock(queue)) => queue.bound(binding),
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
        let waiting: Vec<(MemberId, u64)> = match state {
            ObjectState::Lock(queue) => queue.into_waiting().map(|c| (c.by, c.token)).collect(),
            ObjectState::Event { listeners, .. } => listeners.into_iter().map(|l| (l.by, l.token)).collect(),
        };
        for (by, token) in waiting {
            self.wake(by, token, Err(Error::Freed));
        }
        Some(name)
    }

    /// Serves a claim on a lock.
    pub(crate) fn claim_lock(
        &self,
        by: MemberId,
        address: &ObjectAddress,
        mode: Mode,
        token: u64,
        wait: bool,
    ) -> Result<Response, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let claim = Claim { by: objects.member(), token, mode };
        let granted = objects.find_lock(address)?.claim(claim, wait);
        Ok(match granted {
            Some(Grant { after_death, token, .. }) => {
                Response::Ended(Outcome::Granted { after_death, token })
            }
            None => Response::Queued,
        })
    }

    /// Increments an event's count.
    pub(crate) fn signal_event(
        self: &Arc<Self>,
        by: MemberId,
        address: &ObjectAddress,
    ) -> Result<Response, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let ObjectState::Event { count, listeners } = objects.find(address)? else {
            return Err(Error::Freed);
        };
        *count += 1 + u64::from(planted(Bug::SignalTwice));
        let now = *count;
        let woken: Vec<_> = listeners.extract_if(.., |l| l.past < now && !planted(Bug::LostSignal)).collect();
        drop(objects);
        for listener in woken {
            self.wake(listener.by, listener.token, Ok(Outcome::Count(now)));
        }
        Ok(Response::Ended(Outcome::Count(now)))
    }

    /// Serves a task that waits until an event's count is above `past`.
    pub(crate) fn await_event(
        &self,
        by: MemberId,
        address: &ObjectAddress,
        past: u64,
        token: u64,
    ) -> Result<Response, Error> {
        let mut objects = self.lock_for(&self.objects, by)?;
        let ObjectState::Event { count, listeners } = objects.find(address)? else {
            return Err(Error::Freed);
        };
        if *count > past {
            return Ok(Response::Ended(Outcome::Count(*count)));
        }
        if !listeners.iter().any(|l| (l.by, l.token) == (by, token)) {
            listeners.push(Listener { by, token, past });
        }
        Ok(Response::Queued)
    }

    /// Removes a waiter or holder. `held`: the object is a lock, and the task has had it.
    pub(crate) fn leave_object(
        self: &Arc<Self>,
        by: MemberId,
        address: &ObjectAddress,
        token: u64,
        held: bool,
    ) {
        let mut objects = self.objects.lock();
        let grants = match objects.find(address) {
            Ok(ObjectState::Lock(queue)) => queue.release(by, token, held),
            Ok(ObjectState::Event { listeners, .. }) => {
                listeners.retain(|l| (l.by, l.token) != (by, token));
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        drop(objects);
        self.tell_granted(grants);
    }

    /// Removes the waits and holds of an incarnation that has ended.
    pub(crate) fn end_waits_of(self: &Arc<Self>, member: MemberId) {
        let mut objects = self.objects.lock();
        let mut grants = Vec::new();
        for object in objects.objects.values_mut() {
            match &mut object.state {
                ObjectState::Lock(queue) => grants.extend(queue.end(member)),
                ObjectState::Event { listeners, .. } => listeners.retain(|l| l.by != member),
            }
        }
        let failed = objects.barriers.forget(member);
        drop(objects);
        self.tell_granted(grants);
        self.tell_barrier(failed, &Err(Error::NodeDown(member.0)));
    }

    /// Unblocks the locks that an ended incarnation held exclusively, once all nodes know of its end.
    pub(crate) fn unblock_locks(self: &Arc<Self>, member: MemberId) {
        let mut grants = Vec::new();
        for object in self.objects.lock().objects.values_mut() {
            if let ObjectState::Lock(queue) = &mut object.state {
                grants.extend(queue.settled(member));
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
    ) -> Result<ObjectAddress, Error> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Error::Refused("a name has 1 to 256 bytes".into()));
        }
        let secret = self.random();
        let home = self.member_now(home)?;
        let undo = Rollback::new(self, home, Request::Destroy { secret });
        let ask = Request::Create { kind, secret, name: name.into() };
        let result = self.request(home, &ask, deadline).await;
        if !matches!(result, Err(Error::Unknown)) {
            undo.disarm();
        }
        match result? {
            Response::Created(address) => Ok(address),
            _ => Err(Error::Refused("unexpected answer".into())),
        }
    }

    /// Finds an object by its name.
    pub(crate) async fn find_object(
        &self,
        kind: Kind,
        name: &str,
        deadline: Instant,
    ) -> Result<ObjectAddress, Error> {
        match self.find_named(name, deadline).await? {
            Named::Object(address) if address.kind == kind => Ok(address),
            other => Err(Error::Refused(alloc::format!("`{name}` is {}, not {}", other.what(), kind.name()))),
        }
    }

    /// Ends an object. On `Ok` its waiters are being told. On an error its home is told as soon as
    /// possible.
    pub(crate) async fn end_object(
        self: &Arc<Self>,
        address: &ObjectAddress,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.check_home(address)?;
        let ask = Request::Destroy { secret: address.secret };
        let again = Rollback::new(self, address.home(), ask.clone());
        let ended = self.request_until(address.home(), &ask, deadline).await;
        if ended.is_ok() {
            again.disarm();
        }
        ended.map(drop)
    }

    /// Fails unless the object's home is still the incarnation that created it.
    pub(crate) fn check_home(&self, address: &ObjectAddress) -> Result<(), Error> {
        if address.home() == (self.me, self.incarnation) {
            return if self.is_fenced() { Err(Error::LinkDown) } else { Ok(()) };
        }
        self.gone(address.home, address.incarnation).map_or(Ok(()), Err)
    }

    /// Tells an object's home that a task has stopped waiting or holding, and repeats that until it is
    /// acknowledged. `held`: the task has had the lock.
    pub(crate) fn spawn_leave(self: &Arc<Self>, address: ObjectAddress, token: u64, held: bool) {
        // A home on this node is told by a message, too: the claim or the wait may not have been served
        // yet, and this must follow it.
        self.spawn_retry(address.home(), Request::Leave { address, token, held });
    }
}
