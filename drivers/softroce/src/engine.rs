//! The state behind the lock: queue pairs, completion queues, the order of senders, and timers.

use crate::common::Common;
use crate::config::{Config, SplitMix};
use crate::cq::Cq;
use crate::queue_pair::QueuePair;
use crate::slots::{Slot, Slots};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use platform::{Instant, Memory};
use roce::transport::{DatagramQp, Limits, MAX_RD_ATOMIC, ReliableQp, Route};
use roce::wire::{Headers, ReceivedSeeds, rc_source_port, ud_source_port};
use verbs::{
    Completion, CqId, CqOptions, MacAddr, PathMtu, Psn, QpConnect, QpNum, QpOptions, RecvWr, RemoteKey,
    SendWr, UdOptions, UdQp, UdSendWr, VerbsError,
};

/// The maximum depth of a work queue and of a completion queue.
pub(crate) const MAX_DEPTH: u32 = 1 << 16;
/// The highest service level, which stands for the highest priority of a VLAN tag.
const MAX_LEVEL: u8 = 7;
/// The maximum number of completion queues.
const MAX_CQS: usize = 1 << 10;

/// The engine and its port. They are separate fields, so that the engine can handle frames that the port
/// lends.
pub(crate) struct Engine<P> {
    pub(crate) port: P,
    pub(crate) core: Core,
}

/// Everything except the port.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) mac: MacAddr,
    pub(crate) slots: Slots,
    /// The state that queue pairs share. A call of a queue pair needs it beside the slot.
    pub(crate) common: Common,
    /// The number of calls of `progress`: acknowledgements wait for the next.
    pub(crate) round: u32,
    /// The IPv4 identification of the next frame.
    pub(crate) ip_id: u16,
    /// The seeds of the ICRCs of received frames.
    pub(crate) seeds: ReceivedSeeds,
    /// The time before which a full transmit ring is not tried again.
    pub(crate) ring_full_until: Option<Instant>,
    /// The payload of a packet within the RNIC.
    pub(crate) scratch: Box<[u8]>,
}

impl Core {
    pub(crate) fn new(config: Config, mac: MacAddr, memory: Arc<dyn Memory>) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = config.random;
        let seed =
            u64::from_le_bytes([e, f, g, h, i, j, k, l]) ^ u64::from(u32::from_le_bytes([m, n, o, p])) << 16;
        Self {
            mac,
            slots: Slots::new(config.max_qps, SplitMix::new(seed)),
            common: Common::new(RemoteKey(u32::from_le_bytes([a, b, c, d])), memory),
            round: 0,
            ip_id: 0,
            seeds: ReceivedSeeds::default(),
            ring_full_until: None,
            scratch: vec![0; PathMtu::B4096.bytes()].into(),
            config,
        }
    }

    pub(crate) fn create_cq(&mut self, options: CqOptions) -> Result<CqId, VerbsError> {
        if options.depth == 0 || options.depth > MAX_DEPTH {
            return Err(VerbsError::InvalidArgument);
        }
        let free = self.common.cqs.iter().position(Option::is_none);
        let id = match free {
            Some(id) => id,
            None if self.common.cqs.len() < MAX_CQS => {
                self.common.cqs.push(None);
                self.common.cqs.len() - 1
            }
            None => return Err(VerbsError::NoResources),
        };
        if let Some(entry) = self.common.cqs.get_mut(id) {
            let cq = Cq::new(CqId(id as u16), options.depth, self.common.arrived.clone());
            *entry = Some(cq.ok_or(VerbsError::NoResources)?);
        }
        Ok(CqId(id as u16))
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if self.slots.iter().any(|slot| [slot.send_cq, slot.recv_cq].contains(&cq)) {
            return Err(VerbsError::InvalidState);
        }
        let entry = self.common.cqs.get_mut(usize::from(cq.0)).filter(|cq| cq.is_some());
        *entry.ok_or(VerbsError::NotFound)? = None;
        Ok(())
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
        if [send_cq, recv_cq].iter().any(|cq| self.common.cq(*cq).is_none()) {
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
        self.slots.put(index, Slot { qp, send_cq, recv_cq, level: 0, queued: false, deadline: Instant::MAX });
        self.common.ready.reserve(self.slots.len() - self.common.ready.len());
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
        let level = connect.address.service_level;
        if level > MAX_LEVEL {
            return Err(VerbsError::InvalidArgument);
        }
        let slot = self.slots.find(qp).ok_or(VerbsError::NotFound)?;
        match &mut slot.qp {
            QueuePair::Reliable(qp) => qp.connect(connect, path)?,
            QueuePair::Datagram(_) => return Err(VerbsError::InvalidArgument),
        }
        slot.level = level;
        Ok(())
    }

    /// Returns the numbers of queue pairs and completion queues.
    pub(crate) fn objects(&self) -> (usize, usize) {
        (self.slots.iter().count(), self.common.cqs.iter().flatten().count())
    }

    pub(crate) fn destroy_qp(&mut self, qp: QpNum) -> Result<(), VerbsError> {
        let slot = self.slots.find(qp).ok_or(VerbsError::NotFound)?;
        self.common.call(slot, Instant::ZERO, QueuePair::end);
        let index = Slots::index(qp);
        self.common.ready.retain(|&ready| ready != index);
        self.slots.remove(index);
        Ok(())
    }

    pub(crate) fn post_send(&mut self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        for (n, wr) in work.iter().enumerate() {
            let slot = self.slots.find(qp).ok_or((n, VerbsError::NotFound))?;
            let posted = self.common.post(slot, slot.send_cq, |qp, env| match qp {
                QueuePair::Reliable(qp) => qp.post_send(wr, env),
                QueuePair::Datagram(_) => Err(VerbsError::InvalidArgument),
            });
            posted.map_err(|e| (n, e))?;
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
            let slot = self.slots.find(number).ok_or((n, VerbsError::NotFound))?;
            let headers = Headers::towards(self.mac, self.config.gid, &wr.to, ud_source_port(number));
            let headers = headers.ok_or((n, VerbsError::InvalidArgument))?;
            let route = Route { headers, within: wr.to.peer.gid == self.config.gid };
            let posted = self.common.post(slot, slot.send_cq, |qp, env| match qp {
                QueuePair::Datagram(qp) => qp.post_send(wr, route, env),
                QueuePair::Reliable(_) => Err(VerbsError::InvalidArgument),
            });
            posted.map_err(|e| (n, e))?;
        }
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        for (n, wr) in work.iter().enumerate() {
            let slot = self.slots.find(qp).ok_or((n, VerbsError::NotFound))?;
            let posted = self.common.post(slot, slot.recv_cq, |qp, env| qp.post_recv(wr, env));
            posted.map_err(|e| (n, e))?;
        }
        Ok(())
    }

    pub(crate) fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.common.cq(cq).map_or(0, |cq| cq.poll(out))
    }

    /// Returns true if completions wait, or packets can be sent.
    pub(crate) fn has_work(&self) -> bool {
        !self.common.ready.is_empty() || self.common.cqs.iter().flatten().any(|cq| !cq.is_empty())
    }

    /// Returns the time at which `progress` must be called.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        if !self.common.ready.is_empty() {
            return Some(self.ring_full_until.unwrap_or(Instant::ZERO));
        }
        let earliest = self.earliest_deadline();
        (earliest != Instant::MAX).then_some(earliest)
    }

    fn earliest_deadline(&mut self) -> Instant {
        if self.common.deadline_moved {
            self.common.earliest = self.slots.iter().map(|slot| slot.deadline).min().unwrap_or(Instant::MAX);
            self.common.deadline_moved = false;
        }
        self.common.earliest
    }

    /// Begins a call of `progress`.
    pub(crate) const fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Handles expired timers, and returns true if there were any. Must be called after received frames are
    /// handled: a node that was not scheduled for a while then finds the acknowledgements that arrived
    /// meanwhile before it reacts to their absence.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if now < self.common.earliest || now < self.earliest_deadline() {
            return false;
        }
        for index in 0..self.slots.len() {
            if let Some(slot) = self.slots.at(index).filter(|slot| slot.deadline <= now) {
                self.common.call(slot, now, QueuePair::on_timer);
            }
        }
        true
    }
}
