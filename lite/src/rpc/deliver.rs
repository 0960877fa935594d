//! Arriving messages, and messages that waited for room on the queue pair. Runs in the poller.

use super::Rpc;
use super::call::{Call, Caller, RemoteReply, ReplyTo};
use super::service::KnownServices;
use crate::Error;
use crate::channel::outbox::Out;
use crate::channel::ring::Violation;
use crate::channel::slots::Channel;
use crate::channel::wire::{GRAIN, Imm, Piece, ReplyHeader, ReplyStatus, RequestHeader};
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::Conn;
use crate::transport::op::NotPosted;
use crate::transport::transfer::Data;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{IoAddr, Lent};

/// Returns the pieces that a record in the ring lists. Most records list none.
#[inline(always)]
fn pieces(ring: &dyn Lent, at: u64, count: u8) -> Result<Vec<Piece>, Violation> {
    if count == 0 { Ok(Vec::new()) } else { read_pieces(ring, at, count) }
}

#[cold]
fn read_pieces(ring: &dyn Lent, at: u64, count: u8) -> Result<Vec<Piece>, Violation> {
    let mut pieces = Vec::with_capacity(usize::from(count));
    for i in 0..u64::from(count) {
        let mut bytes = [0; Piece::LEN];
        ring.read(at + i * Piece::LEN as u64, &mut bytes).map_err(|_| Violation)?;
        pieces.push(Piece::parse(&bytes).ok_or(Violation)?);
    }
    Ok(pieces)
}

impl Caller {
    /// Handles a message of the peer; `services` are the functions that the shard's poller knows. Returns
    /// `Err` if the peer breaks the protocol; the connection must end then.
    pub(crate) fn deliver(self: &Arc<Self>, imm: u32, services: &mut KnownServices) -> Result<(), Violation> {
        let rpc = &*self.channel;
        match Imm::parse(imm).ok_or(Violation)? {
            Imm::Reply(slot) => {
                let at = Channel::slot_offset(&rpc.local, slot).ok_or(Violation)?;
                let mut header = [0; ReplyHeader::LEN];
                rpc.memory.1.read(at, &mut header).map_err(|_| Violation)?;
                rpc.replied(slot, ReplyHeader::parse(&header).ok_or(Violation)?)
            }
            Imm::Credit(grains) => {
                rpc.tx.lock().credit(grains)?;
                rpc.room.wake_all();
                Ok(())
            }
            Imm::Request(grains) => {
                let offset = grains.checked_mul(GRAIN).ok_or(Violation)?;
                let credit = self.take_record(offset, services)?;
                if let Some(credit) = credit
                    && !planted(Bug::LostCredit)
                {
                    self.node.send_out(&self.conn, rpc, Out::Credit(credit));
                }
                Ok(())
            }
        }
    }

    /// Copies a request from the ring, so that later writes of the peer do not change it, and passes it on.
    /// Returns the credit that is due then.
    #[inline(always)]
    fn take_record(
        self: &Arc<Self>,
        offset: u32,
        services: &mut KnownServices,
    ) -> Result<Option<u32>, Violation> {
        let (node, rpc) = (&*self.node, &*self.channel);
        let (ring, _) = &*rpc.memory;
        let mut header = [0; RequestHeader::LEN];
        let at = u64::from(offset);
        ring.read(at, &mut header).map_err(|_| Violation)?;
        let header = RequestHeader::parse(&header).ok_or(Violation)?;
        // Checks that the record is inside of the ring, at the expected position.
        let credit = rpc.rx.consume(offset, header.record_len().ok_or(Violation)?)?;
        let behind = at + RequestHeader::LEN as u64;
        let requested = pieces(&**ring, behind, header.request_pieces)?;
        let between = behind + (requested.len() * Piece::LEN) as u64;
        let to_reply = pieces(&**ring, between, header.reply_pieces)?;
        let sum = |pieces: &[Piece]| pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        if (!requested.is_empty() && sum(&requested) != Some(header.len))
            || (!to_reply.is_empty() && sum(&to_reply).is_none_or(|sum| sum < header.max_reply))
        {
            return Err(Violation);
        }
        let to = |charge| RemoteReply {
            caller: self.clone(),
            slot: u32::from(header.slot),
            call: header.call,
            max: header.max_reply,
            pieces: to_reply,
            charge,
        };
        let refuse = |to, status, len| {
            ReplyTo::There(to).answer(status, len);
            Ok(credit)
        };
        let service = services.get(&node.services, header.function).filter(|s| s.takes(header.one_way));
        let Some(service) = service else { return refuse(to(0), ReplyStatus::NoSuchFunction, 0) };
        if header.len > service.max_request() as u64 {
            return refuse(to(0), ReplyStatus::RequestTooLarge, service.max_request() as u64);
        }
        let here = if requested.is_empty() { header.len as usize } else { 0 };
        // LITE's internal calls are few, and overtake those of applications.
        let mut charge = 0;
        if header.function < super::internal::INTERNAL {
            match rpc.charge(here + header.pieces_len(), node.local.config.backlog as usize) {
                Some(bytes) => charge = bytes,
                None => return refuse(to(0), ReplyStatus::Busy, 0),
            }
        }
        let mut record = match service.reserve(here) {
            Ok(record) => record,
            Err(status) => return refuse(to(charge), status, here as u64),
        };
        if ring.read(behind + header.pieces_len() as u64, &mut record.request).is_err() {
            service.unreserve();
            rpc.discharge(charge);
            return Err(Violation);
        }
        let call = Call::there(record, to(charge), requested, header.one_way);
        service.enqueue(call);
        Ok(credit)
    }

    /// Sends a reply, now or when the queue pair has room.
    pub(crate) fn send_reply(&self, slot: u32, header: &ReplyHeader, data: &[u8]) -> Result<(), Error> {
        let Self { node, conn, channel } = self;
        if conn.is_shut() {
            return Err(Error::Unknown);
        }
        // The handler may have been stopped for longer than the lease, which does not end before something is
        // due.
        let now = node.local.platform.now();
        if node.local.standing.is_due(now) {
            node.local.look_at_lease(now);
        }
        // Replies need no order, but those that wait for room go first.
        if channel.outbox.is_empty() {
            match node.post_reply(conn, channel, slot, header, data) {
                Ok(()) => return Ok(()),
                Err(NotPosted::Busy) => {}
                Err(_) => return Err(Error::Unknown),
            }
        }
        node.send_out(conn, channel, Out::Reply(slot, *header, data.to_vec()));
        Ok(())
    }

    /// Moves data between this node and memory that the peer lends for a call, before the reply.
    pub(crate) async fn transfer(&self, remote: IoAddr, data: Data<'_>) -> Result<(), Error> {
        self.node.transfer_lent((&self.conn, self.channel.shard), remote, data).await
    }
}

impl Rpc {
    #[inline(always)]
    fn post_reply(
        &self,
        conn: &Arc<Conn>,
        rpc: &Channel,
        slot: u32,
        header: &ReplyHeader,
        data: &[u8],
    ) -> Result<(), NotPosted> {
        let addr = Channel::slot_addr(&rpc.remote, slot).ok_or(NotPosted::Invalid)?;
        self.transport.post_message((conn, rpc.shard), (header.emit(), data), addr, Imm::Reply(slot).emit())
    }

    /// Sends a message after those that wait already.
    fn send_out(&self, conn: &Arc<Conn>, rpc: &Channel, out: Out) {
        let mut outbox = rpc.outbox.lock();
        let was_empty = outbox.is_empty();
        outbox.push_back(out);
        if was_empty && !self.flush(conn, rpc, &mut outbox) {
            sometimes!("a reply or a credit waited for room");
            drop(outbox);
            self.local.defer(&self.stalled, (conn.clone(), rpc.shard));
        }
    }

    /// Sends messages that have waited. Returns true if some were sent.
    pub(crate) fn flush_stalled(&self) -> bool {
        let stalled = self.stalled.take();
        let mut any = false;
        for (conn, shard) in stalled {
            let Some(rpc) = conn.channel(shard) else { continue };
            let mut outbox = rpc.outbox.lock();
            let before = outbox.len();
            let all = self.flush(&conn, rpc, &mut outbox);
            any |= outbox.len() != before;
            drop(outbox);
            if !all {
                self.local.defer(&self.stalled, (conn, shard));
            }
        }
        any
    }

    /// Posts from the front while there is room; returns true if nothing is left.
    fn flush(&self, conn: &Arc<Conn>, rpc: &Channel, outbox: &mut VecDeque<Out>) -> bool {
        while let Some(out) = outbox.front() {
            let posted = match out {
                Out::Reply(slot, header, data) => self.post_reply(conn, rpc, *slot, header, data),
                Out::Credit(grains) => self.transport.post_message(
                    (conn, rpc.shard),
                    ([], &[]),
                    rpc.remote.ring,
                    Imm::Credit(*grains).emit(),
                ),
            };
            match posted {
                Err(NotPosted::Busy) => return false,
                Err(NotPosted::ConnectionLost) => {
                    outbox.clear();
                    return true;
                }
                Ok(()) | Err(_) => drop(outbox.pop_front()),
            }
        }
        true
    }
}
