//! Orderly leaving of the cluster.

use super::standing::Membership;
use crate::Error;
use crate::channel::Channel;
use crate::transport::op::NotPosted;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;
use proto::ToManager;

/// The interval at which work in flight is checked.
const PAUSE: Duration = Duration::from_micros(200);
/// The time that the manager may take to end the connection of a node that has sent that it leaves.
const FAREWELL: Duration = Duration::from_secs(2);

/// Ends the membership of a leaving node when it is dropped, which may be before the end of the waits.
struct Leaving<'a> {
    node: &'a Arc<Membership>,
    /// True once the manager has been told.
    told: bool,
}

impl Leaving<'_> {
    /// Tells the manager once that the node leaves.
    fn tell(&mut self) {
        if !core::mem::replace(&mut self.told, true) {
            self.node.control.post(&ToManager::Leave);
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.tell();
        self.node.fence();
    }
}

impl Membership {
    /// Leaves the cluster; waits for the end of all work until `deadline`. Returns `Deadline` if some was cut
    /// off.
    pub(crate) async fn leave(self: &Arc<Self>, deadline: Instant) -> Result<(), Error> {
        if !self.lease.leave() {
            return Err(Error::LinkDown);
        }
        let mut leaving = Leaving { node: self, told: false };
        let done = self.timers.before(deadline, self.end_all_work()).await;
        leaving.tell();
        // The manager ends the connection, which ends the membership here.
        let until = self.platform.now() + FAREWELL;
        while !self.lease.is_over() && self.platform.now() < until {
            self.timers.until(self.platform.now() + PAUSE).await;
        }
        drop(leaving);
        done.ok_or(Error::Deadline)
    }

    /// Closes functions, and waits until nothing is in flight.
    async fn end_all_work(self: &Arc<Self>) {
        self.services.end_all().await;
        while !self.is_idle() {
            self.timers.until(self.platform.now() + PAUSE).await;
        }
    }

    fn is_idle(&self) -> bool {
        let conns: Vec<_> = self.by_receive.lock().values().cloned().collect();
        // The last replies have arrived when a signalled message after them has completed.
        let flushed = conns.iter().filter(|conn| !conn.is_shut()).all(|conn| {
            let mut channels = conn.channels();
            channels.all(|channel| self.post_flush(conn, channel) != Err(NotPosted::Busy))
        });
        flushed
            && conns.iter().flat_map(|c| c.channels()).all(Channel::is_quiet)
            && self.has_nothing_in_flight()
    }
}
