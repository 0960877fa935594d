//! Asynchronous operations: many are posted at once, with one doorbell for those to the same node;
//! completions are taken one by one.

use super::handle::Lmr;
use super::layout::Location;
use super::mapped::Mapping;
use crate::base::bounce::BufferOffset;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::qos::Share;
use crate::base::ticket::Ticket;
use crate::region::issuer::Issuer;
use crate::transport::op::{Access, Ended, NotPosted, OpId, Shard, Verb, WaitMode, posted as posted_event};
use crate::transport::transfer::{AttemptError, RECONNECT_PAUSE, Route, TransferError, judge};
use crate::{Error, Permissions};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr};
use verbs::{Payload, QpNum, RemoteAddr, RemoteKey, SendOp, SendWr, Sge, VerbsError, WrId};

/// The location of an operation's memory, and the right to access it.
type Located<'m> = (Location, Access<'m>);

/// The most work requests that are posted with one doorbell.
const BATCH: usize = 16;

/// An operation to post, with a tag of the caller's choice.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    /// The tag, which the [`Completed`] returns.
    pub tag: u64,
    /// The region; the rights are those of this handle.
    pub lmr: &'a Lmr,
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The kind of operation.
    pub kind: OpKind<'a>,
}

/// The kind of an asynchronous operation.
#[derive(Clone, Copy, Debug)]
pub enum OpKind<'a> {
    /// Writes these bytes, which are copied when the operation is posted.
    Write(&'a [u8]),
    /// Reads that many bytes; [`CompletionQueue::next`] copies them out.
    Read(usize),
    /// Does the same as [`Lmr::fetch_add`].
    FetchAdd(u64),
    /// Does the same as [`Lmr::compare_swap`]: compare, swap.
    CompareSwap(u64, u64),
}

impl OpKind<'_> {
    fn right(&self) -> Permissions {
        match self {
            Self::Write(_) => Permissions::WRITE,
            Self::Read(_) => Permissions::READ,
            Self::FetchAdd(_) | Self::CompareSwap(..) => Permissions::ATOMIC,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Write(data) => data.len(),
            Self::Read(len) => *len,
            Self::FetchAdd(_) | Self::CompareSwap(..) => 8,
        }
    }
}

impl<'a> OpKind<'a> {
    fn verb(&self) -> Verb<'a> {
        match *self {
            Self::Write(head) => Verb::Write { head, tail: &[], imm: None },
            Self::Read(len) => Verb::Read { len: len as u32 },
            Self::FetchAdd(add) => Verb::FetchAdd { add },
            Self::CompareSwap(compare, swap) => Verb::CompareSwap { compare, swap },
        }
    }
}

/// The completion of an asynchronous operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The operation's tag.
    pub tag: u64,
    /// The number of bytes read or written; for an atomic, the value before.
    pub result: Result<u64, Error>,
}

/// The result that a read or an atomic brings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Brings {
    Nothing,
    Bytes,
    Value,
}

enum EntryState {
    Wire(OpId),
    /// The operation has ended without a work request.
    Done(Result<u64, Error>),
    /// The read has ended without a work request, because the bytes are in several pieces or in this node's
    /// memory.
    Read(Result<Vec<u8>, Error>),
}

struct Entry {
    tag: u64,
    state: EntryState,
    brings: Brings,
    len: usize,
    _ticket: Option<Ticket>,
}

/// A queue of asynchronous operations in flight and completed. Dropping it forgets them: operations that
/// were posted may still happen.
pub struct CompletionQueue {
    by: Arc<Issuer>,
    depth: usize,
    entries: Mutex<VecDeque<Entry>>,
}

/// The resources of an operation.
#[derive(Clone, Copy)]
struct Taken {
    id: OpId,
    bounce: Option<BufferOffset>,
    /// The remote address.
    addr: IoAddr,
}

/// The reason for which a group was not posted.
enum Refused {
    /// There is no room now.
    Busy,
    /// There is no connection now.
    Disconnected,
    For(Error),
}

impl CompletionQueue {
    pub(crate) fn new(by: &Arc<Issuer>, depth: usize) -> Self {
        Self { by: by.clone(), depth, entries: Mutex::new(VecDeque::with_capacity(depth)) }
    }

    /// Returns the number of operations in flight or not yet taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Returns true if no operation is in flight or not yet taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts operations, from the first on, and returns the number of those posted: fewer than all if there
    /// is no room until completions are taken. An operation that does not fit one work request, because its
    /// bytes lie on several nodes, is posted while none is in flight or untaken that does. All are checked
    /// before any is posted: rights, bounds and alignment as for [`Lmr::read`] and the others, and a length
    /// of at most the chunk (the largest buffer of [`Config::bounce`](crate::Config::bounce)), or
    /// `TooLarge`. Each has the deadline of the [`Lite`](crate::Lite) that made the queue, from this call on.
    ///
    /// Operations to one node are sent in order. They are not repeated on a new connection: an operation
    /// whose connection fails ends with [`Error::Unknown`] or [`Error::NodeDown`].
    pub async fn post(&self, ops: &[Op<'_>]) -> Result<usize, Error> {
        for op in ops {
            op.lmr.check(op.kind.right(), op.offset, op.kind.len() as u64)?;
            if op.kind.right() == Permissions::ATOMIC && !op.offset.is_multiple_of(8) {
                return Err(Error::Misaligned);
            }
            if op.kind.len() > self.by.node.chunk {
                return Err(Error::TooLarge { max: self.by.node.chunk as u64 });
            }
        }
        let deadline = self.by.deadline();
        let issued = core::sync::atomic::AtomicBool::new(false);
        let latest = deadline + self.by.class.patience();
        self.by.node.limit(latest, &issued, self.post_by(ops, deadline)).await
    }

    async fn post_by(&self, ops: &[Op<'_>], deadline: Instant) -> Result<usize, Error> {
        let (mut posted, mut deadline) = (0, deadline);
        let mut ticket = None;
        // The limit of the caller is later than the deadline if limits are patient.
        let (node, issued) = (&self.by.node, core::sync::atomic::AtomicBool::new(false));
        while let Some(op) = ops.get(posted) {
            let room = self.depth.saturating_sub(self.len());
            if room == 0 {
                return Ok(posted);
            }
            // An operation with a limit, or one that yields, is posted alone.
            if op.lmr.is_rated() && ticket.is_none() {
                ticket = match self.admit(op, deadline).await {
                    Ok(Some((ticket, later))) => {
                        deadline = later;
                        ticket
                    }
                    Ok(None) => return Ok(posted),
                    Err(error) if posted == 0 => return Err(error),
                    Err(_) => return Ok(posted),
                };
            }
            let rest = ops.get(posted..).unwrap_or_default();
            let most = if ticket.is_some() { 1 } else { room.min(BATCH) };
            let count = rest.iter().take(most).take_while(|o| ticket.is_some() || !o.lmr.is_rated()).count();
            let group = rest.get(..count.max(1)).unwrap_or_default();
            let Some(to) = self.short(op)? else {
                // It needs buffers, and those of this queue are free only once completions are taken.
                if self.is_spread(op)? && self.holds_buffers() {
                    return Ok(posted);
                }
                self.at_once(op, deadline, ticket.take()).await;
                posted += 1;
                continue;
            };
            if self.by.node.lease.is_suspended() {
                node.limit(deadline, &issued, node.resumed()).await?;
            }
            match self.post_group(to, group, deadline, &mut ticket) {
                Ok(n) => posted += n,
                Err(Refused::For(error)) if posted == 0 => return Err(error),
                Err(Refused::For(_)) => return Ok(posted),
                // Room appears when completions of this queue are taken.
                Err(_) if !self.is_empty() => return Ok(posted),
                Err(Refused::Busy) => {
                    let (mapping, again) = (op.lmr.mapping(), self.by.node.platform.now() + RECONNECT_PAUSE);
                    let freed = self.by.node.resources.until(|| {
                        self.by.transport.want();
                        mapping.gate.is_closed().then_some(())
                    });
                    // Every release of a resource wakes this task; the pause only bounds the wait.
                    let freed = async {
                        node.timers.before(again, freed).await;
                        Ok(())
                    };
                    node.limit(deadline, &issued, freed).await?;
                }
                Err(Refused::Disconnected) => {
                    node.limit(deadline, &issued, node.route(Route::Node(to.0, to.1))).await?;
                }
            }
        }
        Ok(posted)
    }

    /// Returns true if an operation is on the wire, or its completion has not been taken.
    fn holds_buffers(&self) -> bool {
        self.entries.lock().iter().any(|entry| matches!(entry.state, EntryState::Wire(_)))
    }

    /// Waits until `op` may go, and returns its deadline too. Returns `None` if it may go only after a
    /// completion of this queue has been taken.
    async fn admit(
        &self,
        op: &Op<'_>,
        deadline: Instant,
    ) -> Result<Option<(Option<Ticket>, Instant)>, Error> {
        let mut rated = pin!(op.lmr.rate(op.kind.len(), deadline));
        core::future::poll_fn(|cx| match rated.as_mut().poll(cx) {
            Poll::Pending if op.lmr.is_held_back() && !self.is_empty() => Poll::Ready(Ok(None)),
            other => other.map_ok(Some),
        })
        .await
    }

    /// Returns the node whose RNIC does `op`, if `op` fits one work request.
    fn short(&self, op: &Op<'_>) -> Result<Option<MemberId>, Error> {
        let mapping = op.lmr.mapping();
        let piece = op.lmr.piece(&mapping, op.kind.right(), op.offset, op.kind.len() as u64)?;
        Ok(piece.map(|(spot, _)| spot.at).filter(|at| self.is_remote(op, *at)))
    }

    /// Returns true if `op` does not fit one work request, because its bytes lie in several pieces.
    fn is_spread(&self, op: &Op<'_>) -> Result<bool, Error> {
        let mapping = op.lmr.mapping();
        let piece = op.lmr.piece(&mapping, op.kind.right(), op.offset, op.kind.len() as u64)?;
        Ok(piece.is_none())
    }

    /// Returns true if `op` on memory of `at` needs the RNIC.
    fn is_remote(&self, op: &Op<'_>, at: MemberId) -> bool {
        let atomic = op.kind.right() == Permissions::ATOMIC;
        op.kind.len() > 0 && (at.0 != self.by.local.me || atomic)
    }

    /// Does `op` now and keeps its completion to be taken.
    async fn at_once(&self, op: &Op<'_>, deadline: Instant, ticket: Option<Ticket>) {
        let lmr = op.lmr.until(deadline).without_class();
        let state = match op.kind {
            OpKind::Write(data) => {
                EntryState::Done(lmr.write(op.offset, data).await.map(|()| data.len() as u64))
            }
            OpKind::Read(len) => {
                let mut bytes = vec![0; len];
                EntryState::Read(lmr.read(op.offset, &mut bytes).await.map(|()| bytes))
            }
            OpKind::FetchAdd(add) => EntryState::Done(lmr.fetch_add(op.offset, add).await),
            OpKind::CompareSwap(compare, swap) => {
                EntryState::Done(lmr.compare_swap(op.offset, compare, swap).await)
            }
        };
        let (brings, len) = (Brings::Nothing, op.kind.len());
        let entry = Entry { tag: op.tag, state, brings, len, _ticket: ticket };
        self.entries.lock().push_back(entry);
    }

    /// Posts the operations at the start of `group` that go to `to`.
    fn post_group(
        &self,
        to: MemberId,
        group: &[Op<'_>],
        deadline: Instant,
        ticket: &mut Option<Ticket>,
    ) -> Result<usize, Refused> {
        let lease = &self.by.local.lease;
        if !lease.may_begin() {
            return Err(if lease.is_fenced() { Refused::For(Error::LinkDown) } else { Refused::Busy });
        }
        let mut mappings = [const { None }; BATCH];
        for (mapping, o) in mappings.iter_mut().zip(group) {
            *mapping = Some(o.lmr.mapping());
        }
        let share = group.first().map_or(Share::All, |o| o.lmr.share());
        let mut found = [None; BATCH];
        self.locate_group((to, share), group, &mappings, &mut found);
        let mut taken = [None; BATCH];
        let (shard, qp, key) = self.take_group((to, share), group, &found, deadline, &mut taken)?;
        let posted = self.ring((shard, qp), group, &taken, key);
        let transport = &self.by.transport;
        for slot in taken.iter().flatten().skip(posted) {
            transport.cancel(slot.id);
        }
        let mut entries = self.entries.lock();
        for (o, slot) in group.iter().zip(taken.iter().flatten()).take(posted) {
            let brings = match o.kind {
                OpKind::Write(_) => Brings::Nothing,
                OpKind::Read(_) => Brings::Bytes,
                OpKind::FetchAdd(_) | OpKind::CompareSwap(..) => Brings::Value,
            };
            let state = EntryState::Wire(slot.id);
            let _ticket = ticket.take();
            entries.push_back(Entry { tag: o.tag, state, brings, len: o.kind.len(), _ticket });
        }
        drop(entries);
        if posted < taken.iter().flatten().count() {
            transport.resources.wake_all();
        }
        if posted == 0 { Err(Refused::Disconnected) } else { Ok(posted) }
    }

    /// Finds the locations of the operations at the start of `group` that may go to `to` now, over the
    /// queue pairs of `share`.
    #[inline]
    fn locate_group<'m>(
        &self,
        (to, share): (MemberId, Share),
        group: &[Op<'_>],
        mappings: &'m [Option<Arc<Mapping>>; BATCH],
        found: &mut [Option<Located<'m>>; BATCH],
    ) {
        for ((entry, mapping), o) in found.iter_mut().zip(mappings.iter().flatten()).zip(group) {
            let piece = o.lmr.piece(mapping, o.kind.right(), o.offset, o.kind.len() as u64);
            let Ok(Some((spot, pass))) = piece else { break };
            if spot.at != to || !self.is_remote(o, to) || pass.share != share {
                break;
            }
            *entry = Some((spot, pass));
        }
    }

    /// Takes slots for the located operations, in order, as far as there are free ones. Returns the shard and
    /// the queue pair for them, and the key of the peer's memory; fails if no operation can go.
    #[inline]
    fn take_group(
        &self,
        (to, share): (MemberId, Share),
        group: &[Op<'_>],
        found: &[Option<Located<'_>>; BATCH],
        deadline: Instant,
        taken: &mut [Option<Taken>; BATCH],
    ) -> Result<(&Shard, QpNum, RemoteKey), Refused> {
        let node = &*self.by.transport;
        let Some((conn, shard)) = node.conn_here(to) else { return Err(Refused::Disconnected) };
        let (qp_index, key) = (conn.group.lanes.pick(shard.index, share), conn.remote_key.rkey);
        let mut ops = shard.ops.lock();
        let qp = conn.queue_pair(qp_index).map(|qp| qp.number).ok_or(Refused::Disconnected);
        let (mut revoked, mut why) = (None, Refused::Busy);
        for ((entry, (spot, pass)), o) in taken.iter_mut().zip(found.iter().flatten()).zip(group) {
            if let Err(reason) = pass.check() {
                revoked = (reason == NotPosted::Revoked).then_some(o);
                break;
            }
            // The task that takes completions is woken when one is late.
            let waits = WaitMode::Until(Waker::noop().clone(), deadline);
            let bytes = node.bounce_len(o.kind.verb());
            match ops.take((&conn, qp_index), pass.touch(o.kind.verb()), bytes, node.send_depth, waits) {
                Ok((id, bounce)) => *entry = Some(Taken { id, bounce, addr: spot.addr }),
                Err(NotPosted::Busy) => break,
                Err(_) => {
                    why = Refused::Disconnected;
                    break;
                }
            }
            if let Some(taken) = entry {
                node.local.trace(|| posted_event(taken.id, o.kind.verb(), to.0, qp_index));
            }
            ops.fast_path.count(o.kind.verb(), bytes);
        }
        ops.note_deadline(deadline, &node.standing);
        drop(ops);
        drop(conn);
        if let Some(o) = revoked {
            why = Refused::For(o.lmr.explain(Error::Freed));
        }
        if taken.iter().flatten().next().is_none() {
            return Err(why);
        }
        qp.map(|qp| (shard, qp, key))
    }

    /// Passes a group to the RNIC at once, and returns the number of work requests that it accepted.
    fn ring(
        &self,
        (shard, qp): (&Shard, QpNum),
        group: &[Op<'_>],
        taken: &[Option<Taken>; BATCH],
        key: RemoteKey,
    ) -> usize {
        let buffers = &shard.buffers;
        let mut sges = [[Sge { addr: IoAddr(0), len: 0 }]; BATCH];
        for ((sge, slot), o) in sges.iter_mut().zip(taken.iter().flatten()).zip(group) {
            let Some(offset) = slot.bounce else { continue };
            *sge = [Sge { addr: buffers.addr(offset), len: o.kind.len() as u32 }];
            if let OpKind::Write(data) = o.kind
                && buffers.write(offset, 0, data).is_err()
            {
                return 0;
            }
        }
        let nothing = RemoteAddr { addr: IoAddr(0), key };
        let op = SendOp::Write { data: Payload::Inline(&[]), remote: nothing, imm: None };
        let mut work = [SendWr { id: WrId(0), op, signaled: true, solicited: false, fence: false }; BATCH];
        let mut count = 0;
        for (((wr, slot), o), sge) in work.iter_mut().zip(taken.iter().flatten()).zip(group).zip(&sges) {
            let remote = RemoteAddr { addr: slot.addr, key };
            let result = slot.bounce.map(|offset| buffers.addr(offset)).unwrap_or_default();
            wr.id = slot.id.wr_id();
            wr.op = match o.kind {
                OpKind::Write(data) => {
                    let gathered = slot.bounce.is_some();
                    let data = if gathered { Payload::Gather(sge) } else { Payload::Inline(data) };
                    SendOp::Write { data, remote, imm: None }
                }
                OpKind::Read(_) => SendOp::Read { into: sge, remote },
                OpKind::FetchAdd(add) => SendOp::FetchAdd { result, remote, add },
                OpKind::CompareSwap(compare, swap) => SendOp::CompareSwap { result, remote, compare, swap },
            };
            count += 1;
        }
        let posted = match self.by.node.rnic.post_send(qp, work.get(..count).unwrap_or_default()) {
            Ok(()) => count,
            Err((n, VerbsError::NoResources)) => n,
            Err((n, error)) => {
                log::debug!("lite: {error} after {n} of {count} work requests");
                n
            }
        };
        if posted > 0 {
            self.by.node.platform.wake_poller();
        }
        posted
    }

    /// Returns the next operation that has ended, in no particular order; `None` if none is in flight.
    /// Bytes that were read are copied to the front of `into`; if that is too short the bytes are lost, and
    /// the result is `TooLarge`.
    pub async fn next(&self, into: &mut [u8]) -> Option<Completed> {
        core::future::poll_fn(|cx| self.poll_next(cx, into)).await
    }

    fn poll_next(&self, cx: &Context<'_>, into: &mut [u8]) -> Poll<Option<Completed>> {
        let mut entries = self.entries.lock();
        if entries.is_empty() {
            return Poll::Ready(None);
        }
        for at in 0..entries.len() {
            let Some(entry) = entries.get(at) else { break };
            let ended = match &entry.state {
                EntryState::Wire(id) => match self.by.node.poll_op(*id, cx) {
                    Poll::Pending => continue,
                    Poll::Ready(ended) => ended,
                },
                EntryState::Done(_) | EntryState::Read(_) => (Ended::Done, None),
            };
            let Some(entry) = entries.remove(at) else { break };
            drop(entries);
            let result = match entry.state {
                EntryState::Wire(_) => self.collect(ended, entry.brings, entry.len, into),
                EntryState::Done(result) => result,
                EntryState::Read(read) => read.and_then(|bytes| {
                    let max = into.len() as u64;
                    let room = into.get_mut(..bytes.len()).ok_or(Error::TooLarge { max })?;
                    room.copy_from_slice(&bytes);
                    Ok(bytes.len() as u64)
                }),
            };
            return Poll::Ready(Some(Completed { tag: entry.tag, result }));
        }
        Poll::Pending
    }

    /// Returns the completion of an operation that went over the wire.
    fn collect(
        &self,
        (ended, id): (Ended, Option<OpId>),
        brings: Brings,
        len: usize,
        into: &mut [u8],
    ) -> Result<u64, Error> {
        let node = &self.by.node;
        let result = match (ended, brings, id) {
            (Ended::Late, ..) => {
                node.missed();
                Err(if brings == Brings::Bytes { Error::Deadline } else { Error::Unknown })
            }
            (Ended::Failed, _, Some(id)) => match judge(node.shards.of(id).ops.lock().status(id)) {
                Err(AttemptError::TransferError(TransferError::For(error))) => Err(error),
                _ => Err(Error::Unknown),
            },
            (Ended::Done, Brings::Nothing, _) => Ok(len as u64),
            (Ended::Done, Brings::Bytes, Some(id)) => {
                let room = into.len() as u64;
                let into = into.get_mut(..len).ok_or(Error::TooLarge { max: room });
                into.and_then(|p| node.shards.of(id).read(id, p)).map(|()| len as u64)
            }
            (Ended::Done, Brings::Value, Some(id)) => {
                let mut before = [0; 8];
                node.shards.of(id).read(id, &mut before).map(|()| u64::from_ne_bytes(before))
            }
            (_, _, None) => Err(Error::Unknown),
        };
        if let Some(id) = id {
            node.let_go(id);
        }
        result
    }

    /// Waits until everything posted so far has ended; the completions remain to be taken. Operations
    /// posted afterwards happen after those posted before, on any node.
    pub async fn fence(&self) {
        core::future::poll_fn(|cx| {
            let entries = self.entries.lock();
            for entry in &*entries {
                if let EntryState::Wire(id) = &entry.state
                    && self.by.node.shards.of(*id).ops.lock().wait(*id, cx)
                {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        for entry in self.entries.get_mut().drain(..) {
            if let EntryState::Wire(id) = entry.state {
                self.by.node.let_go(id);
            }
        }
        self.by.node.resources.wake_all();
    }
}
