//! Operations whose result nobody has learned and that may still change a peer's memory: those that nobody waits for any more,
//! and those whose connection broke under them.
//!
//! A broken connection says nothing about what was under way on it: a packet that the network delays is taken by the
//! peer's queue pair for as long as that lives. Only the peer's word that its queue pair is destroyed ends that.

use super::OpId;
use crate::conn::Conn;
use crate::membership::Life;
use crate::region::StampId;
use crate::sometimes::sometimes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

/// A moment of a node, by how many unfinished operations it has ever noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Before all others.
    pub(crate) const FIRST: Self = Self(0);
}

/// Why an operation may still change memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// It is on the wire, and nobody waits for it.
    Abandoned(OpId),
    /// The connection of that number to that peer broke under it.
    Lost(Life, u64),
}

/// One operation, or several that were lost on one connection.
struct Entry {
    why: Why,
    /// The mapping that it went through.
    stamp: StampId,
    /// When it was noted: the first of several, and the last.
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
    /// Now.
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    fn tick(&mut self) -> Moment {
        let now = self.now;
        self.now = Moment(now.0 + 1);
        now
    }

    /// Nobody waits any more for an operation that is on the wire.
    #[cold]
    pub(super) fn abandoned(&mut self, id: OpId, stamp: StampId) {
        sometimes!("an operation on the wire was given up");
        let now = self.tick();
        self.entries.push(Entry { why: Why::Abandoned(id), stamp, noted: [now; 2] });
    }

    /// An operation has ended that was abandoned, or that has failed: then its connection is told.
    #[cold]
    pub(super) fn ended(&mut self, id: OpId, stamp: StampId, lost: Option<&Arc<Conn>>) {
        let at = self.entries.iter().position(|e| e.why == Why::Abandoned(id));
        let was = at.map(|at| self.entries.swap_remove(at).noted);
        // Both ends of a loop-back connection are destroyed at once.
        let Some(conn) = lost.filter(|conn| conn.rpc.is_some()) else { return };
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

    /// Whether operations were lost on a connection.
    pub(crate) fn awaits(&self, peer: Life, conn: u64) -> bool {
        self.entries.iter().any(|e| e.why == Why::Lost(peer, conn))
    }

    /// The peer has destroyed its end of a connection: what was lost on it changes nothing any more.
    pub(crate) fn silent(&mut self, peer: Life, conn: u64) {
        self.entries.retain(|e| e.why != Why::Lost(peer, conn));
    }

    /// A peer is gone, and its memory with it.
    pub(crate) fn forget(&mut self, peer: Life) {
        self.entries.retain(|e| !matches!(e.why, Why::Lost(p, _) if p == peer));
    }

    /// This node is no member any more: its peers destroy their queue pairs to it before they use memory again.
    pub(crate) fn forget_all_lost(&mut self) {
        self.entries.retain(|e| !matches!(e.why, Why::Lost(..)));
    }

    /// Whether operations were lost that went through that mapping. (Those that were abandoned are on the wire.)
    pub(super) fn passes(&self, stamp: StampId) -> bool {
        self.entries.iter().any(|e| e.stamp == stamp)
    }

    /// Whether there are some that were noted in that time.
    pub(crate) fn any(&self, time: &Range<Moment>) -> bool {
        self.entries.iter().any(|e| e.noted[1] >= time.start && e.noted[0] < time.end)
    }

    /// How many there are.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
