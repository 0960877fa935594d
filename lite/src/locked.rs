//! Tables of entries for peers, locked with the evidence that a peer's incarnation is live.
//!
//! [`Node::on_left`] marks an incarnation as ended first, and then locks one table after the other to
//! remove the entries of that incarnation. A task that finds the incarnation live while it holds the lock
//! of a table therefore installs its entry before that removal, which finds the entry. A task that checked
//! before it took the lock, or before an `.await`, could install an entry after the removal, and the entry
//! would stay for ever.

use crate::Error;
use crate::lock::Mutex;
use crate::membership::Life;
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use core::ops::{Deref, DerefMut};
use spin::MutexGuard;

/// A locked table, and an incarnation that was a member when the lock was taken. Functions that install an
/// entry of a peer take this instead of the table, and install the entry for that incarnation.
pub(crate) struct LockedFor<'a, T> {
    table: MutexGuard<'a, T>,
    life: Life,
}

impl<T> LockedFor<'_, T> {
    /// Returns the incarnation that was a member when the lock was taken.
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
    /// Locks `table`, one of those that [`on_left`](Self::on_left) cleans up, in order to install an entry
    /// for `life`. Fails with `NodeDown` if that incarnation has ended, and with `LinkDown` if this node's
    /// membership has.
    pub(crate) fn lock_for<'a, T>(&self, table: &'a Mutex<T>, life: Life) -> Result<LockedFor<'a, T>, Error> {
        let table = table.lock();
        // The check must follow the lock: see the top of this file.
        if self.is_live(life) || planted(Bug::InstalledForTheDead) {
            return Ok(LockedFor { table, life });
        }
        sometimes!("a life that had ended was to install something");
        Err(self.gone(life.0, life.1).unwrap_or(Error::NodeDown(life.0)))
    }

    /// Returns true if that incarnation is a member, as far as this node knows; true for this node itself.
    pub(crate) fn is_live(&self, life: Life) -> bool {
        life == (self.me, self.incarnation) || self.peer_life(life.0) == Some(life.1)
    }
}
