//! Operations without a known result that may still change a peer's memory: those that no task waits for
//! any more, and those whose connection broke.
//!
//! A broken connection says nothing about the operations in flight on it: the peer's queue pair accepts a
//! packet that the network delays for as long as the queue pair exists. Only the peer's message that its
//! queue pair is destroyed ends that.

use super::status::OpId;
use super::validity::StampId;
use crate::base::member::MemberId;
use crate::sometimes::sometimes;
use crate::transport::conn::Conn;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

/// A point in time of a node: the number of unfinished operations that it has noted so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The moment before all others.
    pub(crate) const FIRST: Self = Self(0);
}

/// The reason for which an operation may still change memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// On the wire without a waiter.
    Abandoned(OpId),
    /// The connection of that number to that peer broke.
    Lost(MemberId, u64),
}

/// One operation, or several that were lost on one connection.
struct Entry {
    why: Why,
    /// The mapping that the operation went through.
    stamp: StampId,
    /// The moments at which the first and the last of them were noted.
    noted: [Moment; 2],
}

/// The unfinished operations of a node. There are none as a rule.
pub(crate) struct Unfinished {
    now: Moment,
    entries: Vec<Entry>,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self { now: Moment::FIRST, entries: Vec::new() }
    }
}

impl Unfinished {
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    fn tick(&mut self) -> Moment {
        let now = self.now;
        self.now = Moment(now.0 + 1);
        now
    }

    /// Notes an operation on the wire whose task has stopped waiting.
    #[cold]
    pub(super) fn abandoned(&mut self, id: OpId, stamp: StampId) {
        sometimes!("an operation on the wire was given up");
        let now = self.tick();
        self.entries.push(Entry { why: Why::Abandoned(id), stamp, noted: [now; 2] });
    }

    /// Handles the end of an operation that was abandoned, or that has failed; `lost` is the connection in
    /// the latter case.
    #[cold]
    pub(super) fn ended(&mut self, id: OpId, stamp: StampId, lost: Option<&Arc<Conn>>) {
        let at = self.entries.iter().position(|e| e.why == Why::Abandoned(id));
        let was = at.map(|at| self.entries.swap_remove(at).noted);
        // Both ends of a loop-back connection are destroyed at once.
        let Some(conn) = lost.filter(|conn| conn.channels.is_some()) else { return };
        sometimes!("an operation was lost with its connection");
        let noted = was.unwrap_or_else(|| [self.tick(); 2]);
        let why = Why::Lost((conn.peer, conn.incarnation), conn.id);
        match self.entries.iter_mut().find(|e| e.why == why && e.stamp == stamp) {
            Some(known) => {
                known.noted = [known.noted[0].min(noted[0]), known.noted[1].max(noted[1])];
            }
            None => self.entries.push(Entry { why, stamp, noted }),
        }
    }

    /// Returns true if operations were lost on a connection.
    pub(crate) fn awaits(&self, peer: MemberId, conn: u64) -> bool {
        self.entries.iter().any(|e| e.why == Why::Lost(peer, conn))
    }

    /// Returns the connections to a peer on which operations were lost.
    pub(crate) fn awaited(&self, peer: MemberId) -> BTreeSet<u64> {
        let lost = |entry: &Entry| match entry.why {
            Why::Lost(of, conn) if of == peer => Some(conn),
            _ => None,
        };
        self.entries.iter().filter_map(lost).collect()
    }

    /// Forgets what was lost on a connection whose end at the peer is destroyed: it changes nothing any
    /// more.
    pub(crate) fn silent(&mut self, peer: MemberId, conn: u64) {
        self.entries.retain(|e| e.why != Why::Lost(peer, conn));
    }

    /// Forgets what was lost on the way to a departed peer, whose memory is lost as well.
    pub(crate) fn forget(&mut self, peer: MemberId) {
        self.entries.retain(|e| !matches!(e.why, Why::Lost(p, _) if p == peer));
    }

    /// Forgets all lost operations, because this node is no longer a member: its peers destroy their queue
    /// pairs to it before they reuse memory.
    pub(crate) fn forget_all_lost(&mut self) {
        self.entries.retain(|e| !matches!(e.why, Why::Lost(..)));
    }

    /// Returns true if operations through that mapping were lost. (Those that were abandoned are on the
    /// wire.)
    pub(super) fn passes(&self, stamp: StampId) -> bool {
        self.entries.iter().any(|e| e.stamp == stamp)
    }

    /// Returns true if some were noted in that time.
    pub(crate) fn any(&self, time: &Range<Moment>) -> bool {
        self.entries.iter().any(|e| e.noted[1] >= time.start && e.noted[0] < time.end)
    }

    /// Returns the number of entries.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
