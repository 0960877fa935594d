//! Events of the card, its health, and the service of its InfiniBand port.

use super::{CqSlot, Mlx4};
use crate::bus;
use crate::card::HealthSource;
use crate::config::Layer;
use crate::control::Control;
use crate::hardware::Hardware;
use crate::management::agent;
use crate::objects::eq::Event;
use crate::objects::port::Link;
use crate::vf::channel::channel_error;
use core::sync::atomic::Ordering;
use lock_api::RawMutex;
use platform::Instant;
use verbs::PortState;

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Serves an InfiniBand port: answers the subnet manager, and queries the link after a change. Uses
    /// `try_lock`, because it may be called while a lock is held; the holder of the locks does the work.
    pub(super) fn serve_subnet(&self, budget: usize) -> bool {
        let Some(mut agent) = self.agent.try_lock() else { return false };
        let Some(mut state) = self.control.try_lock() else { return false };
        if self.has_failed() {
            return false;
        }
        let mut any = false;
        if let Some(packets) = &mut *agent {
            let port = self.card.port.number;
            let mut control = Control::new(&self.hw, &mut state);
            any = agent::serve(&mut control.commands().0, packets, port, budget);
        }
        if self.stale.swap(false, Ordering::Relaxed) {
            any = true;
            let known = *self.link.lock();
            match Control::new(&self.hw, &mut state).query_link(known) {
                Ok(link) => self.update_link(link),
                Err(error) => log::warn!("mlx4: the state of the port is not known: {error}"),
            }
        }
        if state.commands.has_failed() {
            self.fail("it does not complete commands");
        }
        any
    }

    /// Handles up to `budget` events. Returns true if there were any.
    pub(super) fn take_events(&self, budget: usize) -> bool {
        // If the lock is taken, its holder handles the events.
        let Some(mut eq) = self.eq.try_lock() else { return false };
        let mut any = false;
        for _ in 0..budget {
            let Some(event) = eq.next(&self.hw) else { break };
            any = true;
            self.on_event(event);
        }
        eq.update_consumer_index(&self.hw, false);
        any
    }

    fn on_event(&self, event: Event) {
        match event {
            Event::Completion { cqn } => {
                // The numbers of a virtual function's queues follow no pattern, and few queues are armed, so
                // a search is right.
                let named = |slot: &&CqSlot<H::Block>| slot.number.load(Ordering::Acquire) == cqn;
                if let Some(slot) = self.cqs.iter().find(named) {
                    slot.events.fetch_add(1, Ordering::Relaxed);
                } else if let Some(packets) = self.agent.lock().as_mut().filter(|p| p.cq.number() == cqn) {
                    packets.cq.on_events(1);
                } else {
                    for frames in &self.frames {
                        let mut frames = frames.lock();
                        if let Some(frames) = frames.as_mut().filter(|f| f.packets.cq.number() == cqn) {
                            frames.packets.cq.on_events(1);
                        }
                    }
                }
            }
            Event::CqError { cqn } => {
                log::error!("mlx4: completion queue {cqn:#x} has failed");
                self.counts.cq_errors.fetch_add(1, Ordering::Relaxed);
            }
            Event::QpError { qpn } => {
                log::warn!("mlx4: queue pair {qpn:#x} has failed");
                self.counts.qp_errors.fetch_add(1, Ordering::Relaxed);
            }
            Event::PortChange { port, up } if port == self.card.port.number => {
                let state = if up { PortState::Active } else { PortState::Down };
                match self.card.port.layer {
                    Layer::Ethernet => {
                        let link = Link { state, ..*self.link.lock() };
                        self.update_link(link);
                    }
                    Layer::InfiniBand => self.stale.store(true, Ordering::Relaxed),
                }
            }
            Event::PortChange { port, up }
                if self.card.second.is_some_and(|second| second.port.number == port) =>
            {
                let state = if up { PortState::Active } else { PortState::Down };
                log::info!("mlx4: port {port}, for frames, is {state:?}");
            }
            Event::PortManagement { port } if port == self.card.port.number => {
                self.stale.store(true, Ordering::Relaxed);
            }
            Event::Fatal => self.fail("it reports a fatal error"),
            Event::PortChange { .. } | Event::PortManagement { .. } | Event::Other(_) => {}
        }
    }
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Returns true if the card has failed and was not restarted since.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.health.has_failed()
    }

    /// Checks the card's health if the time of the next poll has come.
    pub(super) fn watch_health(&self, now: Instant) {
        if now < self.health.next_poll() {
            return;
        }
        self.health.poll_later(now);
        match self.card.health {
            HealthSource::Unseen => {}
            HealthSource::Register(register) => match self.hw.register(register) {
                0 => {}
                error => self.fail(&alloc::format!("its error buffer begins with {error:#010x}")),
            },
            HealthSource::Channel => {
                if let Some(error) = channel_error(&self.hw) {
                    self.fail(&alloc::format!("{error}"));
                }
            }
        }
    }

    /// Marks the card as failed. Until it is reset, the driver does not use it and it cannot reach memory.
    pub(super) fn fail(&self, why: &str) {
        if self.health.fail() {
            log::error!("mlx4: the card has failed: {why}");
            self.link.lock().state = PortState::Down;
            self.cut_off();
        }
    }

    /// Disables the card's access to memory. Returns true if the card then has none.
    pub(super) fn cut_off(&self) -> bool {
        let done = bus::cut_off(&self.hw);
        if !done {
            log::error!("mlx4: the card cannot be kept from reaching memory");
        }
        self.health.set_cut_off(done);
        done
    }

    /// Returns true if a card that has failed can no longer reach memory.
    pub(super) fn is_cut_off(&self) -> bool {
        self.health.is_cut_off()
    }
}
