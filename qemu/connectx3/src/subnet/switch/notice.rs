//! The notice to the subnet manager that the state of a port has changed (notice 128, specification
//! 14.2.5.1), and its repetition until the manager has responded (13.4.9).
//!
//! The bit in SwitchInfo for changes is not enough. A manager clears the bit after it has looked at the
//! ports, so a port that changes in between is known by its notice alone. In a manager's first sweep of the
//! subnet, the switch does not yet know where to send the notice.

use super::{Leaving, Switch};
use crate::subnet::mad::{Mad, class, method};
use crate::subnet::switch::agent::QP0;
use core::time::Duration;
use platform::Instant;
use roce::wire::Lrh;

/// The time from the notice of a change to its first repetition. Later ones take twice as long each, up to
/// [`LONGEST_INTERVAL`].
const FIRST_INTERVAL: Duration = Duration::from_millis(250);
/// opensm ignores a notice that comes more than ten times with less than 5 s in between.
const LONGEST_INTERVAL: Duration = Duration::from_secs(8);

/// The notice of the last change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notice {
    /// The number of changes so far, which identifies the notice.
    number: u64,
    /// The time to send the notice again and the time from then to the next repetition. `None` if the
    /// manager has responded.
    pending: Option<(Instant, Duration)>,
}

impl Notice {
    /// Replaces the notice by that of a new change, to be sent at once.
    fn renew(&mut self, now: Instant) {
        self.number += 1;
        self.pending = Some((now, FIRST_INTERVAL));
    }

    /// Handles the manager's response to the notice with a number. The response to an earlier notice does
    /// not count, because the manager may have looked at the ports before the last change.
    fn answer(&mut self, number: u64) {
        if number == self.number {
            self.pending = None;
        }
    }

    /// Records an attempt to send the notice. The interval grows only if the notice was `sent`.
    fn attempted(&mut self, now: Instant, sent: bool) {
        if let Some((next, interval)) = &mut self.pending {
            *next = now + *interval;
            if sent {
                *interval = (*interval * 2).min(LONGEST_INTERVAL);
            }
        }
    }

    /// Returns whether the notice must be sent at `now`.
    fn is_due(&self, now: Instant) -> bool {
        self.pending.is_some_and(|(next, _)| next <= now)
    }
}

impl Switch {
    /// Records that the state of a port has changed, and notifies the subnet manager.
    pub(super) fn port_changed(&mut self, now: Instant, out: &mut Leaving) {
        self.tables.changed = true;
        self.notice.renew(now);
        self.on_timer(now, out);
    }

    /// Sends the notice of the last change if it is due. The frames are added to `out`.
    pub fn on_timer(&mut self, now: Instant, out: &mut Leaving) {
        if self.notice.is_due(now) {
            let sent = self.send_notice(out);
            self.notice.attempted(now, sent);
        }
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.notice.pending {
            Some((next, _)) => Some(next),
            None => None,
        }
    }

    /// Ends the repetition of the notice to which a manager responds.
    pub(super) fn end_notice(&mut self, response: &Mad) {
        if !self.own.is_locked_for(response) {
            self.notice.answer(response.transaction());
        }
    }

    /// Sends the notice. Returns false if no manager has made itself and the path to it known.
    fn send_notice(&mut self, out: &mut Leaving) -> bool {
        const NOTICE: u16 = 0x0002;
        const URGENT_GENERIC: u8 = 0x81;
        const FROM_SWITCH: u8 = 2;
        const PORT_STATE_CHANGE: u16 = 128;
        let (lid, (manager, level)) = (self.own.info.lid(), self.own.info.manager());
        let to = self.tables.port(manager).and_then(|port| usize::from(port).checked_sub(1));
        let (Some(to), false) = (to, lid == 0 || manager == 0) else { return false };
        let mut bytes = [0; 256];
        bytes[..4].copy_from_slice(&[1, class::SUBNET_LID_ROUTED, 1, method::TRAP]);
        bytes[8..16].copy_from_slice(&self.notice.number.to_be_bytes());
        bytes[16..18].copy_from_slice(&NOTICE.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.own.info.management_key().to_be_bytes());
        let [t0, t1] = PORT_STATE_CHANGE.to_be_bytes();
        let [l0, l1] = lid.to_be_bytes();
        bytes[64..76].copy_from_slice(&[URGENT_GENERIC, 0, 0, FROM_SWITCH, t0, t1, l0, l1, 0, 0, l0, l1]);
        let Some(mad) = Mad::parse(&bytes) else { return false };
        let lrh = Lrh { lane: Lrh::MANAGEMENT_LANE, service_level: level, dlid: manager, slid: lid };
        self.send(to, lrh, (QP0, QP0, 0), &mad, out);
        true
    }
}
