//! The trace of a node: typed events in one ring for each processor.
//!
//! While tracing is off, a call that would record an event costs one relaxed load. While it is on, an event
//! reads the clock and stores four words; nothing is formatted and nothing waits. A ring keeps the last
//! events and overwrites older ones.

use super::standing::{Standing, TRACED};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::Instant;
use proto::NodeId;
use spin::Once;

/// The number of events in a ring.
const EVENTS: usize = 4096;
/// The words of an event: a mark, the time, and two of data.
const WORDS: usize = 4;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Work {
    /// An RDMA WRITE.
    Write = 0,
    /// An RDMA READ.
    Read = 1,
    /// A fetch-and-add or compare-and-swap.
    Atomic = 2,
    /// A message of RPC: a WRITE with immediate.
    Message = 3,
}

/// Something that has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work request was posted.
    Posted {
        /// The number of the work request, unique until it has ended.
        id: u64,
        /// The kind of the work request.
        work: Work,
        /// The peer.
        peer: NodeId,
        /// The index of the queue pair in the connection, from 0.
        queue_pair: u8,
        /// The length in bytes; larger values appear as 2^24 - 1.
        bytes: u32,
    },
    /// A work request has ended.
    Ended {
        /// The number of the work request.
        id: u64,
        /// True if it has succeeded.
        ok: bool,
    },
    /// A call was begun.
    Called {
        /// The node that is called.
        peer: NodeId,
        /// The function.
        function: u32,
    },
    /// A message has arrived.
    Arrived {
        /// The sender.
        peer: NodeId,
    },
    /// A connection has been made.
    Connected {
        /// The peer.
        peer: NodeId,
    },
    /// A connection has ended.
    Disconnected {
        /// The peer.
        peer: NodeId,
    },
    /// An operation's deadline has passed.
    Missed,
}

/// An event and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The time by the node's clock.
    pub at: Instant,
    /// The processor whose ring the event was in.
    pub cpu: usize,
    /// The event.
    pub event: Event,
}

impl Event {
    fn pack(self) -> (u64, u64) {
        let head = |kind: u64, peer: NodeId, more: u64| kind << 56 | u64::from(peer.0) << 40 | more;
        match self {
            Self::Posted { id, work, peer, queue_pair, bytes } => {
                let low = u64::from(queue_pair) << 32 | u64::from(work as u8) << 24;
                (head(1, peer, low | u64::from(bytes.min(0xff_ffff))), id)
            }
            Self::Ended { id, ok } => (head(2, NodeId(0), u64::from(ok)), id),
            Self::Called { peer, function } => (head(3, peer, 0), u64::from(function)),
            Self::Arrived { peer } => (head(4, peer, 0), 0),
            Self::Connected { peer } => (head(5, peer, 0), 0),
            Self::Disconnected { peer } => (head(6, peer, 0), 0),
            Self::Missed => (head(7, NodeId(0), 0), 0),
        }
    }

    fn unpack(head: u64, id: u64) -> Option<Self> {
        let peer = NodeId((head >> 40) as u16);
        Some(match head >> 56 {
            1 => Self::Posted {
                id,
                work: match (head >> 24) as u8 {
                    0 => Work::Write,
                    1 => Work::Read,
                    2 => Work::Atomic,
                    3 => Work::Message,
                    _ => return None,
                },
                peer,
                queue_pair: (head >> 32) as u8,
                bytes: head as u32 & 0xff_ffff,
            },
            2 => Self::Ended { id, ok: head & 1 == 1 },
            3 => Self::Called { peer, function: u32::try_from(id).ok()? },
            4 => Self::Arrived { peer },
            5 => Self::Connected { peer },
            6 => Self::Disconnected { peer },
            7 => Self::Missed,
            _ => return None,
        })
    }
}

/// The last events of one processor. A writer takes the next entry. The mark of an entry is odd while it is
/// being written, and contains the turn, so that a reader can detect an entry that is being overwritten.
struct Ring {
    next: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl Ring {
    fn new() -> Self {
        let words = (0..EVENTS * WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { next: AtomicU64::new(0), words }
    }

    fn slot(&self, turn: u64) -> Option<&[AtomicU64; WORDS]> {
        let at = (turn % EVENTS as u64) as usize * WORDS;
        self.words.get(at..at + WORDS)?.try_into().ok()
    }

    fn put(&self, at: Instant, event: Event) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let Some([mark, time, head, id]) = self.slot(turn) else { return };
        let (first, second) = event.pack();
        mark.swap(2 * turn + 1, Ordering::AcqRel);
        time.store(at.as_nanos(), Ordering::Relaxed);
        head.store(first, Ordering::Relaxed);
        id.store(second, Ordering::Relaxed);
        mark.store(2 * turn + 2, Ordering::Release);
    }

    fn get(&self, turn: u64) -> Option<(Instant, Event)> {
        let [mark, time, head, id] = self.slot(turn)?;
        let before = mark.load(Ordering::Acquire);
        let words = [time, head, id].map(|w| w.load(Ordering::Acquire));
        let whole = before == 2 * turn + 2 && mark.load(Ordering::Relaxed) == before;
        let [time, head, id] = words;
        whole.then_some(())?;
        Some((Instant::from_nanos(time), Event::unpack(head, id)?))
    }

    fn all(&self) -> impl Iterator<Item = (Instant, Event)> {
        let end = self.next.load(Ordering::Acquire);
        (end.saturating_sub(EVENTS as u64)..end).filter_map(|turn| self.get(turn))
    }
}

/// A node's trace; its rings are made when it is first turned on.
pub(crate) struct Trace {
    /// One bit of it tells whether tracing is on.
    standing: Arc<Standing>,
    rings: Once<Vec<Ring>>,
}

impl Trace {
    pub(crate) fn new(standing: Arc<Standing>) -> Self {
        Self { standing, rings: Once::new() }
    }

    /// Records an event of processor `cpu`.
    #[cold]
    pub(crate) fn record(&self, cpu: usize, at: Instant, event: Event) {
        let rings = self.rings.get().map_or(&[][..], Vec::as_slice);
        if let Some(ring) = rings.get(cpu).or(rings.first()) {
            ring.put(at, event);
        }
    }

    /// Turns tracing on or off, on a node of `cpus` processors.
    pub(crate) fn set(&self, on: bool, cpus: usize) {
        if on {
            self.rings.call_once(|| (0..cpus).map(|_| Ring::new()).collect());
        }
        self.standing.replace(TRACED, if on { TRACED } else { 0 });
    }

    /// Returns the last events, by time.
    pub(crate) fn events(&self) -> Vec<Stamped> {
        let mut all = Vec::new();
        for (cpu, ring) in self.rings.get().into_iter().flatten().enumerate() {
            all.extend(ring.all().map(|(at, event)| Stamped { at, cpu, event }));
        }
        all.sort_by_key(|e| e.at);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let work = prop_oneof![Just(Work::Write), Just(Work::Read), Just(Work::Atomic), Just(Work::Message)];
        let peer = || (0u16..4096).prop_map(NodeId);
        prop_oneof![
            (any::<u64>(), work, peer(), 0u8..4, 0u32..1 << 24).prop_map(
                |(id, work, peer, queue_pair, bytes)| Event::Posted { id, work, peer, queue_pair, bytes }
            ),
            (any::<u64>(), any::<bool>()).prop_map(|(id, ok)| Event::Ended { id, ok }),
            (peer(), any::<u32>()).prop_map(|(peer, function)| Event::Called { peer, function }),
            peer().prop_map(|peer| Event::Arrived { peer }),
            peer().prop_map(|peer| Event::Connected { peer }),
            peer().prop_map(|peer| Event::Disconnected { peer }),
            Just(Event::Missed),
        ]
    }

    proptest! {
        #[test]
        fn events_are_read_as_written(events in proptest::collection::vec(event(), 1..50)) {
            let ring = Ring::new();
            for (at, event) in (0..).zip(&events) {
                ring.put(Instant::from_nanos(at), *event);
            }
            let read: Vec<_> = ring.all().map(|(_, event)| event).collect();
            prop_assert_eq!(read, events);
        }
    }

    #[test]
    fn the_last_ones_are_kept() {
        let ring = Ring::new();
        for id in 0..EVENTS as u64 + 10 {
            ring.put(Instant::from_nanos(id), Event::Ended { id, ok: true });
        }
        let first = ring.all().next();
        assert_eq!(first, Some((Instant::from_nanos(10), Event::Ended { id: 10, ok: true })));
        assert_eq!(ring.all().count(), EVENTS);
        // An entry that is being written is skipped.
        ring.slot(20).unwrap()[0].store(2 * 20 + 1, Ordering::Relaxed);
        assert_eq!(ring.all().count(), EVENTS - 1);
    }
}
