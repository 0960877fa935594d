//! The ports of a card, their links, and the frames that they send.
//!
//! A link comes up some time after its port is opened or its cable is plugged in. `infiniband` contains the
//! methods of ports in InfiniBand mode.

use super::breakdown::PlannedFailure;
use super::eq::{Eqs, Event, EventType};
use super::host::Host;
use super::layout::eqe;
use super::port::Port;
use super::profile::Profile;
use platform::Instant;

/// The frames that a card is about to send, with their ports.
#[derive(Default)]
pub(super) struct Outbox {
    /// The frames, each with the index of its port.
    pub frames: Vec<(usize, Vec<u8>)>,
    /// The planned failure of the card, which frames of queue pairs bring nearer.
    pub failure: Option<PlannedFailure>,
}

impl Outbox {
    /// Queues a frame of a queue pair.
    fn send(&mut self, port: usize, frame: Vec<u8>) {
        self.frames.push((port, frame));
        if let Some(failure) = &mut self.failure {
            failure.count_sent_frame();
        }
    }

    /// Queues a frame of the link itself.
    pub(super) fn push(&mut self, port: usize, frame: Vec<u8>) {
        self.frames.push((port, frame));
    }
}

/// All ports of a card.
pub(super) struct Ports {
    /// The ports, by index.
    pub all: Vec<Port>,
    /// The frames to be sent.
    pub outbox: Outbox,
}

/// Subtypes of the PORT_CHANGE event.
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;

/// Returns the event that a port's link has changed.
pub(super) fn port_change(index: usize, active: bool) -> Event {
    let subtype = if active { PORT_ACTIVE } else { PORT_DOWN };
    Event::new(EventType::PortChange, subtype).with(eqe::PORT, index as u32 + 1)
}

impl Port {
    /// Brings the link up, immediately or after the port's delay.
    fn raise(&mut self, now: Instant) {
        if self.link_delay.is_zero() {
            self.link = true;
        } else if !self.link {
            self.link_due = Some(now + self.link_delay);
        }
    }

    fn lower(&mut self) {
        (self.link, self.link_due) = (false, None);
    }
}

impl Ports {
    /// Creates the ports of a card in their state after a reset.
    pub(super) fn new(profile: &Profile) -> Self {
        Self { all: Port::all(profile), outbox: Outbox::default() }
    }

    /// Returns a port by index.
    pub(super) fn get(&self, index: usize) -> Option<&Port> {
        self.all.get(index)
    }

    /// Returns a port by index, for modification.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Port> {
        self.all.get_mut(index)
    }

    /// INIT_PORT: opens the port. The driver receives an event about the link now, and when the link comes
    /// up.
    pub(super) fn open(&mut self, index: usize, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get_mut(index) else { return };
        port.open = true;
        if port.cable {
            port.raise(host.now());
        }
        self.link_changed(index, eqs, host);
    }

    /// CLOSE_PORT: closes the port. A link that needs time to come up goes down.
    pub(super) fn close(&mut self, index: usize, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get_mut(index) else { return };
        port.open = false;
        if !port.link_delay.is_zero() {
            port.lower();
        }
        if port.is_infiniband() {
            self.follow_link(index, eqs, host);
        }
    }

    /// Reports a changed link to an Ethernet driver. On InfiniBand, starts or stops the link's training.
    fn link_changed(&mut self, index: usize, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get(index) else { return };
        if port.is_infiniband() {
            self.follow_link(index, eqs, host);
        } else if port.open {
            let event = port_change(index, port.link);
            eqs.post(&event, host);
        }
    }

    /// Plugs in or unplugs a port's cable.
    pub(super) fn set_cable(&mut self, index: usize, connected: bool, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get_mut(index) else { return };
        let before = port.link;
        port.cable = connected;
        if !connected {
            port.lower();
        } else if port.open || port.link_delay.is_zero() {
            port.raise(host.now());
        }
        if port.link != before {
            self.link_changed(index, eqs, host);
        }
    }

    /// Returns whether a port's link is up.
    #[must_use]
    pub(super) fn link(&self, index: usize) -> bool {
        self.all.get(index).is_some_and(|port| port.link)
    }

    /// Performs the changes of links that are due.
    pub(super) fn progress(&mut self, now: Instant, eqs: &mut Eqs, host: &dyn Host) {
        for index in 0..self.all.len() {
            let Some(port) = self.all.get_mut(index) else { return };
            if port.link_due.is_some_and(|due| due <= now) {
                (port.link, port.link_due) = (true, None);
                self.link_changed(index, eqs, host);
            }
        }
    }

    /// Returns the next time at which a link comes up or a training symbol is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.all.iter().flat_map(|port| [port.link_due, port.ib.training.deadline()]).flatten().min()
    }

    /// Queues a frame of a queue pair, and returns whether the port can send it.
    pub(super) fn send(&mut self, index: usize, frame: Vec<u8>) -> bool {
        let sent = self.all.get_mut(index).is_some_and(|port| port.send(&frame));
        if sent {
            self.outbox.send(index, frame);
        }
        sent
    }
}
