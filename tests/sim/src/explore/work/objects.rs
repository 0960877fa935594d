//! Locks, events and counters of a task's own, and the scopes that end them.

use super::stage::{Owned, Thing};
use super::worker::Worker;
use lite::{Error, Permissions};
use std::future::Future;

impl Worker {
    /// Makes one object of each kind, uses it, and ends it.
    pub(super) async fn objects(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let (home, lite, id) = (self.anyone(), self.lite.with_deadline(timeout), self.fresh());
        match self.random.below(3) {
            0 => {
                let name = format!("lock-of-{id:x}");
                self.outlives(Thing::Lock(name.clone()));
                let create = async { lite.create_lock(home, &name).await };
                let lock = self.make(&name, create).await?.with_deadline(timeout);
                let guard = self.run("take its lock", timeout, lock.lock()).await;
                if lock.home() != home || matches!(&guard, Some(Ok(guard)) if guard.after_death()) {
                    self.violated("a lock has one holder", "its own lock had another holder");
                }
                drop(guard);
                self.run("end its lock", timeout, lock.destroy()).await?.ok()
            }
            1 => {
                let name = format!("event-of-{id:x}");
                self.outlives(Thing::Event(name.clone()));
                let create = async { lite.create_event(home, &name).await };
                let event = self.make(&name, create).await?.with_deadline(timeout);
                let count = self.run("signal its event", timeout, event.signal()).await;
                if event.home() != home || matches!(count, Some(Ok(count)) if count != 1) {
                    self.violated("an event counts its signals", format_args!("its own: {count:?}"));
                }
                self.run("end its event", timeout, event.destroy()).await?.ok()
            }
            _ => {
                let name = format!("counter-of-{id:x}");
                let create = async { lite.create_counter(home, &name).await };
                let counter = self.make(&name, create).await?.with_deadline(timeout);
                let value = self.run("read its counter", timeout, counter.get()).await;
                if matches!(value, Some(Ok(value)) if value != 0) {
                    self.violated("atomics are linearizable", format_args!("its own: {value:?}"));
                }
                self.run("end its counter", timeout, counter.destroy()).await?.ok()
            }
        }
    }

    /// Leaves an object for the end of the run. If its maker dies, it stays.
    pub(super) fn outlives(&self, thing: Thing) {
        self.made.lock().expect("no panic under the lock").push(Owned { node: self.node, thing });
    }

    /// Makes an object, and never drops the call meanwhile: the object of a dropped call has no owner to end
    /// it.
    async fn make<T>(&mut self, name: &str, create: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let made = create.await;
        let outcome = made.as_ref().map(drop);
        self.check.log(self.now(), format_args!("{} creates {name}: {outcome:?}", self.name));
        made.ok()
    }

    /// Checks that objects that are made in a scope end with it.
    pub(super) async fn scope(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let (lite, scope) = self.lite.with_deadline(timeout).scoped(self.host.clone());
        let (home, id) = (self.anyone(), self.fresh());
        let (event, region) = (format!("scope-event-{id:x}"), format!("scope-region-{id:x}"));
        self.outlives(Thing::Event(event.clone()));
        let made = lite.create_event(home, &event).await.is_ok();
        let rights = Permissions::READ | Permissions::SHARE;
        let published = match lite.alloc(home, 100, rights).await {
            Ok(lmr) => lmr.publish(&region).await.is_ok(),
            Err(_) => false,
        };
        scope.end(timeout).await;
        self.check.log(self.now(), format_args!("{} ends the scope {id:x}", self.name));
        let refused = lite.create_event(home, &event).await.map(drop);
        if !matches!(refused, Err(Error::Refused(_) | Error::LinkDown)) {
            self.violated("a scope ends what was made in it", format_args!("a new event: {refused:?}"));
        }
        if self.calm && made && published {
            let left = self.lite.map(&region, Permissions::READ).await.map(drop);
            let event = self.lite.open_event(&event).await.map(drop);
            if left.is_ok() || event.is_ok() {
                self.violated("a scope ends what was made in it", format_args!("{left:?}, {event:?}"));
            }
        }
        (made && published).then_some(())
    }
}
