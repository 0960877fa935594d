//! Congestion notifications, by which the receiver of marked packets informs their sender (annex A17.9.3).

use super::qp::{Source, Tx};
use crate::wire::{Bth, Ext, Opcode};
use core::time::Duration;
use platform::Instant;
use verbs::{Psn, QpNum};

/// The minimum time between two notifications of one queue pair, as in DCQCN.
const SPACING: Duration = Duration::from_micros(50);
/// BECN, in the byte of the base header before the queue pair.
const BECN: u8 = 0x40;

/// Decides when a notification is due.
pub(super) struct Notifier {
    due: bool,
    not_before: Instant,
}

impl Notifier {
    pub(super) const fn new() -> Self {
        Self { due: false, not_before: Instant::ZERO }
    }

    /// Records that a marked packet has arrived.
    pub(super) fn on_marked(&mut self, now: Instant) {
        if now >= self.not_before {
            self.due = true;
            self.not_before = now + SPACING;
        }
    }

    pub(super) const fn is_due(&self) -> bool {
        self.due
    }

    /// Returns the notification for `remote_qp`, if it is due.
    pub(super) fn next_tx(&self, remote_qp: QpNum) -> Option<Tx> {
        self.due.then(|| {
            let mut bth = Bth::new(Opcode::CNP, remote_qp, Psn::new(0));
            bth.congestion = BECN;
            Tx { bth, ext: Ext::Cnp([0; 16]), len: 0, source: Source::Notification }
        })
    }

    /// Clears the notification, after it was sent or because it is not wanted.
    pub(super) const fn clear(&mut self) {
        self.due = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn one_per_50_us_however_many_are_marked() {
        let mut notifier = Notifier::new();
        assert!(notifier.next_tx(QpNum::new(5)).is_none());
        let mut sent = Vec::new();
        for us in 0..200 {
            notifier.on_marked(Instant::from_nanos(1000 * us));
            if let Some(tx) = notifier.next_tx(QpNum::new(5)) {
                assert_eq!(tx.bth.emit(), [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 5, 0, 0, 0, 0]);
                assert_eq!((tx.ext, tx.len), (Ext::Cnp([0; 16]), 0));
                sent.push(us);
                notifier.clear();
            }
        }
        assert_eq!(sent, [0, 50, 100, 150]);
    }
}
