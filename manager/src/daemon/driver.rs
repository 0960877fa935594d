//! The core together with the things that its actions need. Nothing here waits.

use super::connection::Incoming;
use super::ha::Tenure;
use super::keeper::{Keeper, Kept};
use super::outbox::{Outbox, Pushed};
use super::power::Powerer;
use super::spool::Spooler;
use crate::backup;
use crate::core::{Action, ConnId, Core, Entries, Event, Message, PowerReport, SpoolReport};
use crate::http::Publisher;
use crate::log::Log;
use platform::Instant;
use proto::ToClient;
use std::collections::{HashMap, VecDeque};
use tokio::sync::mpsc::Receiver;

/// The core, its connections, its store and its log.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) core: Core,
    pub(super) start: std::time::Instant,
    pub(super) outboxes: HashMap<ConnId, Outbox>,
    pub(super) keeper: Keeper,
    pub(super) spooler: Spooler,
    powerer: Powerer,
    pub(super) log: Log,
    /// Publishes the core's state for requests over HTTP, if they are served.
    pub(super) publisher: Option<Publisher>,
    /// The right to act, if several managers share their state.
    tenure: Option<Tenure>,
    /// The events that came while this manager was not allowed to act, in order.
    late: VecDeque<Late>,
    /// True while this manager is not allowed to act.
    pauses: bool,
}

/// An event that waits.
#[derive(Debug)]
enum Late {
    Incoming(Incoming),
    Kept(Kept),
    Spooled(SpoolReport),
    Powered(PowerReport),
}

/// An effect of actions on the driver itself.
struct Consequence {
    conn: ConnId,
    kind: Kind,
}

enum Kind {
    /// The connection ends, for this reason.
    Ends(&'static str),
    /// The queue has sent input with this charge.
    Sent(usize),
}

impl Driver {
    pub(super) fn new(
        core: Core,
        (keeper, spooler, powerer): (Keeper, Spooler, Powerer),
        log: Log,
        publisher: Option<Publisher>,
        tenure: Option<Tenure>,
    ) -> Self {
        let (start, outboxes, late) = (std::time::Instant::now(), HashMap::new(), VecDeque::new());
        Self { core, start, outboxes, keeper, spooler, powerer, log, publisher, tenure, late, pauses: false }
    }

    /// Returns true if this manager may act. Each event is handled only if it may act after the event has
    /// arrived: a heartbeat that is acknowledged was sent while no other manager led.
    pub(super) fn may_act(&self) -> bool {
        self.tenure.as_ref().is_none_or(Tenure::holds)
    }

    /// Returns the right to wait for, if this manager may not act or has left events unhandled.
    pub(super) fn pause(&mut self) -> Option<Tenure> {
        if self.may_act() && self.late.is_empty() {
            return None;
        }
        let tenure = self.tenure.clone()?;
        if !std::mem::replace(&mut self.pauses, true) {
            self.log.line("pauses, because it cannot renew its leadership");
        }
        Some(tenure)
    }

    /// Handles the events that have waited.
    pub(super) fn go_on(&mut self) {
        if self.may_act() && std::mem::take(&mut self.pauses) {
            self.log.line("goes on");
        }
        while self.may_act()
            && let Some(late) = self.late.pop_front()
        {
            match late {
                Late::Incoming(incoming) => self.incoming(incoming),
                Late::Kept(kept) => self.kept(kept),
                Late::Spooled(report) => self.spooled(report),
                Late::Powered(report) => self.powered(report),
            }
        }
    }

    pub(super) fn incoming(&mut self, incoming: Incoming) {
        if !self.may_act() {
            return self.late.push_back(Late::Incoming(incoming));
        }
        match incoming {
            Incoming::Opened { conn, peer, user, outbox } => {
                self.outboxes.insert(conn, outbox);
                self.handle(Event::Opened { conn, peer: &peer });
                if let Some(user) = user {
                    self.handle(Event::Identified { conn, user });
                }
            }
            Incoming::Received { conn, bytes, in_hand } => {
                self.handle(Event::Received { conn, bytes: &bytes });
                drop(in_hand);
            }
            Incoming::Sent { conn, bulk } => self.handle(Event::Sent { conn, bulk }),
            Incoming::Closed { conn, reason } => {
                self.outboxes.remove(&conn);
                self.handle(Event::Closed { conn, reason: &reason });
            }
        }
    }

    /// Handles the passage of time, but first the events that wait: a heartbeat among them counts.
    pub(super) fn tick(&mut self, waiting: &mut Receiver<Incoming>) {
        for _ in 0..waiting.len() {
            let Ok(incoming) = waiting.try_recv() else { break };
            self.incoming(incoming);
        }
        if !self.may_act() {
            return;
        }
        self.handle(Event::Tick);
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(&self.core);
        }
        self.log.settle();
    }

    /// Handles a report of the store.
    pub(super) fn kept(&mut self, kept: Kept) {
        if !self.may_act() {
            return self.late.push_back(Late::Kept(kept));
        }
        match kept {
            Kept::Saved(records) => records.iter().for_each(|record| self.handle(Event::Saved { record })),
            Kept::Failed(reason) => self.handle(Event::SaveFailed { reason: &reason }),
            Kept::State(conn, state) => self.tell_state(conn, state),
        }
    }

    /// Handles a report of the spool.
    pub(super) fn spooled(&mut self, report: SpoolReport) {
        if !self.may_act() {
            return self.late.push_back(Late::Spooled(report));
        }
        self.handle(Event::Spool { report: &report });
    }

    /// Handles a report about a power controller.
    pub(super) fn powered(&mut self, report: PowerReport) {
        if !self.may_act() {
            return self.late.push_back(Late::Powered(report));
        }
        self.handle(Event::Power { report: &report });
    }

    /// Sends a client the state. The client may be gone.
    fn tell_state(&mut self, conn: ConnId, state: Result<Entries, String>) {
        let messages = match state {
            Ok(entries) => backup::messages(&entries),
            Err(reason) => vec![ToClient::Failed { reason }],
        };
        for message in messages {
            if let Some(Consequence { kind: Kind::Ends(reason), .. }) =
                self.send(conn, Message::ToClient(message), None)
            {
                self.outboxes.remove(&conn);
                return self.handle(Event::Closed { conn, reason });
            }
        }
    }

    pub(super) fn handle(&mut self, event: Event<'_>) {
        let cause = match event {
            Event::Received { conn, .. } => Some(conn),
            _ => None,
        };
        let now = Instant::ZERO + self.start.elapsed();
        let mut actions = self.core.handle(now, event);
        while !actions.is_empty() {
            let consequences = self.perform(actions, cause);
            actions = Vec::new();
            for Consequence { conn, kind } in consequences {
                let event = match kind {
                    Kind::Ends(_) if self.outboxes.remove(&conn).is_none() => continue,
                    Kind::Ends(reason) => Event::Closed { conn, reason },
                    Kind::Sent(bulk) => Event::Sent { conn, bulk },
                };
                actions.extend(self.core.handle(now, event));
            }
        }
    }

    /// Does the actions that result from a message from `cause`, if they result from one.
    fn perform(&mut self, actions: Vec<Action>, cause: Option<ConnId>) -> Vec<Consequence> {
        let mut consequences = Vec::new();
        for action in actions {
            match action {
                Action::Send { conn, message } => consequences.extend(self.send(conn, message, cause)),
                // A connection without its outbox sends its queued messages and ends.
                Action::Close { conn } => drop(self.outboxes.remove(&conn)),
                Action::Reading { conn, on } => {
                    if let Some(outbox) = self.outboxes.get(&conn) {
                        outbox.reading(on);
                    }
                }
                Action::Save(record) => self.keeper.save(record),
                Action::Spool(order) => self.spooler.obey(order),
                Action::Power(order) => self.powerer.obey(*order),
                Action::Backup { conn } => self.keeper.read(conn),
                Action::Log(line) => self.log.line(&line),
            }
        }
        consequences
    }

    fn send(&self, conn: ConnId, message: Message, cause: Option<ConnId>) -> Option<Consequence> {
        match self.outboxes.get(&conn)?.send(message, cause) {
            Pushed::Queued { dropped: 0 } => None,
            Pushed::Queued { dropped } => Some(Consequence { conn, kind: Kind::Sent(dropped) }),
            Pushed::Full => {
                Some(Consequence { conn, kind: Kind::Ends("it does not receive the messages to it") })
            }
            Pushed::Flood(sender) => {
                let reason = "it sends another node more messages than that node receives";
                Some(Consequence { conn: sender, kind: Kind::Ends(reason) })
            }
        }
    }
}
