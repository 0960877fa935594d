//! Arriving messages, and messages that waited for room on the queue pair. Runs in the poller.

use super::calls::{ConnRpc, Out, record_len};
use super::ring::Violation;
use super::server::{Call, RemoteReply, ReplyTo, Service};
use super::wire::{GRAIN, Imm, ReplyHeader, ReplyStatus, RequestHeader};
use crate::conn::{Conn, RPC_LANE};
use crate::node::Node;
use crate::op::{Data, NotPosted, Route, Verb};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use platform::IoAddr;
use verbs::RemoteAddr;

impl Node {
    /// A message has arrived on `conn`. `Err`: the peer breaks the rules, and the connection must end.
    pub(crate) fn deliver(self: &Arc<Self>, conn: &Arc<Conn>, imm: u32) -> Result<(), Violation> {
        let rpc = conn.rpc.as_ref().ok_or(Violation)?;
        match Imm::parse(imm).ok_or(Violation)? {
            Imm::Reply(slot) => {
                let addr = ConnRpc::slot_addr(&rpc.local, slot).ok_or(Violation)?;
                let mut header = [0; ReplyHeader::LEN];
                self.platform.memory().read(addr, &mut header).map_err(|_| Violation)?;
                rpc.replied(slot, ReplyHeader::parse(&header).ok_or(Violation)?)
            }
            Imm::Credit(grains) => {
                rpc.tx.lock().credit(grains)?;
                rpc.room.wake_all();
                Ok(())
            }
            Imm::Request(grains) => {
                let offset = grains.checked_mul(GRAIN).ok_or(Violation)?;
                let (header, payload) = self.take_record(rpc, offset)?;
                let credit = rpc.rx.lock().credit_due();
                if let Some(credit) = credit {
                    self.send_out(conn, Out::Credit(credit));
                }
                self.dispatch(conn, header, payload);
                Ok(())
            }
        }
    }

    /// Copies a record out of the ring, so that nothing the peer writes later changes it.
    fn take_record(&self, rpc: &ConnRpc, offset: u32) -> Result<(RequestHeader, Vec<u8>), Violation> {
        let memory = self.platform.memory();
        let mut header = [0; RequestHeader::LEN];
        let end = offset.checked_add(RequestHeader::LEN as u32).ok_or(Violation)?;
        let at = rpc.local.ring.checked_add(u64::from(offset)).filter(|_| end <= rpc.local.ring_len);
        let at = at.ok_or(Violation)?;
        memory.read(at, &mut header).map_err(|_| Violation)?;
        let header = RequestHeader::parse(&header).ok_or(Violation)?;
        let len = record_len(&header).ok_or(Violation)?;
        // Checks that the record lies in the ring, and where it must.
        rpc.rx.lock().consume(offset, len)?;
        let mut payload = alloc::vec![0; len as usize - RequestHeader::LEN];
        let behind = at.checked_add(RequestHeader::LEN as u64).ok_or(Violation)?;
        memory.read(behind, &mut payload).map_err(|_| Violation)?;
        Ok((header, payload))
    }

    fn dispatch(self: &Arc<Self>, conn: &Arc<Conn>, header: RequestHeader, payload: Vec<u8>) {
        let to = RemoteReply {
            node: self.clone(),
            conn: conn.clone(),
            slot: u32::from(header.slot),
            call: header.call,
            max: header.max_reply,
            buffer: header.reply_buffer,
        };
        let to = ReplyTo::There(to);
        let Some(service) = self.services.get(header.function) else {
            return to.answer(ReplyStatus::NoSuchFunction, 0);
        };
        if header.len > service.max_request() as u64 {
            return to.answer(ReplyStatus::RequestTooLarge, service.max_request() as u64);
        }
        if !service.reserve() {
            return to.answer(ReplyStatus::Busy, 0);
        }
        let call = Call::new(conn.peer, conn.incarnation, payload, to);
        match header.buffer {
            None => service.enqueue(call),
            Some(from) => {
                let fetch = self.clone().fetch(service, call, conn.clone(), from, header.len as usize);
                self.platform.spawn("lite-fetch", Box::pin(fetch));
            }
        }
    }

    /// Reads a long request out of the caller's memory, then hands it on.
    async fn fetch(
        self: Arc<Self>,
        service: Arc<Service>,
        mut call: Call,
        conn: Arc<Conn>,
        from: IoAddr,
        len: usize,
    ) {
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            service.unreserve();
            return call.answer(ReplyStatus::NoMemory, len as u64);
        }
        bytes.resize(len, 0);
        let issued = AtomicBool::new(false);
        match self.transfer(Route::Conn(&conn), from, Data::Read(&mut bytes), None, &issued).await {
            Ok(()) => {
                call.set_request(bytes);
                service.enqueue(call);
            }
            // The connection is gone, and with it the caller's wait.
            Err(_) => service.unreserve(),
        }
    }

    /// Sends a reply or credit, now or when the queue pair has room.
    pub(crate) fn send_out(&self, conn: &Arc<Conn>, out: Out) {
        let Some(rpc) = &conn.rpc else { return };
        let mut outbox = rpc.outbox.lock();
        let was_empty = outbox.is_empty();
        outbox.push_back(out);
        if was_empty && !self.flush(conn, rpc, &mut outbox) {
            drop(outbox);
            self.stalled.lock().push(conn.clone());
        }
    }

    /// Sends what has waited. Gives whether something went.
    pub(crate) fn flush_stalled(&self) -> bool {
        let stalled = core::mem::take(&mut *self.stalled.lock());
        let mut any = false;
        for conn in stalled {
            let Some(rpc) = &conn.rpc else { continue };
            let mut outbox = rpc.outbox.lock();
            let before = outbox.len();
            let all = self.flush(&conn, rpc, &mut outbox);
            any |= outbox.len() != before;
            drop(outbox);
            if !all {
                self.stalled.lock().push(conn);
            }
        }
        any
    }

    /// Posts from the front while there is room; gives whether nothing is left.
    fn flush(&self, conn: &Arc<Conn>, rpc: &ConnRpc, outbox: &mut alloc::collections::VecDeque<Out>) -> bool {
        let key = conn.remote_key.rkey;
        while let Some(out) = outbox.front() {
            let posted = match out {
                Out::Reply(slot, header, data) => match ConnRpc::slot_addr(&rpc.remote, *slot) {
                    Some(addr) => {
                        let imm = Some(Imm::Reply(*slot).emit());
                        let verb = Verb::Write { head: &header.emit(), tail: data, imm };
                        self.try_post(conn, RPC_LANE, verb, RemoteAddr { addr, key }, None, true)
                    }
                    None => Err(NotPosted::Invalid),
                },
                Out::Credit(grains) => {
                    let imm = Some(Imm::Credit(*grains).emit());
                    let verb = Verb::Write { head: &[], tail: &[], imm };
                    self.try_post(conn, RPC_LANE, verb, RemoteAddr { addr: rpc.remote.ring, key }, None, true)
                }
            };
            match posted {
                Err(NotPosted::Busy) => return false,
                Err(NotPosted::ConnectionLost) => {
                    outbox.clear();
                    return true;
                }
                Ok(_) | Err(_) => drop(outbox.pop_front()),
            }
        }
        true
    }
}
