//! [`FencingToken`]: tells an older holder of a lock from a newer one.

use serde::{Deserialize, Serialize};

/// A number that grows with each time a lock is granted: the field's *fencing token*, Chubby's *sequencer*.
///
/// A holder that was paused, or whose lock's home has died, may not know that another one holds the lock by now. Whatever the lock
/// protects can tell: it remembers the largest token it has seen, and refuses who comes with a smaller one.
///
/// Tokens of one name only grow, on whichever node a lock of that name is made, also after its home has died or it was
/// destroyed. The first part is the number that the manager gave when the name was bound, which is larger for each later binding
/// and over restarts of the manager; the second counts the grants of the lock since.
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
    /// Grants of this lock up to that one.
    grant: u64,
}

impl FencingToken {
    /// Smaller than all that are granted.
    pub(super) const NONE: Self = Self { binding: 0, grant: 0 };

    pub(crate) const fn new(binding: u64, grant: u64) -> Self {
        Self { binding, grant }
    }

    /// The token as one number, in the same order.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        (self.binding as u128) << 64 | self.grant as u128
    }
}
