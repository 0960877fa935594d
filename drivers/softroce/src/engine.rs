//! The state behind the lock: queue pairs, completion queues, the order of senders, and timers.

use crate::config::{Config, SplitMix};
use crate::cq::{Cq, QpCompletionQueues};
use crate::port::EthernetPort;
use crate::queue_pair::QueuePair;
use crate::slots::{Slot, Slots};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use platform::{Instant, Memory};
use roce::transport::{Counters, DatagramQp, Env, Limits, MAX_RD_ATOMIC, OneKey, ReliableQp, Route, Tx};
use roce::wire::{Headers, rc_source_port, ud_source_port};
use verbs::{
    Completion, CqId, CqOptions, MacAddr, PathMtu, Psn, QpConnect, QpNum, QpOptions, RecvWr, RemoteKey,
    SendWr, UdOptions, UdQp, UdSendWr, VerbsError,
};

/// The maximum depth of a work queue and of a completion queue.
pub(crate) const MAX_DEPTH: u32 = 1 << 16;
/// The maximum number of completion queues.
const MAX_CQS: usize = 1 << 10;
/// The number of packets that a queue pair sends before the next one may send.
const BURST: usize = 16;
/// The time for which a full transmit ring is left alone.
const RING_FULL_WAIT: Duration = Duration::from_micros(20);

/// The engine and its port. They are separate fields, so that the engine can handle frames that the port
/// lends.
pub(crate) struct Engine<P> {
    pub(crate) port: P,
    pub(crate) core: Core,
}

/// Everything except the port.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) key: RemoteKey,
    pub(crate) counters: Counters,
    pub(crate) mac: MacAddr,
    memory: Arc<dyn Memory>,
    pub(crate) slots: Slots,
    /// Completion queues by number; `None` for a destroyed one.
    cqs: Vec<Option<Cq>>,
    /// The slots of queue pairs that have packets to send, each at most once.
    ready: VecDeque<usize>,
    /// The number of calls of `progress`: acknowledgements wait for the next.
    pub(crate) round: u32,
    /// The IPv4 identification of the next frame.
    ip_id: u16,
    /// A lower bound of all deadlines of queue pairs, which is exact unless `deadline_moved`.
    earliest: Instant,
    deadline_moved: bool,
    /// The time before which a full transmit ring is not tried again.
    ring_full_until: Option<Instant>,
    /// The payload of a packet within the RNIC.
    scratch: Box<[u8]>,
}

impl Core {
    pub(crate) fn new(config: Config, mac: MacAddr, memory: Arc<dyn Memory>) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = config.random;
        let seed =
            u64::from_le_bytes([e, f, g, h, i, j, k, l]) ^ u64::from(u32::from_le_bytes([m, n, o, p])) << 16;
        Self {
            key: RemoteKey(u32::from_le_bytes([a, b, c, d])),
            counters: Counters::default(),
            mac,
            memory,
            slots: Slots::new(config.max_qps, SplitMix::new(seed)),
            cqs: Vec::new(),
            ready: VecDeque::new(),
            round: 0,
            ip_id: 0,
            earliest: Instant::MAX,
            deadline_moved: false,
            ring_full_until: None,
            scratch: vec![0; PathMtu::B4096.bytes()].into(),
            config,
        }
    }

    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    pub(crate) fn create_cq(&mut self, options: CqOptions) -> Result<CqId, VerbsError> {
        if options.depth == 0 || options.depth > MAX_DEPTH {
            return Err(VerbsError::InvalidArgument);
        }
        let free = self.cqs.iter().position(Option::is_none);
        let id = match free {
            Some(id) => id,
            None if self.cqs.len() < MAX_CQS => {
                self.cqs.push(None);
                self.cqs.len() - 1
            }
            None => return Err(VerbsError::NoResources),
        };
        if let Some(entry) = self.cqs.get_mut(id) {
            *entry = Some(Cq::new(options.depth));
        }
        Ok(CqId(id as u16))
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if self.slots.iter().any(|slot| [slot.send_cq, slot.recv_cq].contains(&cq)) {
            return Err(VerbsError::InvalidState);
        }
        let entry = self.cqs.get_mut(usize::from(cq.0)).filter(|cq| cq.is_some());
        *entry.ok_or(VerbsError::NotFound)? = None;
        Ok(())
    }

    fn cq(&mut self, cq: CqId) -> Option<&mut Cq> {
        self.cqs.get_mut(usize::from(cq.0))?.as_mut()
    }

    pub(crate) fn create_qp(&mut self, options: QpOptions) -> Result<QpNum, VerbsError> {
        let QpOptions { send_cq, recv_cq, send_depth, recv_depth } = options;
        self.create([send_cq, recv_cq], [send_depth, recv_depth], |number, _, limits| {
            QueuePair::Reliable(ReliableQp::new(number, limits))
        })
    }

    pub(crate) fn create_ud_qp(&mut self, options: UdOptions, port_mtu: usize) -> Result<UdQp, VerbsError> {
        let UdOptions { send_cq, recv_cq, send_depth, recv_depth, qkey } = options;
        let mtu = PathMtu::fitting(port_mtu).ok_or(VerbsError::Unsupported)?;
        let number = self.create([send_cq, recv_cq], [send_depth, recv_depth], |number, first, limits| {
            QueuePair::Datagram(DatagramQp::new(number, qkey, first, mtu, limits))
        })?;
        Ok(UdQp::new(number))
    }

    /// Makes a queue pair by `make`, which receives its number and an unpredictable PSN.
    fn create(
        &mut self,
        [send_cq, recv_cq]: [CqId; 2],
        [send_depth, recv_depth]: [u32; 2],
        make: impl FnOnce(QpNum, Psn, &Limits) -> QueuePair,
    ) -> Result<QpNum, VerbsError> {
        if [send_cq, recv_cq].iter().any(|cq| self.cq(*cq).is_none()) {
            return Err(VerbsError::NotFound);
        }
        if [send_depth, recv_depth].iter().any(|&depth| depth == 0 || depth > MAX_DEPTH) {
            return Err(VerbsError::InvalidArgument);
        }
        let (index, number) = self.slots.reserve().ok_or(VerbsError::NoResources)?;
        let Config { max_sge, max_inline, max_window, .. } = self.config;
        let max_rd_atomic = MAX_RD_ATOMIC;
        let limits = Limits { send_depth, recv_depth, max_sge, max_inline, max_rd_atomic, max_window };
        let qp = make(number, self.slots.psn(), &limits);
        self.slots.put(index, Slot { qp, send_cq, recv_cq, queued: false, deadline: Instant::MAX });
        self.ready.reserve(self.slots.len() - self.ready.len());
        Ok(number)
    }

    pub(crate) fn connect_qp(
        &mut self,
        qp: QpNum,
        connect: &QpConnect,
        port_mtu: usize,
    ) -> Result<(), VerbsError> {
        let path = if connect.address.peer.gid == self.config.gid {
            None
        } else {
            if PathMtu::fitting(port_mtu).is_none_or(|largest| connect.mtu > largest) {
                return Err(VerbsError::InvalidArgument);
            }
            let port = rc_source_port(qp, connect.remote_qp);
            let path = Headers::towards(self.mac, self.config.gid, &connect.address, port);
            Some(path.ok_or(VerbsError::InvalidArgument)?)
        };
        match &mut self.slots.find(qp).ok_or(VerbsError::NotFound)?.qp {
            QueuePair::Reliable(qp) => qp.connect(connect, path),
            QueuePair::Datagram(_) => Err(VerbsError::InvalidArgument),
        }
    }

    /// Returns the numbers of queue pairs and completion queues.
    pub(crate) fn objects(&self) -> (usize, usize) {
        (self.slots.iter().count(), self.cqs.iter().flatten().count())
    }

    pub(crate) fn destroy_qp(&mut self, qp: QpNum) -> Result<(), VerbsError> {
        self.with_qp(qp, Instant::ZERO, QueuePair::end).ok_or(VerbsError::NotFound)?;
        let index = Slots::index(qp);
        self.ready.retain(|&ready| ready != index);
        self.slots.remove(index);
        Ok(())
    }

    pub(crate) fn post_send(&mut self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        for (n, wr) in work.iter().enumerate() {
            let cq = self.slots.find(qp).ok_or((n, VerbsError::NotFound))?.send_cq;
            self.reserve(cq).map_err(|e| (n, e))?;
            let posted = self.with_qp(qp, Instant::ZERO, |qp, env| match qp {
                QueuePair::Reliable(qp) => qp.post_send(wr, env),
                QueuePair::Datagram(_) => Err(VerbsError::InvalidArgument),
            });
            if let Some(Err(e)) = posted {
                self.release(cq);
                return Err((n, e));
            }
        }
        Ok(())
    }

    pub(crate) fn post_send_ud(
        &mut self,
        qp: UdQp,
        work: &[UdSendWr<'_>],
    ) -> Result<(), (usize, VerbsError)> {
        let number = qp.number();
        for (n, wr) in work.iter().enumerate() {
            let cq = self.slots.find(number).ok_or((n, VerbsError::NotFound))?.send_cq;
            let headers = Headers::towards(self.mac, self.config.gid, &wr.to, ud_source_port(number));
            let headers = headers.ok_or((n, VerbsError::InvalidArgument))?;
            let route = Route { headers, within: wr.to.peer.gid == self.config.gid };
            self.reserve(cq).map_err(|e| (n, e))?;
            let posted = self.with_qp(number, Instant::ZERO, |qp, env| match qp {
                QueuePair::Datagram(qp) => qp.post_send(wr, route, env),
                QueuePair::Reliable(_) => Err(VerbsError::InvalidArgument),
            });
            if let Some(Err(e)) = posted {
                self.release(cq);
                return Err((n, e));
            }
        }
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        for (n, wr) in work.iter().enumerate() {
            let cq = self.slots.find(qp).ok_or((n, VerbsError::NotFound))?.recv_cq;
            self.reserve(cq).map_err(|e| (n, e))?;
            let posted = self.with_qp(qp, Instant::ZERO, |qp, env| qp.post_recv(wr, env));
            if let Some(Err(e)) = posted {
                self.release(cq);
                return Err((n, e));
            }
        }
        Ok(())
    }

    fn reserve(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let cq = self.cq(cq).ok_or(VerbsError::NotFound)?;
        if cq.reserve() { Ok(()) } else { Err(VerbsError::NoResources) }
    }

    fn release(&mut self, cq: CqId) {
        if let Some(cq) = self.cq(cq) {
            cq.release();
        }
    }

    pub(crate) fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.cq(cq).map_or(0, |cq| cq.poll(out))
    }

    /// Returns true if completions wait, or packets can be sent.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || self.cqs.iter().flatten().any(|cq| !cq.is_empty())
    }

    /// Calls `f` with a queue pair, and then updates the list of senders and the deadlines.
    pub(crate) fn with_qp<T>(
        &mut self,
        number: QpNum,
        now: Instant,
        f: impl FnOnce(&mut QueuePair, &mut Env<'_>) -> T,
    ) -> Option<T> {
        let slot = self.slots.find(number)?;
        let mut completions =
            QpCompletionQueues { cqs: &mut self.cqs, send: slot.send_cq, recv: slot.recv_cq };
        let mut env = Env {
            now,
            memory: &*self.memory,
            remote: &OneKey { key: self.key, memory: &*self.memory },
            counters: &mut self.counters,
            completions: &mut completions,
        };
        let result = f(&mut slot.qp, &mut env);
        if !slot.queued && slot.qp.has_work() {
            slot.queued = true;
            self.ready.push_back(Slots::index(number));
        }
        let deadline = slot.qp.deadline().unwrap_or(Instant::MAX);
        if deadline < self.earliest {
            self.earliest = deadline;
            self.deadline_moved = false;
        } else if slot.deadline == self.earliest && deadline != slot.deadline {
            self.deadline_moved = true;
        }
        slot.deadline = deadline;
        Some(result)
    }

    /// Returns the time at which `progress` must be called.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(self.ring_full_until.unwrap_or(Instant::ZERO));
        }
        let earliest = self.earliest_deadline();
        (earliest != Instant::MAX).then_some(earliest)
    }

    fn earliest_deadline(&mut self) -> Instant {
        if self.deadline_moved {
            self.earliest = self.slots.iter().map(|slot| slot.deadline).min().unwrap_or(Instant::MAX);
            self.deadline_moved = false;
        }
        self.earliest
    }

    /// Begins a call of `progress`.
    pub(crate) const fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Handles expired timers, and returns true if there were any. Must be called after received frames are
    /// handled: a node that was not scheduled for a while then finds the acknowledgements that arrived
    /// meanwhile before it reacts to their absence.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if now < self.earliest || now < self.earliest_deadline() {
            return false;
        }
        for index in 0..self.slots.len() {
            let due = self.slots.at(index).filter(|slot| slot.deadline <= now).map(|slot| slot.qp.number());
            if let Some(number) = due {
                self.with_qp(number, now, QueuePair::on_timer);
            }
        }
        true
    }

    /// Sends at most about `budget` packets, and returns their number.
    pub(crate) fn transmit(&mut self, port: &mut impl EthernetPort, now: Instant, budget: usize) -> usize {
        self.ring_full_until = None;
        let (mut sent, mut on_wire) = (0, 0);
        // A queue pair whose acknowledgement is not due yet stays in the list, so each pass visits every
        // queue pair once.
        loop {
            let before = sent;
            for _ in 0..self.ready.len() {
                if sent >= budget || self.ring_full_until.is_some() {
                    break;
                }
                let Some(index) = self.ready.pop_front() else { break };
                self.send_burst(index, port, now, (budget - sent).min(BURST), &mut sent, &mut on_wire);
            }
            if sent == before || sent >= budget || self.ring_full_until.is_some() {
                break;
            }
        }
        if on_wire > 0 {
            port.flush();
        }
        sent
    }

    /// Sends up to `burst` packets of the queue pair in a slot that was removed from the list.
    fn send_burst(
        &mut self,
        index: usize,
        port: &mut impl EthernetPort,
        now: Instant,
        burst: usize,
        sent: &mut usize,
        on_wire: &mut usize,
    ) {
        // The queue pair counts as queued until the burst is over, so that it is checked for more work only
        // once.
        let Some(number) = self.slots.at(index).map(|slot| slot.qp.number()) else { return };
        for _ in 0..burst {
            let Some(slot) = self.slots.at(index) else { return };
            let Some(tx) = slot.qp.next_tx(self.round) else { break };
            if slot.qp.sends_within() {
                self.send_within(number, &tx, now);
            } else if self.send_out(number, &tx, port, now) {
                *on_wire += 1;
            } else {
                self.ring_full_until = Some(now + RING_FULL_WAIT);
                break;
            }
            *sent += 1;
        }
        if let Some(slot) = self.slots.at(index) {
            slot.queued = false;
        }
        // Queues it again if it has more to send.
        self.with_qp(number, now, |_, _| ());
    }

    /// Passes a packet to the port. Returns false if the transmit ring is full.
    fn send_out(&mut self, number: QpNum, tx: &Tx, port: &mut impl EthernetPort, now: Instant) -> bool {
        let id = self.ip_id;
        let memory = &*self.memory;
        let remote = OneKey { key: self.key, memory };
        let Some(slot) = self.slots.find(number) else { return true };
        let (mut len, mut good) = (slot.qp.frame_len(tx), true);
        let taken = port.transmit(len, &mut |out| {
            (len, good) = slot.qp.emit(tx, id, out, memory, &remote).unwrap_or((0, false));
            len
        });
        if !taken {
            return false;
        }
        self.ip_id = id.wrapping_add(1);
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        self.sent(number, tx, good, now);
        true
    }

    /// Passes a packet to a queue pair of the same RNIC. The acknowledgement of the packet is due at once.
    fn send_within(&mut self, number: QpNum, tx: &Tx, now: Instant) {
        let mut scratch = core::mem::take(&mut self.scratch);
        let memory = &*self.memory;
        let remote = OneKey { key: self.key, memory };
        let slot = self.slots.find(number);
        let origin = slot.as_ref().and_then(|slot| slot.qp.origin(tx));
        let packet = slot.and_then(|slot| slot.qp.loop_back(tx, &mut scratch, memory, &remote));
        self.counters.loopback_packets += 1;
        self.sent(number, tx, packet.is_some(), now);
        if let Some(packet) = packet {
            self.deliver_within(&packet, origin.as_ref(), now);
        }
        self.scratch = scratch;
    }

    /// Records that a packet was sent. With `good` false, its payload could not be read, and the queue pair
    /// fails.
    fn sent(&mut self, number: QpNum, tx: &Tx, good: bool, now: Instant) {
        self.with_qp(number, now, |qp, env| {
            qp.sent(tx, good, env);
        });
    }
}
