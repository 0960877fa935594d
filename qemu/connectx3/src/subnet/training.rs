//! The training of a link: two ports on a cable find each other (specification 5.6.4, without the parts for
//! copper).
//!
//! A port that searches for a partner repeats the symbol for polling. A partner that is also polling answers,
//! and both links are up. A port whose link is up and that receives the symbol for polling knows that its
//! partner has restarted.

use core::time::Duration;
use platform::Instant;
use roce::wire::Symbol;

/// The time between two polling symbols.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Off,
    Polling { next: Instant },
    Up,
}

/// The effect of a symbol on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The state of the link has not changed.
    None,
    /// The port has found a partner.
    Up,
    /// The port has lost its partner.
    Down,
    /// The port has lost its partner and found it again.
    Restarted,
}

/// The training state of a port.
#[derive(Clone, Debug)]
pub struct Training(Phase);

impl Default for Training {
    fn default() -> Self {
        Self(Phase::Off)
    }
}

impl Training {
    /// Returns whether the port has a partner.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.0 == Phase::Up
    }

    /// Returns whether the port is enabled.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0 != Phase::Off
    }

    /// Starts to search for a partner at `now`.
    pub const fn start(&mut self, now: Instant) {
        self.0 = Phase::Polling { next: now };
    }

    /// Stops the search or the link. Returns the symbol to be sent.
    pub fn stop(&mut self) -> Option<Symbol> {
        let was_on = self.is_on();
        self.0 = Phase::Off;
        was_on.then_some(Symbol::Silence)
    }

    /// Handles a symbol. Returns the symbol to be sent, and the effect.
    pub fn receive(&mut self, symbol: Symbol, now: Instant) -> (Option<Symbol>, Change) {
        match (self.0, symbol) {
            (Phase::Polling { .. }, Symbol::Polling) => {
                self.0 = Phase::Up;
                (Some(Symbol::Trained), Change::Up)
            }
            (Phase::Polling { .. }, Symbol::Trained) => {
                self.0 = Phase::Up;
                (None, Change::Up)
            }
            (Phase::Up, Symbol::Polling) => (Some(Symbol::Trained), Change::Restarted),
            (Phase::Up, Symbol::Silence) => {
                self.0 = Phase::Polling { next: now + INTERVAL };
                (None, Change::Down)
            }
            _ => (None, Change::None),
        }
    }

    /// Returns the symbol to be sent at `now`.
    pub fn on_timer(&mut self, now: Instant) -> Option<Symbol> {
        match self.0 {
            Phase::Polling { next } if next <= now => {
                self.0 = Phase::Polling { next: now + INTERVAL };
                Some(Symbol::Polling)
            }
            _ => None,
        }
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.0 {
            Phase::Polling { next } => Some(next),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ports_find_each_other_whatever_is_lost() {
        for lost in 0..16u32 {
            let (mut a, mut b) = (Training::default(), Training::default());
            a.start(Instant::from_nanos(0));
            b.start(Instant::from_nanos(5_000_000));
            let mut sent = 0;
            for ms in 0..400 {
                let now = Instant::from_nanos(ms * 1_000_000);
                let mut wire = vec![(0, a.on_timer(now)), (1, b.on_timer(now))];
                while let Some((from, symbol)) = wire.pop() {
                    let Some(symbol) = symbol else { continue };
                    sent += 1;
                    // Any of the first four symbols may be lost.
                    if sent <= 4 && lost >> (sent - 1) & 1 != 0 {
                        continue;
                    }
                    let (reply, _) = if from == 0 { b.receive(symbol, now) } else { a.receive(symbol, now) };
                    wire.push((1 - from, reply));
                }
            }
            assert!(a.is_up() && b.is_up(), "{lost:#b}");
        }
    }

    #[test]
    fn a_partner_that_goes_and_comes_is_seen() {
        let now = Instant::from_nanos(0);
        let mut port = Training::default();
        assert_eq!(port.receive(Symbol::Polling, now), (None, Change::None), "off");
        port.start(now);
        assert_eq!(port.receive(Symbol::Polling, now), (Some(Symbol::Trained), Change::Up));
        assert_eq!(port.receive(Symbol::Silence, now), (None, Change::Down));
        assert_eq!(port.receive(Symbol::Trained, now), (None, Change::Up));
        assert_eq!(port.receive(Symbol::Polling, now), (Some(Symbol::Trained), Change::Restarted));
        assert_eq!((port.stop(), port.stop()), (Some(Symbol::Silence), None));
    }
}
