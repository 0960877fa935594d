//! Actions of a card that take time: a link comes up some time after its port is opened or its cable is
//! plugged in, a reset lasts, and moderation delays events.

use super::Card;
use super::eq::{Event, EventType};
use super::host::{DmaError, Host};
use super::observe::Observation;
use super::port::Port;
use platform::Instant;

/// Subtypes of the PORT_CHANGE event.
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;

/// Returns the event that a port's link has changed.
pub(super) fn port_change(index: usize, active: bool) -> Event {
    let subtype = if active { PORT_ACTIVE } else { PORT_DOWN };
    Event::new(EventType::PortChange, subtype).with(0x0c, (index as u32 + 1) << 28)
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

impl Card {
    /// INIT_PORT: opens the port. The driver receives an event about the link now, and when the link comes
    /// up.
    pub(super) fn open_port(&mut self, index: usize, host: &dyn Host) {
        let Some(port) = self.ports.get_mut(index) else { return };
        port.open = true;
        if port.cable {
            port.raise(host.now());
        }
        self.link_changed(index, host);
    }

    /// CLOSE_PORT: closes the port. A link that needs time to come up goes down.
    pub(super) fn close_port(&mut self, index: usize, host: &dyn Host) {
        let Some(port) = self.ports.get_mut(index) else { return };
        port.open = false;
        if !port.link_delay.is_zero() {
            port.lower();
        }
        if port.is_infiniband() {
            self.follow_link(index, host);
        }
    }

    /// Reports a changed link to an Ethernet driver. On InfiniBand, starts or stops the link's training.
    fn link_changed(&mut self, index: usize, host: &dyn Host) {
        let Some(port) = self.ports.get(index) else { return };
        if port.is_infiniband() {
            self.follow_link(index, host);
        } else if port.open {
            let event = port_change(index, port.link);
            self.eqs.post(&event, host);
        }
    }

    /// Plugs in or unplugs a port's cable.
    pub fn set_cable(&mut self, index: usize, connected: bool, host: &dyn Host) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let before = port.link;
        port.cable = connected;
        if !connected {
            port.lower();
        } else if port.open || port.link_delay.is_zero() {
            port.raise(host.now());
        }
        if port.link != before {
            self.link_changed(index, host);
        }
    }

    /// Returns whether a port's link is up.
    #[must_use]
    pub fn link(&self, index: usize) -> bool {
        self.ports.get(index).is_some_and(|port| port.link)
    }

    /// Returns whether a reset is in progress or the card has left the bus. In both cases reads return all
    /// ones and writes have no effect.
    #[must_use]
    pub fn in_reset(&self, now: Instant) -> bool {
        now < self.reset_until || self.is_gone()
    }

    /// Performs due changes of links, and due moderated events and interrupts.
    pub(super) fn progress_events(&mut self, now: Instant, host: &dyn Host) {
        for index in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(index) else { return };
            if port.link_due.is_some_and(|due| due <= now) {
                (port.link, port.link_due) = (true, None);
                self.link_changed(index, host);
            }
        }
        self.cqs.progress(now, &mut self.eqs, host);
        self.eqs.progress(now, host);
    }

    /// Returns the next time at which [`progress_events`](Self::progress_events) has work.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let links = self.ports.iter().filter_map(|port| port.link_due);
        links.chain(self.cqs.next_due()).chain(self.eqs.next_due()).min()
    }
}

/// A machine on which the card's atomic operations are not atomic with respect to the processor: each is a
/// separate read and write.
pub struct TornAtomics<'a>(pub &'a dyn Host);

impl TornAtomics<'_> {
    fn replace(&self, addr: u64, with: impl FnOnce(u64) -> u64) -> Result<u64, DmaError> {
        let mut word = [0; 8];
        self.0.read(addr, &mut word)?;
        let before = u64::from_ne_bytes(word);
        self.0.write(addr, &with(before).to_ne_bytes())?;
        Ok(before)
    }
}

impl Host for TornAtomics<'_> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(addr, buf)
    }
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.0.write(addr, data)
    }
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError> {
        self.0.publish(addr, word)
    }
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError> {
        self.replace(addr, |before| before.wrapping_add(add))
    }
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError> {
        self.replace(addr, |before| if before == compare { swap } else { before })
    }
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn msix_enabled(&self) -> bool {
        self.0.msix_enabled()
    }
    fn message(&self, vector: u16) {
        self.0.message(vector);
    }
    fn set_intx(&self, asserted: bool) {
        self.0.set_intx(asserted);
    }
    fn observe(&self, what: &Observation<'_>) {
        self.0.observe(what);
    }
}
