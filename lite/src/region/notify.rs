//! Writes with a message behind them.

use super::handle::Lmr;
use crate::rpc::{Ahead, INTERNAL, Notified, RawRequest, ReplyTarget, Whom};
use crate::transport::transfer::{Data, RECONNECT_PAUSE, Route};
use crate::{Error, FunctionId, Permissions};
use core::sync::atomic::AtomicBool;
use platform::Instant;
use proto::NodeId;

/// Data for a region, and a message for the node of its first byte.
pub(super) struct Notification<'a> {
    pub(super) lmr: &'a Lmr,
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    pub(super) port: FunctionId,
    pub(super) message: &'a [u8],
}

/// The part of a notification that is left to do, and the node that gets the message.
enum Rest {
    Nothing,
    Message(NodeId),
    All(NodeId),
}

impl Notification<'_> {
    /// Writes the data, and sends the message behind it.
    pub(super) async fn send(&self) -> Result<(), Error> {
        if self.port >= INTERNAL {
            return Err(Error::Permission);
        }
        let (node, deadline) = (self.lmr.here(), self.lmr.deadline());
        self.lmr.check(Permissions::WRITE, self.offset, self.data.len() as u64)?;
        node.counters.sends.add(1);
        let issued = AtomicBool::new(false);
        match node.limit(deadline, &issued, self.send_together(deadline, &issued)).await? {
            Rest::Nothing => Ok(()),
            Rest::Message(to) => self.send_message(to, deadline).await,
            Rest::All(to) => {
                let begun = node.platform.now();
                self.lmr.transfer_long(self.offset, Data::Write(self.data), deadline, false).await?;
                // The message does not lose the time that the data may have waited for patient limits.
                let waited = (node.platform.now() - begun).min(self.lmr.patience());
                self.send_message(to, deadline + waited).await
            }
        }
    }

    /// Writes the data and sends the message on one queue pair, if that is possible. Returns the rest.
    async fn send_together(&self, deadline: Instant, issued: &AtomicBool) -> Result<Rest, Error> {
        let (lmr, node, mapping) = (self.lmr, self.lmr.here(), self.lmr.mapping());
        let mut counted = false;
        loop {
            if self.data.is_empty() && self.offset == lmr.len() {
                return Ok(Rest::Message(lmr.node()));
            }
            // An empty write has a receiver too: that of the byte at its place.
            let len = self.data.len().max(1) as u64;
            let (spot, _) = node.locate(&mapping, Permissions::WRITE, self.offset, len).await?;
            let (to, incarnation) = spot.at;
            if self.data.is_empty() {
                return Ok(Rest::Message(to));
            }
            let piece = lmr.piece(&mapping, Permissions::WRITE, self.offset, len)?;
            let Some((spot, pass)) = piece.filter(|(spot, _)| spot.at.0 != node.me && !lmr.is_rated()) else {
                return Ok(Rest::All(to));
            };
            if !core::mem::replace(&mut counted, true) {
                node.counters.transfer(false, len);
            }
            let conn = node.route(Route::Node(to, incarnation)).await?;
            let whom = Whom::Member((to, incarnation));
            let request = RawRequest { whom, function: self.port, data: self.message, deadline };
            let ahead = Ahead { addr: spot.addr, data: self.data, pass };
            match ahead.notify(node, &conn, &request, issued).await {
                Ok(Notified::Queued) => {
                    node.counters.calls.add(1);
                    return Ok(Rest::Nothing);
                }
                Ok(Notified::QueueFull) => return Ok(Rest::Message(to)),
                Ok(Notified::Changed) => {}
                Ok(Notified::NotSent) => {
                    node.counters.retries.add(1);
                    node.timers.until(node.platform.now() + RECONNECT_PAUSE).await;
                }
                Err(error) => return Err(lmr.explain(error)),
            }
        }
    }

    async fn send_message(&self, to: NodeId, deadline: Instant) -> Result<(), Error> {
        let (_ticket, deadline) = self.lmr.rate_message(self.message.len(), deadline).await?;
        let whom = Whom::Node(to);
        let request = RawRequest { whom, function: self.port, data: self.message, deadline };
        self.lmr.here().call(&request, &mut ReplyTarget::Nowhere).await.map(drop)
    }
}
