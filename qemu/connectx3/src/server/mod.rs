//! The event loop: many cards, each with a client on a socket, and with cables to the process's switch or to
//! a fabric in another process.

mod cable;
mod card;
mod switch;

pub use card::{Plug, Slot};
pub use switch::Network;

use crate::device::Card;
use crate::trace::{Observer, Watch};
use anyhow::{Context, Result};
use cable::Cable;
use card::ServedCard;
use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use switch::Switch;

/// The longest wait for events in nanoseconds; the loop checks for the request to stop at least this often.
const LONGEST_NS: u64 = 500_000_000;
/// The number of rounds of frames between cards per turn of their clients.
const ROUNDS: usize = 16;

/// The object that an epoll descriptor of the server belongs to.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Client,
    /// The fabric at the end of a port's cable.
    Fabric(usize),
}

impl Source {
    /// The maximum number of ports of a card.
    const PORTS: usize = 2;
    const KINDS: usize = 2 + Self::PORTS;

    const fn token(self, card: usize) -> u64 {
        let kind = match self {
            Self::Listener => 0,
            Self::Client => 1,
            Self::Fabric(port) => 2 + port,
        };
        (card * Self::KINDS + kind) as u64
    }

    fn of(token: u64) -> Option<(usize, Self)> {
        let token = usize::try_from(token).ok()?;
        let source = match token % Self::KINDS {
            0 => Self::Listener,
            1 => Self::Client,
            port => Self::Fabric(port - 2),
        };
        Some((token / Self::KINDS, source))
    }
}

/// A server of cards, which runs until it is stopped.
pub struct Server {
    poller: OwnedFd,
    started: Instant,
    cards: Vec<ServedCard>,
    switch: Switch,
}

impl Server {
    /// Plugs cards in and observes them according to `watch`. QEMU can connect as soon as this returns.
    ///
    /// # Errors
    /// Fails if a socket cannot be created or a fabric cannot be reached.
    pub fn new(cards: Vec<(Slot, Card)>, network: Network, watch: Watch) -> Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut server =
            Self { poller, started: Instant::now(), cards: Vec::new(), switch: Switch::new(network) };
        for (index, (slot, card)) in cards.into_iter().enumerate() {
            let served = ServedCard::new(slot, card, watch.clone(), |port| server.switch.plug(index, port))?;
            server.watch(served.listener(), Source::Listener.token(index))?;
            for (port, stream) in served.fabrics() {
                server.watch(stream.watch(), Source::Fabric(port).token(index))?;
            }
            server.cards.push(served);
        }
        Ok(server)
    }

    /// Returns the observers of the cards, in the cards' order.
    #[must_use]
    pub fn observers(&self) -> Vec<Arc<Observer>> {
        self.cards.iter().map(|card| Arc::clone(card.observer())).collect()
    }

    fn watch(&self, fd: impl AsFd, token: u64) -> Result<()> {
        epoll::add(&self.poller, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Handles events until `stop` returns true; it is called after each batch of events.
    ///
    /// # Errors
    /// Fails if the operating system refuses a resource of the loop itself. A failure of a client ends only
    /// its connection.
    pub fn run(&mut self, stop: impl Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        let mut busy = false;
        while !stop() {
            events.clear();
            let wait = if busy { Timespec { tv_sec: 0, tv_nsec: 0 } } else { self.wait() };
            match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("the event loop"),
            }
            for event in &events {
                let Some((card, source)) = Source::of(event.data.u64()) else { continue };
                match source {
                    Source::Listener => self.cards[card].accept(card),
                    Source::Client => self.cards[card].serve(card, &self.poller, event.data.u64())?,
                    Source::Fabric(port) => self.cards[card].receive_from_fabric(card, port, &self.poller),
                }
            }
            self.admit()?;
            busy = self.progress()?;
        }
        Ok(())
    }

    /// Returns the time until the next timer expires.
    fn wait(&mut self) -> Timespec {
        let now = self.now_ns();
        let switch = self.switch.next_deadline().map(|at| at.saturating_sub(now));
        let cards = self.cards.iter_mut().filter_map(ServedCard::nanoseconds_until_due);
        let wait = cards.chain(switch).min().unwrap_or(LONGEST_NS).min(LONGEST_NS);
        Timespec { tv_sec: 0, tv_nsec: wait.cast_signed() }
    }

    /// Admits waiting clients to cards without a client.
    fn admit(&mut self) -> Result<()> {
        for (index, card) in self.cards.iter_mut().enumerate() {
            if let Some(stream) = card.admit(index)? {
                let data = epoll::EventData::new_u64(Source::Client.token(index));
                epoll::add(&self.poller, stream, data, epoll::EventFlags::IN)?;
            }
        }
        Ok(())
    }

    /// Runs timers and moves frames until nothing is left to do or it is the clients' turn. Returns whether
    /// something is left to do.
    fn progress(&mut self) -> Result<bool> {
        let mut moved = true;
        for _ in 0..ROUNDS {
            moved = false;
            let now = self.now_ns();
            for (index, card) in self.cards.iter_mut().enumerate() {
                for (port, frame) in card.progress() {
                    moved = true;
                    match card.cable(port) {
                        Some(Cable::Switch(end)) => self.switch.take(*end, frame, now),
                        Some(Cable::Fabric(outside)) => outside.send(frame),
                        Some(Cable::Out) | None => {}
                    }
                }
                card.flush(&self.poller, |port| Source::Fabric(port).token(index))?;
            }
            while let Some((end, frame)) = self.switch.give(now) {
                moved = true;
                if let Some(card) = self.cards.get_mut(end.card) {
                    card.receive(end.port, &frame);
                }
            }
            if !moved {
                break;
            }
        }
        Ok(moved)
    }
}
