//! [`FencingToken`]: tells an older holder of a lock from a newer one.

use serde::{Deserialize, Serialize};

/// A number that grows with each grant of a lock: the field's *fencing token*, Chubby's *sequencer*.
///
/// A holder that was paused, or whose lock's home has died, may not know that another task holds the lock
/// by now. The resource that the lock protects can tell the two apart: it remembers the largest token it
/// has seen, and refuses a smaller one.
///
/// The tokens of one name only grow, on whichever node a lock of that name is created, also after its home
/// has died or the lock was destroyed. The first part is the number that the manager gave to the binding of
/// the name: later bindings get larger numbers, also after a restart of the manager. The second part counts
/// the grants of the lock since.
///
/// ```
/// # use lite::{Error, Lite, FencingToken};
/// # async fn example(lite: &Lite, newest: &mut FencingToken) -> Result<(), Error> {
/// let held = lite.open_lock("table").await?.lock().await?;
/// let token = held.fencing_token();
/// // Where the table is kept, before a change is made:
/// if token < *newest {
///     return Err(Error::Permission);
/// }
/// *newest = token;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct FencingToken {
    /// The number of the binding of the lock's name.
    binding: u64,
    /// The number of grants of this lock, up to and including this one.
    grant: u64,
}

impl FencingToken {
    /// A token smaller than all granted ones.
    pub(super) const NONE: Self = Self { binding: 0, grant: 0 };

    pub(crate) const fn new(binding: u64, grant: u64) -> Self {
        Self { binding, grant }
    }

    /// Returns the token as one number, in the same order.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        (self.binding as u128) << 64 | self.grant as u128
    }
}
