//! A card: its registers, and the channel adapter behind them.
//!
//! ```text
//!            BAR 0                    BAR 2                     cables
//!              |                        |                          |
//!   +--------- v ---------+  +--------- v ---------+               |
//!   | Bar0                |  | uar      | Channel  |               |
//!   |  Hcr: GO -> Command |  | Doorbell | of a VF  |               |
//!   +--------- | ---------+  +---- | ------- | ----+               |
//!              |                   |    +--- v ---+                |
//!              |                   |    | Master  | commands       |
//!              |                   |    +--- | ---+                |
//!   +--------- v ----------------- v ------- v ------------------- v ---------+
//!   | Adapter                                                                 |
//!   |   command --> Tables (ICM, regions)   Eqs --> interrupts                |
//!   |           --> Traffic (Queues, steering, loopback) --> Ports (outbox)   |
//!   +-------------------------------------------------------------------------+
//! ```
//!
//! A command goes through these states. GO is bit 23 of the last command register.
//!
//! ```text
//!  idle --- the driver writes GO ---> running ---> status, GO = 0 ---> idle
//!                                        |               |
//!                                 output mailbox      command event, if the driver asked for one
//! ```

use super::adapter::Adapter;
use super::bar0::{Bar0, Effect};
use super::breakdown::{Breakdown, PlannedFailure, error_word};
use super::cost::Costs;
use super::eq::Event;
use super::hcr::Command;
use super::host::Host;
use super::master::Master;
use super::observe::{Doorbell, Observation, Register};
use super::ports::Outbox;
use super::profile::{Function, Profile};
use super::uar;
use platform::Instant;
use roce::transport::Counters;
use std::sync::Arc;

/// A card.
pub struct Card {
    bar0: Bar0,
    /// The end of the running reset.
    reset_until: Instant,
    adapter: Adapter,
    /// The master behind a virtual function; `None` on a physical function.
    master: Option<Box<Master>>,
}

impl Card {
    /// Creates a card in its state after power-on.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let virtual_function = profile.function == Function::Virtual;
        let mut adapter = Adapter::new(profile);
        let master = virtual_function.then(|| Box::new(Master::start(&mut adapter)));
        Self { bar0: Bar0::default(), reset_until: Instant::from_nanos(0), adapter, master }
    }

    /// Returns the card's profile.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.adapter.profile
    }

    /// Starts to count the cost of work, including table lookups, also on a card that is already running.
    pub fn set_costs(&mut self, costs: Arc<Costs>) {
        self.adapter.tables.regions.set_costs(costs.clone());
        self.adapter.traffic.costs = Some(costs);
    }

    /// Makes the card fail after it has sent `frames` frames, counted across resets.
    pub fn break_down(&mut self, how: Breakdown, frames: u64) {
        self.adapter.ports.outbox.failure = Some(PlannedFailure::new(how, frames));
    }

    /// Returns whether the card has failed.
    fn is_broken(&self) -> bool {
        self.adapter.ports.outbox.failure.is_some_and(|failure| failure.has_failed())
    }

    /// Returns whether a reset is in progress or the card has left the bus. In both cases reads return all
    /// ones and writes have no effect.
    #[must_use]
    pub fn in_reset(&self, now: Instant) -> bool {
        let has_left = self.adapter.ports.outbox.failure.is_some_and(|failure| failure.has_left_bus());
        now < self.reset_until || has_left
    }

    /// Resets the card. The profile, the account of costs and the planned failure survive.
    pub fn reset(&mut self, host: &dyn Host) {
        host.set_intx(false);
        let Adapter { profile, ports, traffic, .. } = &mut self.adapter;
        let frames = ports.silence();
        let failure = ports.outbox.failure.and_then(PlannedFailure::after_reset);
        let cables: Vec<_> = ports.all.iter().map(|port| port.cable).collect();
        let costs = traffic.costs.take();
        *self = Self::new(profile.clone());
        self.adapter.ports.outbox = Outbox { frames, failure };
        self.adapter.traffic.costs = costs;
        for (index, cable) in cables.into_iter().enumerate() {
            self.set_cable(index, cable, host);
        }
    }

    /// Plugs in or unplugs a port's cable.
    pub fn set_cable(&mut self, index: usize, connected: bool, host: &dyn Host) {
        let Adapter { ports, eqs, .. } = &mut self.adapter;
        ports.set_cable(index, connected, eqs, host);
    }

    /// Returns whether a port's link is up.
    #[must_use]
    pub fn link(&self, index: usize) -> bool {
        self.adapter.ports.link(index)
    }

    /// Handles a frame that has arrived at a port. `frame` has no check sequence.
    pub fn receive(&mut self, port: usize, frame: &[u8], host: &dyn Host) {
        if !self.is_broken() {
            let (traffic, mut ctx) = self.adapter.split(host);
            traffic.receive(port, frame, &mut ctx);
        }
    }

    /// Removes and returns the frames to be sent, each with its port.
    pub fn take_outbox(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.adapter.ports.outbox.frames)
    }

    /// Sends the packets that received frames and expired timers have made due. Call it after each batch of
    /// frames and at [`next_deadline`](Self::next_deadline).
    pub fn progress(&mut self, host: &dyn Host) {
        if !self.is_broken() {
            let (traffic, mut ctx) = self.adapter.split(host);
            traffic.progress(&mut ctx);
        }
    }

    /// Returns the time at which [`progress`](Self::progress) is due even if no frame arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_broken() {
            return None;
        }
        let Adapter { traffic, ports, eqs, .. } = &self.adapter;
        let own = traffic.next_deadline();
        let deadline = ports.next_due().into_iter().chain(eqs.next_due()).fold(own, Instant::min);
        (deadline != Instant::MAX).then_some(deadline)
    }

    /// Returns the transport's counters.
    #[must_use]
    pub const fn transport_counters(&self) -> &Counters {
        &self.adapter.traffic.queues.transport_counters
    }

    /// Reads from BAR 0.
    pub fn read_bar0(&mut self, offset: u64, buf: &mut [u8], host: &dyn Host) {
        self.each_word(offset, buf.len(), |card, at, range| {
            let failed = card.is_broken().then(|| error_word(at)).flatten();
            let word = failed.unwrap_or_else(|| card.bar0.read(at, host.now())).to_be_bytes();
            if let Some(to) = buf.get_mut(range) {
                to.copy_from_slice(&word);
            }
        });
    }

    /// Writes to BAR 0.
    pub fn write_bar0(&mut self, offset: u64, data: &[u8], host: &dyn Host) {
        self.each_word(offset, data.len(), |card, at, range| {
            if let Some(word) = data.get(range).and_then(|word| word.first_chunk::<4>()) {
                card.write_register(at, u32::from_be_bytes(*word), host);
            }
        });
    }

    fn write_register(&mut self, offset: u64, value: u32, host: &dyn Host) {
        match self.bar0.write(offset, value) {
            Effect::Command(command) if !self.is_broken() => self.execute(&command, host),
            Effect::Register(register) => {
                host.observe(&Observation::Register(register));
                match register {
                    Register::ReleaseOwnership => {}
                    Register::Reset => {
                        self.reset(host);
                        self.reset_until = host.now() + self.adapter.profile.reset_time;
                    }
                    Register::ClearInterrupt => host.set_intx(false),
                }
            }
            Effect::Command(_) | Effect::None => {}
        }
    }

    /// Runs a command and completes it: writes its output and its status, and posts an event if the command
    /// asked for one.
    fn execute(&mut self, command: &Command, host: &dyn Host) {
        let (status, immediate) = self.adapter.execute(command, host);
        // In event mode too, the driver waits until GO is clear before it issues the next command.
        self.bar0.hcr.finish(status, immediate);
        if command.event {
            self.adapter.eqs.post(&Event::command(command.token, status, immediate.unwrap_or(0)), host);
        }
    }

    /// Returns the length of BAR 2, in bytes.
    #[must_use]
    pub const fn bar2_len(&self) -> u64 {
        if self.adapter.profile.blue_flame { 2 * uar::UAR_LEN } else { uar::UAR_LEN }
    }

    /// Reads from BAR 2. Doorbells read as zero; a virtual function's communication channel has contents.
    pub fn read_bar2(&mut self, offset: u64, buf: &mut [u8]) {
        buf.fill(0);
        self.each_word(offset, buf.len(), |card, at, range| {
            let word = card.master.as_ref().map_or(0, |master| master.read(at)).to_be_bytes();
            if let Some(to) = buf.get_mut(range) {
                to.copy_from_slice(&word);
            }
        });
    }

    /// Handles a write to BAR 2.
    pub fn write_bar2(&mut self, offset: u64, data: &[u8], host: &dyn Host) {
        if self.is_broken() {
            return;
        }
        if let (Some(master), Some(word)) = (&mut self.master, data.first_chunk::<4>())
            && master.write(offset, u32::from_be_bytes(*word), &mut self.adapter, host)
        {
            return;
        }
        let Some(doorbell) = uar::doorbell(offset, data) else { return };
        host.observe(&Observation::Doorbell(doorbell));
        let (traffic, mut ctx) = self.adapter.split(host);
        match doorbell {
            Doorbell::Event { eqn, consumer, arm } => ctx.eqs.doorbell(eqn, consumer, arm, host),
            Doorbell::Send { qpn } | Doorbell::BlueFlame { qpn } => traffic.ring_send(qpn, &mut ctx),
            Doorbell::Arm { cqn, solicited, consumer, .. } => {
                traffic.queues.cqs.arm(cqn, consumer, solicited, ctx.eqs, host);
            }
            Doorbell::Unknown { .. } => {}
        }
    }

    /// Calls `each` for every aligned 32-bit word of an access. Registers have no other width.
    fn each_word(
        &mut self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&mut Self, u64, std::ops::Range<usize>),
    ) {
        if offset.is_multiple_of(4) && len.is_multiple_of(4) {
            for at in (0..len).step_by(4) {
                each(self, offset + at as u64, at..at + 4);
            }
        }
    }
}
