//! Messages behind data: WRITEs on the queue pair that then carries the message.

use super::client::{Attempt, RawRequest, ReplyTarget};
use super::state::Rpc;
use crate::channel::Channel;
use crate::transport::conn::Conn;
use crate::transport::op::{Access, InFlight, NotPosted, Verb};
use crate::{Error, sometimes::sometimes};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use platform::IoAddr;
use verbs::RemoteAddr;

/// Data that is written before a message.
pub(crate) struct Ahead<'a> {
    /// The address of the first byte at the receiver.
    pub(crate) addr: IoAddr,
    pub(crate) data: &'a [u8],
    pub(crate) pass: Access<'a>,
}

/// The result of an attempt to send a message behind data, apart from errors.
pub(crate) enum Notified {
    /// The message is in the receiver's queue, and the data is in its place.
    Queued,
    /// The data is in its place. The receiver's queue was full, and the message is not in it.
    QueueFull,
    /// The message was not sent. The data may be there.
    NotSent,
    /// The mapping has changed. The message was not sent.
    Changed,
}

impl Ahead<'_> {
    /// Writes the data and then sends a one-way message on one queue pair of a connection, so that the
    /// receiver of the message finds the data. Waits until the message is in the receiver's queue. Sets
    /// `issued` once a part has been posted.
    pub(crate) async fn notify(
        &self,
        rpc: &Arc<Rpc>,
        conn: &Arc<Conn>,
        request: &RawRequest<'_>,
        issued: &AtomicBool,
    ) -> Result<Notified, Error> {
        let Some(channel) = rpc.channel(conn, request.function) else { return Err(Error::Unknown) };
        match self.post(rpc, conn, channel, issued).await {
            Ok(()) => {}
            Err(NotPosted::Changed) => return Ok(Notified::Changed),
            Err(NotPosted::Revoked) => return Err(Error::Freed),
            Err(NotPosted::Invalid) => return Err(Error::Refused("the RNIC refused the request".into())),
            Err(NotPosted::ConnectionLost | NotPosted::Busy) => {
                rpc.fail(conn);
                return Ok(Notified::NotSent);
            }
        }
        match rpc.call_on(conn, channel, request, &mut ReplyTarget::Nowhere, issued).await? {
            Attempt::Reply(_) => Ok(Notified::Queued),
            Attempt::Busy => Ok(Notified::QueueFull),
            Attempt::NotSent => Ok(Notified::NotSent),
        }
    }

    /// Posts the data. Nothing waits for its completions: the queue pair carries out its work requests in
    /// order, and a failed one ends the connection before the message.
    async fn post(
        &self,
        rpc: &Rpc,
        conn: &Arc<Conn>,
        channel: &Channel,
        issued: &AtomicBool,
    ) -> Result<(), NotPosted> {
        let lane = conn.group.lanes.rpc(channel.shard);
        let mut addr = self.addr;
        for head in self.data.chunks(rpc.chunk) {
            let verb = Verb::Write { head, tail: &[], imm: None };
            let to = RemoteAddr { addr, key: conn.remote_key.rkey };
            let post = || match rpc.try_post(conn, lane, verb, to, Some(self.pass)) {
                Err(NotPosted::Busy) => {
                    sometimes!("data ahead of a message waited for room");
                    None
                }
                other => Some(other),
            };
            let id = rpc.resources.until(post).await?;
            issued.store(true, Ordering::Relaxed);
            // Nothing waits for this WRITE. Its slot and its buffer stay in use until it completes.
            drop(InFlight::new(rpc, id));
            rpc.local.counters.bytes_copied.add(rpc.bounce_len(verb).unwrap_or(0) as u64);
            addr = addr.checked_add(head.len() as u64).ok_or(NotPosted::Invalid)?;
        }
        Ok(())
    }
}
