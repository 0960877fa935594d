//! The queue pairs of a test, and the operations on them.

use crate::Host;
use crate::buffer::{Buffers, Side, Slots};
use crate::error::{During, Error};
use crate::exchange::{Agreed, TURN};
use crate::message::Keys;
use crate::options::{Atomic, Options, Verb};
use alloc::format;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use platform::{Instant, IoAddr, yield_now};
use verbs::{
    AddressVector, Attributes, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, Payload, PortAddress,
    Psn, QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, SendOp, SendWr, Sge, Status, WrId,
};

/// The depth of a completion queue.
const CQ_DEPTH: u32 = 1 << 14;
/// The longest time in a test without any event.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for resolving the peer's address.
const RESOLVE: Duration = Duration::from_secs(5);
/// The RNR NAK timer, perftest's code 12.
const RNR_DELAY: Duration = Duration::from_micros(640);
const RETRIES: u8 = 7;
/// The unit of the acknowledgement timeout (specification 9.7.6.1.3).
const TIMEOUT_UNIT_NS: u64 = 4096;
/// Completions that are polled at a time.
pub(crate) const BATCH: usize = 16;
/// The most bytes that any RNIC accepts inline.
const INLINE_MAX: usize = 1024;

/// Returns the kind of packets for an RNIC's tests: its best, as Linux lists the newer RoCE version first
/// among the GIDs of an address.
pub(crate) fn link(attributes: &Attributes) -> LinkKind {
    attributes.links.first().copied().unwrap_or(LinkKind::RoceV2)
}

/// The completion queues of this node's tests, which run one at a time. They last as long as the RNIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    send: CqId,
    recv: CqId,
}

impl Queues {
    /// Creates the completion queues.
    pub(crate) fn new(host: &Host) -> Result<Self, Error> {
        let make = || host.rnic.create_cq(CqOptions { depth: CQ_DEPTH }).during("making completion queues");
        Ok(Self { send: make()?, recv: make()? })
    }
}

/// The queue pairs and buffers of a test. Dropping it destroys them.
pub(crate) struct Session<'a> {
    pub(crate) host: &'a Host,
    pub(crate) options: &'a Options,
    pub(crate) agreed: Agreed,
    pub(crate) client: bool,
    queues: Queues,
    queue_pairs: Vec<QpNum>,
    mine: Vec<Keys>,
    peers: Vec<Keys>,
    pub(crate) buffers: Buffers,
}

impl<'a> Session<'a> {
    /// Creates the queue pairs, not connected yet.
    pub(crate) fn new(
        host: &'a Host,
        queues: Queues,
        options: &'a Options,
        agreed: Agreed,
        client: bool,
    ) -> Result<Self, Error> {
        let attributes = host.rnic.attributes();
        let Options { queue_pairs, tx_depth, rx_depth, .. } = *options;
        let limit = CQ_DEPTH.min(attributes.max_depth);
        for (option, depth) in [('t', tx_depth), ('r', rx_depth)] {
            if u64::from(depth) * u64::from(queue_pairs) > u64::from(limit) {
                return Err(Error::Limit(format!(
                    "-q {queue_pairs} with -{option} {depth}: this RNIC holds {limit} work requests in all"
                )));
            }
        }
        if options.inline > attributes.max_inline.min(INLINE_MAX as u32) {
            return Err(Error::Limit(format!(
                "-I {}: this RNIC takes at most {} bytes inline",
                options.inline, attributes.max_inline
            )));
        }
        let buffers = Buffers::new(&host.platform, options, &agreed)?;
        let mut session = Self {
            host,
            options,
            agreed,
            client,
            queues,
            queue_pairs: Vec::new(),
            mine: Vec::new(),
            peers: Vec::new(),
            buffers,
        };
        session.drain();
        let outstanding = match options.program.verb {
            Verb::Read | Verb::Atomic => {
                options.outstanding.unwrap_or(attributes.max_rd_atomic).min(attributes.max_rd_atomic)
            }
            Verb::Write | Verb::Send => 1,
        };
        let key = host.rnic.memory_key().rkey;
        // Like Linux, it names no GID on InfiniBand unless told to: peers find each other by LID.
        let gid = (link(&attributes) != LinkKind::InfiniBand).then_some(attributes.port.gid);
        for index in 0..queue_pairs {
            let make = QpOptions {
                send_cq: queues.send,
                recv_cq: queues.recv,
                send_depth: tx_depth,
                recv_depth: rx_depth,
            };
            let qp = host.rnic.create_qp(make).during("making queue pairs")?;
            session.queue_pairs.push(qp);
            let mut psn = [0; 4];
            host.platform.fill_random(&mut psn);
            session.mine.push(Keys {
                lid: attributes.port.lid,
                outstanding: outstanding.into(),
                qp,
                psn: Psn::new(u32::from_le_bytes(psn)),
                key,
                addr: session.buffers.start(Side::Far, index),
                gid,
            });
        }
        Ok(session)
    }

    /// Returns the keys of this side's queue pairs.
    #[must_use]
    pub(crate) fn mine(&self) -> &[Keys] {
        &self.mine
    }

    /// Returns the keys of this side's first queue pair.
    pub(crate) fn first(&self) -> Result<Keys, Error> {
        self.mine.first().copied().ok_or(Error::Malformed("keys"))
    }

    /// Connects each queue pair to the peer's.
    pub(crate) async fn connect(&mut self, peers: Vec<Keys>) -> Result<(), Error> {
        for ((qp, mine), peer) in self.queue_pairs.iter().zip(&self.mine).zip(&peers) {
            let attributes = self.host.rnic.attributes();
            let link = link(&attributes);
            let (mac, gid) = match peer.gid {
                None => (MacAddr([0; 6]), Gid([0; 16])),
                Some(gid) => {
                    let ip = Ipv6Addr::from(gid.0).to_canonical();
                    let found = self.host.network.resolve(ip, self.host.now() + RESOLVE).await;
                    (MacAddr(found.ok_or(Error::Unreachable(gid))?), gid)
                }
            };
            let connect = QpConnect {
                address: AddressVector {
                    link,
                    peer: PortAddress { mac, gid, lid: peer.lid },
                    traffic_class: 0,
                    hop_limit: 255,
                    service_level: 0,
                },
                remote_qp: peer.qp,
                send_psn: mine.psn,
                recv_psn: peer.psn,
                mtu: self.agreed.mtu,
                max_rd_atomic: u8::try_from(peer.outstanding)
                    .unwrap_or(u8::MAX)
                    .clamp(1, attributes.max_rd_atomic),
                ack_timeout: Duration::from_nanos(TIMEOUT_UNIT_NS << self.options.qp_timeout),
                retries: RETRIES,
                // Retries without limit: the test's own timeout ends it.
                rnr_retries: 7,
                min_rnr_delay: RNR_DELAY,
            };
            self.host.rnic.connect_qp(*qp, &connect).during("connecting queue pairs")?;
        }
        self.peers = peers;
        Ok(())
    }

    /// Returns the slots for messages of `size` bytes. Messages rotate through slots in bandwidth tests only.
    #[must_use]
    pub(crate) fn slots(&self, size: u32) -> Slots {
        Slots::new(size, &self.agreed, self.options.program.figure == crate::options::Figure::Bandwidth)
    }

    /// Posts operation `m` on a queue pair.
    pub(crate) fn post(&self, queue_pair: u32, m: u32, slots: &Slots, signaled: bool) -> Result<(), Error> {
        let index = queue_pair as usize;
        let (Some(&qp), Some(peer)) = (self.queue_pairs.get(index), self.peers.get(index)) else {
            return Err(Error::Malformed("keys"));
        };
        let near = self.buffers.slot(Side::Near, queue_pair, slots, m.into());
        let sge = [Sge { addr: near, len: slots.size }];
        let remote =
            RemoteAddr { addr: IoAddr(peer.addr.0.wrapping_add(slots.offset(m.into()))), key: peer.key };
        let mut bytes;
        let mut data = Payload::Gather(&sge);
        let verb = self.options.program.verb;
        if slots.size <= self.options.inline && matches!(verb, Verb::Write | Verb::Send) {
            bytes = [0; INLINE_MAX];
            let bytes = bytes.get_mut(..slots.size as usize).unwrap_or_default();
            self.buffers.read(Side::Near, queue_pair, slots, m.into(), bytes)?;
            data = Payload::Inline(bytes);
        }
        let op = match verb {
            Verb::Write => SendOp::Write { data, remote, imm: None },
            Verb::Send => SendOp::Send { data, imm: None },
            Verb::Read => SendOp::Read { into: &sge, remote },
            Verb::Atomic => match self.options.atomic {
                Atomic::FetchAdd => SendOp::FetchAdd { result: near, remote, add: 1 },
                Atomic::CompareSwap => SendOp::CompareSwap { result: near, remote, compare: 0, swap: 0 },
            },
        };
        let wr = SendWr { id: id(queue_pair, m), op, signaled, solicited: false, fence: false };
        self.host.rnic.post_send(qp, &[wr]).during("posting")
    }

    /// Posts the receive for message `m` on a queue pair.
    pub(crate) fn post_receive(&self, queue_pair: u32, m: u32, slots: &Slots) -> Result<(), Error> {
        let Some(&qp) = self.queue_pairs.get(queue_pair as usize) else {
            return Err(Error::Malformed("keys"));
        };
        let sge = [Sge { addr: self.buffers.slot(Side::Far, queue_pair, slots, m.into()), len: slots.size }];
        let wr = RecvWr { id: id(queue_pair, m), scatter: &sge };
        self.host.rnic.post_recv(qp, &[wr]).during("posting receives")
    }

    /// Calls `each` with queue pair and number of each operation that has completed, at most [`BATCH`] of
    /// them. Returns how many there were.
    pub(crate) fn completed(&self, mut each: impl FnMut(u32, u32)) -> Result<usize, Error> {
        self.poll::<BATCH>(self.queues.send, |completion| {
            let (queue_pair, m) = of_id(completion.id);
            each(queue_pair, m);
            Ok(())
        })
    }

    /// Returns true if an operation has completed. The completion is taken.
    pub(crate) fn has_completed(&self) -> Result<bool, Error> {
        // One place for a completion, because a loop that waits would clear more of them in each turn.
        self.poll::<1>(self.queues.send, |_| Ok(())).map(|n| n > 0)
    }

    /// Calls `each` with queue pair and number of each receive that has completed, at most `MOST` of them,
    /// and returns how many there were. Each must have brought `size` bytes.
    pub(crate) fn received<const MOST: usize>(
        &self,
        size: u32,
        mut each: impl FnMut(u32, u32) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        self.poll::<MOST>(self.queues.recv, |completion| {
            let (queue_pair, m) = of_id(completion.id);
            if completion.byte_len != size {
                return Err(Error::Content(format!(
                    "message {m} has {} bytes, not {size}",
                    completion.byte_len
                )));
            }
            each(queue_pair, m)
        })
    }

    /// Takes at most `MOST` completions.
    fn poll<const MOST: usize>(
        &self,
        cq: CqId,
        mut each: impl FnMut(&Completion) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        let mut batch = [Completion::BLANK; MOST];
        let n = self.host.rnic.poll_cq(cq, &mut batch);
        for completion in batch.iter().take(n) {
            if completion.status != Status::Success {
                return Err(Error::Completion(completion.kind, completion.status));
            }
            each(completion)?;
        }
        Ok(n)
    }

    /// Discards the completions of earlier queue pairs.
    fn drain(&self) {
        let mut batch = [Completion::BLANK; BATCH];
        for cq in [self.queues.send, self.queues.recv] {
            while self.host.rnic.poll_cq(cq, &mut batch) > 0 {}
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        for &qp in &self.queue_pairs {
            if let Err(error) = self.host.rnic.destroy_qp(qp) {
                log::warn!("perftest: ending a queue pair: {error}");
            }
        }
        self.drain();
    }
}

fn id(queue_pair: u32, m: u32) -> WrId {
    WrId(u64::from(queue_pair) << 32 | u64::from(m))
}

const fn of_id(id: WrId) -> (u32, u32) {
    ((id.0 >> 32) as u32, id.0 as u32)
}

/// A wait that drives the RNIC, and yields the processor only now and then.
pub(crate) struct Wait<'a> {
    host: &'a Host,
    /// The time of the last event.
    since: Instant,
    /// The time at which other tasks of the node last ran.
    turn: Instant,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(host: &'a Host) -> Self {
        let now = host.now();
        Self { host, since: now, turn: now }
    }

    /// Records that an event has occurred.
    pub(crate) fn progressed(&mut self) {
        self.since = self.host.now();
    }

    /// Returns the time since the last event.
    pub(crate) fn idle(&self) -> Duration {
        self.host.now() - self.since
    }

    /// Waits for the completion of an operation that has just been posted.
    pub(crate) async fn until_completed(&mut self, session: &Session<'_>) -> Result<(), Error> {
        loop {
            // An RNIC in software begins the operation here.
            self.pause().await?;
            if session.has_completed()? {
                self.progressed();
                return Ok(());
            }
        }
    }

    /// Drives the RNIC once, and lets other tasks run if it is time.
    pub(crate) async fn pause(&mut self) -> Result<(), Error> {
        let now = self.host.drive();
        if now - self.turn > TURN {
            yield_now().await;
            self.turn = self.host.now();
            if now - self.since > IDLE_TIMEOUT {
                return Err(Error::Stalled(IDLE_TIMEOUT.as_secs()));
            }
        }
        Ok(())
    }
}
