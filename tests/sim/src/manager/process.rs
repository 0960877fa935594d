//! One process of the manager: the pure core, its store, and its incoming events.

use super::keeper::{Keeper, Kept};
use super::ledger::Ledger;
use super::network::{Direction, Item, Network};
use crate::Trace;
use manager::core::{Action, Config, ConnId, Core, Event, Message, Saved};
use platform::Instant;
use proto::VouchingSecret;
use std::collections::{BTreeSet, VecDeque};

/// The surroundings of the process, on which it acts.
pub(super) struct Surroundings<'a> {
    pub(super) network: &'a mut Network,
    pub(super) ledger: &'a mut Ledger,
    pub(super) log: &'a mut Vec<String>,
    pub(super) trace: &'a Trace,
}

/// An event that comes to the manager.
#[derive(Debug)]
pub(super) enum Incoming {
    Opened(ConnId),
    Received(ConnId, Vec<u8>),
    Sent(ConnId, usize),
    Closed(ConnId, &'static str),
}

/// A process of the manager in the simulation.
pub(super) struct Process {
    core: Core,
    pub(super) keeper: Keeper,
    /// The start of the process, and of its clock.
    born: Instant,
    /// True while the process is paused and handles no event.
    pub(super) paused: bool,
    /// True if the process has not run since the end of a pause.
    pub(super) resumed: bool,
    arrived: VecDeque<Incoming>,
    /// The connections that have sent their hello.
    greeted: BTreeSet<ConnId>,
}

/// Returns the secret of the process that starts at `born`. No two processes of a run start at once.
fn secret(born: Instant) -> VouchingSecret {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&born.as_nanos().to_le_bytes());
    VouchingSecret::from_bytes(bytes)
}

impl Process {
    pub(super) fn new(config: Config, saved: Saved, keeper: Keeper, now: Instant) -> Self {
        Self {
            core: Core::new(config, saved, secret(now)),
            keeper,
            born: now,
            paused: false,
            resumed: false,
            arrived: VecDeque::new(),
            greeted: BTreeSet::new(),
        }
    }

    pub(super) fn arrives(&mut self, incoming: Incoming) {
        self.arrived.push_back(incoming);
    }

    /// Handles all events that have come, then the time. Returns whether there was an event.
    pub(super) fn poll(&mut self, now: Instant, around: &mut Surroundings<'_>) -> bool {
        if self.paused {
            return false;
        }
        let mut any = false;
        // After a pause a timer may come before the messages that wait in sockets.
        if std::mem::take(&mut self.resumed) {
            any |= self.handle_any(now, Event::Tick, around);
        }
        while let Some(incoming) = self.arrived.pop_front() {
            any = true;
            self.incoming(now, &incoming, around);
        }
        while let Some(kept) = self.keeper.poll(now) {
            any = true;
            match kept {
                Kept::Saved(records) => {
                    around.ledger.saved(records.len());
                    records.iter().for_each(|record| self.handle(now, Event::Saved { record }, around));
                }
                Kept::Failed(reason) => self.handle(now, Event::SaveFailed { reason: &reason }, around),
            }
        }
        if self.core.next_deadline().is_some_and(|at| self.when(at) <= now) {
            any |= self.handle_any(now, Event::Tick, around);
        }
        any
    }

    /// Returns the true time at which the process's clock shows `local`.
    fn when(&self, local: Instant) -> Instant {
        self.born + (local - Instant::ZERO)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.paused {
            return None;
        }
        let tick = self.core.next_deadline().map(|at| self.when(at));
        tick.into_iter().chain(self.keeper.next_deadline()).min()
    }

    fn incoming(&mut self, now: Instant, incoming: &Incoming, around: &mut Surroundings<'_>) {
        match incoming {
            Incoming::Opened(conn) => {
                self.handle(now, Event::Opened { conn: *conn, peer: "simulated" }, around);
            }
            Incoming::Received(conn, bytes) => {
                around.ledger.hears(*conn, !self.greeted.insert(*conn), bytes);
                self.handle(now, Event::Received { conn: *conn, bytes }, around);
            }
            Incoming::Sent(conn, bulk) => {
                self.handle(now, Event::Sent { conn: *conn, bulk: *bulk }, around);
            }
            Incoming::Closed(conn, reason) => {
                self.handle(now, Event::Closed { conn: *conn, reason }, around);
            }
        }
    }

    fn handle(&mut self, now: Instant, event: Event<'_>, around: &mut Surroundings<'_>) {
        self.handle_any(now, event, around);
    }

    /// Passes an event to the core and does the resulting actions. Returns whether there were any.
    fn handle_any(&mut self, now: Instant, event: Event<'_>, around: &mut Surroundings<'_>) -> bool {
        let actions = self.core.handle(Instant::ZERO + (now - self.born), event);
        let any = !actions.is_empty();
        for action in actions {
            self.perform(now, action, around);
        }
        any
    }

    fn perform(&mut self, now: Instant, action: Action, around: &mut Surroundings<'_>) {
        match action {
            Action::Send { conn, message } => Self::send(now, conn, &message, around),
            Action::Close { conn } => around.network.send(now, conn, Direction::FromManager, Item::End),
            // No client of the simulation submits a job that needs the spool.
            Action::Spool(_) | Action::Power(_) | Action::Backup { .. } => {}
            Action::Log(line) => around.log.push(line),
            Action::Save(record) => {
                around.ledger.submits(&record);
                self.keeper.save(record);
            }
            // Clients here send no more than the manager receives.
            Action::Reading { .. } => {}
        }
    }

    fn send(now: Instant, conn: ConnId, message: &Message, around: &mut Surroundings<'_>) {
        around.ledger.says(conn, message);
        let bytes = message.encode().into_owned();
        around.trace.event(now.as_nanos(), 1 << 32 | conn.0, &bytes);
        around.network.send(now, conn, Direction::FromManager, Item::Data(bytes));
        if let bulk @ 1.. = message.bulk() {
            around.network.send(now, conn, Direction::FromManager, Item::Left(bulk));
        }
    }
}
