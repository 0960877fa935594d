//! The poller of the control connection.

use alloc::boxed::Box;
use platform::Instant;

use super::{LINK, Line, tell_broken};
use crate::exec::{self, Poller};

/// Drives the connection from core 0: sends heartbeats and waiting bytes. Neither allocates nor waits.
pub(super) struct LinkPoller;

impl LinkPoller {
    /// Makes core 0 drive the connection, once there is one.
    pub(super) fn register() {
        exec::register_poller(0, Box::new(Self));
    }
}

impl Poller for LinkPoller {
    fn name(&self) -> &'static str {
        "control link"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        let slot = LINK.lock();
        let Some(link) = slot.as_ref() else { return false };
        let mut outgoing = link.outgoing.lock();
        if outgoing.line != Line::Up {
            return false;
        }
        outgoing.queue_heartbeat(now);
        if outgoing.bytes.is_empty() {
            return false;
        }
        let before = outgoing.sent;
        match outgoing.drain() {
            Ok(true) => {
                outgoing.wake_all();
                true
            }
            Ok(false) => outgoing.sent != before,
            Err(why) => {
                let broken = outgoing.has_broken();
                drop(outgoing);
                tell_broken(broken, &why);
                true
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let slot = LINK.lock();
        let Some(link) = slot.as_ref() else { return Instant::MAX };
        let outgoing = link.outgoing.lock();
        if outgoing.line == Line::Up { outgoing.heartbeats.next } else { Instant::MAX }
    }

    fn arm(&mut self) -> bool {
        // Bytes that the connection did not accept wait for the peer, whose segments the port announces.
        false
    }
}
