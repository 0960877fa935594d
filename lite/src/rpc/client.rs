//! The caller's side.

use super::calls::{Buffers, CallSlot, ConnRpc, Ended, verdict};
use super::server::{Call, FunctionId, LocalReply, ReplyTo};
use super::wire::{GRAIN, Imm, ReplyHeader, ReplyStatus, RequestHeader};
use crate::Error;
use crate::bounce::Run;
use crate::conn::{Conn, RPC_LANE};
use crate::node::Node;
use crate::op::{NotPosted, RECONNECT_PAUSE, Verb};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::Instant;
use proto::NodeId;
use verbs::RemoteAddr;

/// First wait after a server said that its queue is full; doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_micros(50);
/// See [`FIRST_BACKOFF`].
const LONGEST_BACKOFF: Duration = Duration::from_millis(5);

/// How one attempt at a call ended, if not with an error.
enum Attempt {
    Reply(Vec<u8>),
    /// The server's queue is full; nothing has happened.
    Busy,
    /// The connection ended before the request left; nothing has happened.
    NotSent,
}

impl Node {
    /// Calls `function` on `node`: gives the reply, by `deadline`.
    pub(crate) async fn call(
        self: &Arc<Self>,
        node: NodeId,
        function: FunctionId,
        request: &[u8],
        max_reply: usize,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let issued = AtomicBool::new(false);
        let work = async {
            let mut backoff = FIRST_BACKOFF;
            loop {
                let attempt = if node == self.me {
                    self.call_here(function, request, max_reply, &issued).await?
                } else {
                    let conn = self.connection(node).await?;
                    self.call_there(&conn, function, request, max_reply, &issued).await?
                };
                match attempt {
                    Attempt::Reply(reply) => return Ok(reply),
                    Attempt::NotSent => {
                        self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                    }
                    Attempt::Busy => {
                        issued.store(false, Ordering::Relaxed);
                        self.counters.busy.add(1);
                        self.timers.until(self.platform.now() + backoff).await;
                        backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    }
                }
            }
        };
        self.counters.calls.add(1);
        self.limit(deadline, &issued, work).await
    }

    /// Runs `work` until `deadline`; after it, the result is `Unknown` if something was issued.
    pub(crate) async fn limit<T>(
        &self,
        deadline: Instant,
        issued: &AtomicBool,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.is_fenced() {
            return Err(Error::LinkDown);
        }
        match self.timers.before(deadline, work).await {
            Some(result) => result,
            None => {
                self.counters.deadline_misses.add(1);
                Err(if issued.load(Ordering::Relaxed) { Error::Unknown } else { Error::Deadline })
            }
        }
    }

    fn run(&self, len: usize) -> Result<Run, Error> {
        let asked = len as u64;
        Run::take(&self.platform, asked)
            .ok_or_else(|| Error::NoMemory { asked, free: self.platform.memory().stats().largest_free })
    }

    async fn call_there(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        function: FunctionId,
        request: &[u8],
        max_reply: usize,
        issued: &AtomicBool,
    ) -> Result<Attempt, Error> {
        let Some(rpc) = &conn.rpc else { return Err(Error::Unknown) };
        let Some(mut slot) = rpc.room.until(|| rpc.claim()).await else {
            self.fail(conn);
            return Ok(Attempt::NotSent);
        };
        let mut header = RequestHeader {
            function,
            slot: slot.index as u16,
            call: slot.number(),
            len: request.len() as u64,
            buffer: None,
            max_reply: max_reply as u64,
            reply_buffer: None,
        };
        let mut buffers: Buffers = (None, None);
        let mut payload = request;
        if request.len() > rpc.longest_in_ring() {
            let run = self.run(request.len())?;
            let refused = |e| Error::Refused(alloc::format!("{e}"));
            self.platform.memory().write(run.addr(), request).map_err(refused)?;
            header.buffer = Some(run.addr());
            payload = &[];
            buffers.0 = Some(run);
        }
        if max_reply > ConnRpc::longest_in_slot(&rpc.local) {
            let run = self.run(max_reply)?;
            header.reply_buffer = Some(run.addr());
            buffers.1 = Some(run);
        }
        slot.lend(buffers);
        slot.posted = true;
        let sent = rpc
            .room
            .until(|| match self.send_request(conn, rpc, &header, payload) {
                Err(NotPosted::Busy) => None,
                other => Some(other),
            })
            .await;
        match sent {
            Ok(()) => issued.store(true, Ordering::Relaxed),
            Err(NotPosted::ConnectionLost | NotPosted::Busy | NotPosted::Revoked) => {
                slot.posted = false;
                self.fail(conn);
                return Ok(Attempt::NotSent);
            }
            Err(NotPosted::Invalid) => {
                slot.posted = false;
                return Err(Error::Refused("the RNIC refused the request".into()));
            }
        }
        let ended = core::future::poll_fn(|cx| slot.poll(cx)).await;
        let Ended::Replied(reply, buffers) = ended else {
            return Err(self.gone(conn.peer, conn.incarnation).unwrap_or(Error::Unknown));
        };
        if reply.status == ReplyStatus::Busy {
            return Ok(Attempt::Busy);
        }
        if let Some(error) = verdict(&reply) {
            return Err(error);
        }
        self.collect(rpc, &slot, &reply, &buffers, max_reply).map(Attempt::Reply)
    }

    /// Copies the reply out of slot or buffer.
    fn collect(
        &self,
        rpc: &ConnRpc,
        slot: &CallSlot<'_>,
        reply: &ReplyHeader,
        buffers: &Buffers,
        max_reply: usize,
    ) -> Result<Vec<u8>, Error> {
        let nonsense = || Error::Refused("the server's reply makes no sense".into());
        let len = usize::try_from(reply.len).ok().filter(|n| *n <= max_reply).ok_or_else(nonsense)?;
        let from = match (reply.status, &buffers.1) {
            (ReplyStatus::InBuffer, Some(run)) => Some(run.addr()),
            (ReplyStatus::InSlot, _) if len <= ConnRpc::longest_in_slot(&rpc.local) => {
                ConnRpc::slot_addr(&rpc.local, slot.index)
                    .and_then(|a| a.checked_add(ReplyHeader::LEN as u64))
            }
            _ => None,
        };
        let mut bytes = vec![0; len];
        let from = from.ok_or_else(nonsense)?;
        self.platform.memory().read(from, &mut bytes).map_err(|_| nonsense())?;
        Ok(bytes)
    }

    fn send_request(
        &self,
        conn: &Arc<Conn>,
        rpc: &ConnRpc,
        header: &RequestHeader,
        payload: &[u8],
    ) -> Result<(), NotPosted> {
        // Records lie in the ring in the order in which they are posted.
        let mut tx = rpc.tx.lock();
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        let bytes = (RequestHeader::LEN + payload.len()) as u32;
        let (offset, end) = tx.place(bytes).ok_or(NotPosted::Busy)?;
        let addr = rpc.remote.ring.checked_add(u64::from(offset)).ok_or(NotPosted::Invalid)?;
        let remote = RemoteAddr { addr, key: conn.remote_key.rkey };
        let imm = Some(Imm::Request(offset / GRAIN).emit());
        let verb = Verb::Write { head: &header.emit(), tail: payload, imm };
        self.try_post(conn, RPC_LANE, verb, remote, None, true)?;
        tx.commit(end);
        Ok(())
    }

    /// A call of this node to itself: straight into the function's queue.
    async fn call_here(
        self: &Arc<Self>,
        function: FunctionId,
        request: &[u8],
        max_reply: usize,
        issued: &AtomicBool,
    ) -> Result<Attempt, Error> {
        let reply = Arc::new(LocalReply::default());
        let to = ReplyTo::Here { reply: reply.clone(), max: max_reply };
        let service = self.services.get(function).ok_or(Error::NoSuchFunction)?;
        if request.len() > service.max_request() {
            return Err(Error::TooLarge { max: service.max_request() as u64 });
        }
        if !service.reserve() {
            return Ok(Attempt::Busy);
        }
        service.enqueue(Call::new(self.me, self.incarnation, request.to_vec(), to));
        drop(service);
        issued.store(true, Ordering::Relaxed);
        let (status, bytes, len) = reply.wait().await;
        if status == ReplyStatus::Busy {
            return Ok(Attempt::Busy);
        }
        verdict(&ReplyHeader { call: 0, status, len }).map_or(Ok(Attempt::Reply(bytes)), Err)
    }
}
