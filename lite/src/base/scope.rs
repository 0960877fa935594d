//! Scopes: everything that is made within a scope, such as a job, ends with it.

use super::lock::Mutex;
use crate::Error;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::time::Duration;
use platform::Task;

/// An object of a scope. Objects end in the order of the variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    /// A function or mailbox: the number, and the address of the queue.
    Service(u32, usize),
    /// A lock or event, by its secret number.
    Object(u64),
    /// A published region: the name, and the number of the mapping.
    Region(String, u64),
}

/// Ends an object, within the given time.
pub(crate) type End = Box<dyn FnOnce(Duration) -> Task + Send>;

type Made = BTreeMap<Kept, End>;

/// The objects made through a handle of [`Lite::scoped`](crate::Lite::scoped). Call [`end`](Self::end) to end
/// them; dropping the scope leaves them.
pub struct Scope {
    /// The objects of the scope; `None` once the scope has ended.
    made: Arc<Mutex<Option<Made>>>,
}

impl Scope {
    pub(crate) fn new() -> Self {
        Self { made: Arc::new(Mutex::new(Some(Made::new()))) }
    }

    /// Returns a reference to the scope, as handles hold it.
    pub(crate) fn handle(&self) -> Scoped {
        Scoped(Some(Arc::downgrade(&self.made)))
    }

    /// Ends all objects that were made in the scope and still exist. Nothing can be made in it afterwards
    /// ([`Error::Refused`]). Each object may take as long as `timeout`; LITE goes on telling nodes that could
    /// not be reached by then.
    pub async fn end(&self, timeout: Duration) {
        let Some(made) = self.made.lock().take() else { return };
        for end in made.into_values() {
            end(timeout).await;
        }
    }
}

/// The scope that a handle belongs to, if any.
#[derive(Clone, Default)]
pub(crate) struct Scoped(Option<Weak<Mutex<Option<Made>>>>);

impl Scoped {
    /// Calls `f` with the objects of the scope; returns `None` without a scope.
    fn with<T>(&self, f: impl FnOnce(&mut Made) -> T) -> Option<Result<T, Error>> {
        let made = self.0.as_ref()?.upgrade();
        let done = made.and_then(|made| made.lock().as_mut().map(f));
        Some(done.ok_or_else(|| Error::Refused("the job that this handle was made for has ended".into())))
    }

    /// Fails if the scope has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.with(|_| ()).unwrap_or(Ok(()))
    }

    /// Notes an object that has been made, or is about to be made. Returns false if it was noted before.
    pub(crate) fn keep(&self, object: Kept, end: impl FnOnce() -> End) -> Result<bool, Error> {
        let note = |made: &mut Made| {
            let is_new = !made.contains_key(&object);
            if is_new {
                made.insert(object, end());
            }
            is_new
        };
        self.with(note).unwrap_or(Ok(false))
    }

    /// Forgets the objects that `which` selects.
    pub(crate) fn forget(&self, which: impl Fn(&Kept) -> bool) {
        let take = |made: &mut Made| -> Vec<_> { made.extract_if(.., |kept, _| which(kept)).collect() };
        // The removed entries are dropped without the lock, because dropping a handle takes other locks.
        drop(self.with(take));
    }

    /// Forgets a name that a region does not have.
    pub(crate) fn forget_name(&self, name: &str) {
        self.forget(|kept| matches!(kept, Kept::Region(of, _) if of == name));
    }

    /// Forgets a region that is freed.
    pub(crate) fn forget_region(&self, mapping: u64) {
        self.forget(|kept| matches!(kept, Kept::Region(_, of) if *of == mapping));
    }

    /// Forgets a lock or event that is being destroyed.
    pub(crate) fn forget_object(&self, secret: u64) {
        self.forget(|kept| *kept == Kept::Object(secret));
    }
}
