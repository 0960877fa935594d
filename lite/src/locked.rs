//! Tables of what a node keeps for its peers, locked with the evidence that a peer's life goes on.
//!
//! [`Node::on_left`] marks a life as ended first, and then locks one table after the other to remove what belongs to that life. A
//! task that finds the life alive while it holds the lock of a table therefore installs its entry before that removal, which
//! finds the entry. A task that looked before it took the lock, or before an `.await`, could install an entry behind the
//! removal, and nobody would ever remove that entry.

use crate::Error;
use crate::lock::Mutex;
use crate::membership::Life;
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use core::ops::{Deref, DerefMut};
use spin::MutexGuard;

/// A locked table, and a life that was a member when the lock was taken. Functions that install an entry of a peer take this
/// instead of the table, and install the entry for that life.
pub(crate) struct LockedFor<'a, T> {
    table: MutexGuard<'a, T>,
    life: Life,
}

impl<T> LockedFor<'_, T> {
    /// The life that was a member when the lock was taken.
    pub(crate) fn life(&self) -> Life {
        self.life
    }
}

impl<T> Deref for LockedFor<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.table
    }
}

impl<T> DerefMut for LockedFor<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.table
    }
}

impl Node {
    /// Locks `table`, one of those that [`on_left`](Self::on_left) cleans up, in order to install something for `life`. Fails
    /// with `NodeDown` if that life has ended, and with `LinkDown` if this node's membership has.
    pub(crate) fn lock_for<'a, T>(&self, table: &'a Mutex<T>, life: Life) -> Result<LockedFor<'a, T>, Error> {
        let table = table.lock();
        // After the lock, not before it: see the top of this file.
        if self.is_live(life) || planted(Bug::InstalledForTheDead) {
            return Ok(LockedFor { table, life });
        }
        sometimes!("a life that had ended was to install something");
        Err(self.gone(life.0, life.1).unwrap_or(Error::NodeDown(life.0)))
    }

    /// Whether that life of a node is a member, as far as this node knows. This node's own is.
    pub(crate) fn is_live(&self, life: Life) -> bool {
        life == (self.me, self.incarnation) || self.peer_life(life.0) == Some(life.1)
    }
}
