//! An RNIC in software: the [`roce`] transport over any Ethernet port, behind the [`verbs::Rnic`] trait.
//!
//! The transport reads payloads from memory straight into the frames that the port lends, and writes received
//! payloads straight from the port's ring to memory. The data path does not allocate.
//!
//! # Neighbours
//! [`roce`] below is the transport, `lite` above the user; `mlx4` and `ibverbs` are the other RNICs.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod common;
mod config;
mod cq;
mod engine;
mod port;
mod queue_pair;
mod receive;
mod slots;
mod transmit;

use alloc::sync::Arc;
use cq::Arrived;
use engine::{Core, Engine, MAX_DEPTH};
use lock_api::{Mutex, RawMutex};
use platform::{Instant, Memory};
use roce::transport::MAX_RD_ATOMIC;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, Gid, LinkKind, MemoryKey, PathMtu, PortAddress,
    PortState, QpConnect, QpNum, QpOptions, RecvWr, Rnic, SendWr, UdOptions, UdQp, UdSendWr, VerbsError,
};

pub use config::Config;
pub use port::EthernetPort;

/// A software RNIC over the port `P`. `R` is the lock: in the kernel, one that masks interrupts.
pub struct SoftRoce<P, R> {
    engine: Mutex<R, Engine<P>>,
    /// The numbers of completions that wait.
    arrived: Arrived,
}

impl<P: EthernetPort, R: RawMutex> SoftRoce<P, R> {
    /// Makes an RNIC over `port` that serves all of `memory` under one key.
    #[must_use]
    pub fn new(port: P, memory: Arc<dyn Memory>, config: Config) -> Self {
        let core = Core::new(config, port.mac(), memory);
        Self { arrived: core.common.arrived.clone(), engine: Mutex::new(Engine { port, core }) }
    }

    /// Sets the port's GID, once the manager has assigned one. Must be called before queue pairs are
    /// connected.
    pub fn set_gid(&self, gid: Gid) {
        self.engine.lock().core.config.gid = gid;
    }
}

impl<P: EthernetPort, R: RawMutex + Send + Sync> Rnic for SoftRoce<P, R> {
    fn attributes(&self) -> Attributes {
        let engine = self.engine.lock();
        let config = &engine.core.config;
        Attributes {
            driver: "softroce",
            links: &[LinkKind::RoceV2, LinkKind::RoceV1],
            port: PortAddress { mac: engine.port.mac(), gid: config.gid, lid: 0 },
            port_state: PortState::Active,
            max_mtu: PathMtu::fitting(engine.port.mtu()).unwrap_or(PathMtu::B256),
            max_qps: config.max_qps.min(slots::MAX_SLOTS),
            max_depth: MAX_DEPTH,
            max_sge: config.max_sge,
            max_inline: config.max_inline,
            max_rd_atomic: MAX_RD_ATOMIC,
        }
    }

    fn memory_key(&self) -> MemoryKey {
        let engine = self.engine.lock();
        let (base, len) = engine.core.common.memory().range();
        MemoryKey { rkey: engine.core.common.key, base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.engine.lock().core.create_cq(options)
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.engine.lock().core.destroy_cq(cq)
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        self.engine.lock().core.create_qp(options)
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        let mut engine = self.engine.lock();
        let mtu = engine.port.mtu();
        engine.core.connect_qp(qp, connect, mtu)
    }

    fn create_ud_qp(&self, options: UdOptions) -> Result<UdQp, VerbsError> {
        let mut engine = self.engine.lock();
        let mtu = engine.port.mtu();
        engine.core.create_ud_qp(options, mtu)
    }

    fn post_send_ud(&self, qp: UdQp, work: &[UdSendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.engine.lock().core.post_send_ud(qp, work)
    }

    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError> {
        self.engine.lock().core.destroy_qp(qp)
    }

    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.engine.lock().core.post_send(qp, work)
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.engine.lock().core.post_recv(qp, work)
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        if self.arrived.is_empty(cq) {
            return 0;
        }
        self.engine.lock().core.poll_cq(cq, out)
    }

    fn progress(&self, now: Instant, budget: usize) -> bool {
        let mut engine = self.engine.lock();
        let Engine { port, core } = &mut *engine;
        core.begin();
        let received = port.receive(budget, &mut |frame| core.on_frame(frame, now));
        let timers = core.expire(now);
        let sent = core.transmit(port, now, budget);
        timers || received > 0 || sent > 0
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.engine.lock().core.next_deadline()
    }

    fn arm(&self) -> bool {
        let mut engine = self.engine.lock();
        let frames = engine.port.arm();
        frames || engine.core.has_work()
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        // A copy, because `each` may be slow, or call back.
        let engine = self.engine.lock();
        let counters = engine.core.common.counters;
        let (queue_pairs, completion_queues) = engine.core.objects();
        drop(engine);
        counters.for_each(each);
        each(("queue_pairs", queue_pairs as u64));
        each(("completion_queues", completion_queues as u64));
    }
}
