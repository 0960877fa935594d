//! The network of control messages: two pipes per connection, each with a latency and a rate, in order and
//! without loss. A pipe may be held: its content then arrives once it is released, as after retransmissions.

use crate::random::Random;
use manager::core::ConnId;
use platform::Instant;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From a node or a client.
    ToManager,
    /// To a node or a client.
    FromManager,
}

/// The properties of the control links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLinks {
    /// The maximum latency of a pipe. Each pipe has its own, between a quarter of this and all of it.
    pub latency: Duration,
    /// The bytes that a pipe carries in a millisecond; 0 for no limit.
    pub rate: u64,
}

impl ControlLinks {
    /// A network in which messages take no time.
    pub const INSTANT: Self = Self { latency: Duration::ZERO, rate: 0 };
}

/// An item in a pipe.
#[derive(Debug)]
pub(super) enum Item {
    Data(Vec<u8>),
    /// A message with the given bulk has left the sender. The item itself does not arrive.
    Left(usize),
    /// The connection has ended.
    End,
}

#[derive(Debug)]
struct Transit {
    due: Instant,
    number: u64,
    conn: ConnId,
    direction: Direction,
    item: Item,
}

impl Transit {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Transit {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Transit {}

impl PartialOrd for Transit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Transit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug)]
struct Pipe {
    latency: Duration,
    /// The time at which all earlier messages have left the sender.
    busy: Instant,
    held: Option<Vec<Transit>>,
    /// The items with lower numbers are lost.
    lost: u64,
}

/// All pipes.
#[derive(Debug)]
pub(super) struct Network {
    links: ControlLinks,
    pipes: BTreeMap<(ConnId, Direction), Pipe>,
    transit: BinaryHeap<Reverse<Transit>>,
    numbers: u64,
    random: Random,
}

impl Network {
    pub(super) fn new(links: ControlLinks, random: Random) -> Self {
        Self { links, pipes: BTreeMap::new(), transit: BinaryHeap::new(), numbers: 0, random }
    }

    pub(super) fn open(&mut self, conn: ConnId) {
        for direction in [Direction::ToManager, Direction::FromManager] {
            let most = self.links.latency.as_nanos() as u64;
            let latency = Duration::from_nanos(most - self.random.below(most * 3 / 4 + 1));
            self.pipes.insert((conn, direction), Pipe { latency, busy: Instant::ZERO, held: None, lost: 0 });
        }
    }

    pub(super) fn send(&mut self, now: Instant, conn: ConnId, direction: Direction, item: Item) {
        let Some(pipe) = self.pipes.get_mut(&(conn, direction)) else { return };
        let bytes = if let Item::Data(bytes) = &item { bytes.len() as u64 } else { 0 };
        let nanos = (bytes * 1_000_000).checked_div(self.links.rate).unwrap_or(0);
        pipe.busy = pipe.busy.max(now) + Duration::from_nanos(nanos);
        let due = if matches!(item, Item::Left(_)) { pipe.busy } else { pipe.busy + pipe.latency };
        self.numbers += 1;
        self.transit.push(Reverse(Transit { due, number: self.numbers, conn, direction, item }));
    }

    /// Loses all items in transit on the pipe.
    pub(super) fn lose(&mut self, conn: ConnId, direction: Direction) {
        if let Some(pipe) = self.pipes.get_mut(&(conn, direction)) {
            pipe.lost = self.numbers + 1;
            pipe.held.iter_mut().for_each(Vec::clear);
        }
    }

    /// Holds the pipe, or releases it: then all held items arrive.
    pub(super) fn hold(&mut self, now: Instant, conn: ConnId, direction: Direction, held: bool) {
        let Some(pipe) = self.pipes.get_mut(&(conn, direction)) else { return };
        if held {
            pipe.held.get_or_insert_default();
            return;
        }
        for transit in pipe.held.take().unwrap_or_default() {
            // The number keeps its order before later items.
            self.transit.push(Reverse(Transit { due: now, ..transit }));
        }
    }

    /// Releases all held pipes.
    pub(super) fn release_all(&mut self, now: Instant) {
        let held: Vec<_> =
            self.pipes.iter().filter(|(_, pipe)| pipe.held.is_some()).map(|(at, _)| *at).collect();
        held.into_iter().for_each(|(conn, direction)| self.hold(now, conn, direction, false));
    }

    /// Returns the next item that is due at `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(ConnId, Direction, Item)> {
        while self.transit.peek().is_some_and(|Reverse(next)| next.due <= now) {
            let Reverse(next) = self.transit.pop()?;
            let Some(pipe) = self.pipes.get_mut(&(next.conn, next.direction)) else { continue };
            if next.number < pipe.lost {
                continue;
            }
            if let Some(held) = &mut pipe.held {
                held.push(next);
                continue;
            }
            let Transit { conn, direction, item, .. } = next;
            if matches!(item, Item::End) {
                self.pipes.remove(&(conn, direction));
            }
            return Some((conn, direction, item));
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.transit.peek().map(|Reverse(next)| next.due)
    }
}
