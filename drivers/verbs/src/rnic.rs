//! The interface of an RNIC: its limits, queues, queue pairs and memory keys.

use crate::{
    AddressVector, Completion, CqId, LinkKind, PathMtu, PortAddress, Psn, QKey, QpNum, RecvWr, RemoteKey,
    SendWr, UdQp, UdSendWr,
};
use core::time::Duration;
use platform::{Instant, IoAddr};
use serde::{Deserialize, Serialize};

/// The memory of this node that peers may reach, and the key that they need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryKey {
    /// The key that a peer names.
    pub rkey: RemoteKey,
    /// The first address that the key covers.
    pub base: IoAddr,
    /// The number of bytes that the key covers.
    pub len: u64,
}

/// The state of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// There is no link.
    Down,
    /// There is a link that is not configured (InfiniBand: by the subnet manager).
    Initializing,
    /// The port can send and receive.
    Active,
}

/// The properties and limits of an RNIC. Constant except `port_state` and `port`.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// The driver's name: `softroce`, `mlx4`, `ibverbs`.
    pub driver: &'static str,
    /// The frame formats that the RNIC supports, best first.
    pub links: &'static [LinkKind],
    /// The address by which peers reach the port.
    pub port: PortAddress,
    /// The state of the port.
    pub port_state: PortState,
    /// The largest path MTU of the port.
    pub max_mtu: PathMtu,
    /// The maximum number of queue pairs.
    pub max_qps: u32,
    /// The maximum number of work requests in a send queue or a receive queue.
    pub max_depth: u32,
    /// The maximum number of elements in a scatter or gather list.
    pub max_sge: u32,
    /// The maximum length of an inline payload, in bytes.
    pub max_inline: u32,
    /// The maximum number of READs and atomics in flight on a queue pair, as requester and as responder.
    pub max_rd_atomic: u8,
}

/// The parameters of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqOptions {
    /// The number of completions it can hold. It must not be less than the number of work requests that can
    /// complete into the queue.
    pub depth: u32,
}

/// The parameters of a reliable connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// The completion queue of send work.
    pub send_cq: CqId,
    /// The completion queue of receive work.
    pub recv_cq: CqId,
    /// The maximum number of send work requests outstanding.
    pub send_depth: u32,
    /// The maximum number of receive work requests outstanding.
    pub recv_depth: u32,
}

/// The parameters of an unreliable datagram queue pair.
#[derive(Clone, Copy, Debug)]
pub struct UdOptions {
    /// The completion queue of send work.
    pub send_cq: CqId,
    /// The completion queue of receive work.
    pub recv_cq: CqId,
    /// The maximum number of send work requests outstanding.
    pub send_depth: u32,
    /// The maximum number of receive work requests outstanding.
    pub recv_depth: u32,
    /// The key that datagrams must carry to be accepted.
    pub qkey: QKey,
}

/// The parameters of a connection: the attributes of the transitions to RTR and RTS (specification 11.2.5.2).
#[derive(Clone, Copy, Debug)]
pub struct QpConnect {
    /// The path to the peer.
    pub address: AddressVector,
    /// The peer's queue pair.
    pub remote_qp: QpNum,
    /// The first PSN that this side sends.
    pub send_psn: Psn,
    /// The first PSN that this side expects.
    pub recv_psn: Psn,
    /// The payload of a full packet.
    pub mtu: PathMtu,
    /// The maximum number of READs and atomics that this side keeps in flight. It must not exceed the number
    /// that the peer accepts.
    pub max_rd_atomic: u8,
    /// The time to wait for an acknowledgement before packets are sent again.
    pub ack_timeout: Duration,
    /// The number of retransmissions without progress after which the work fails.
    pub retries: u8,
    /// The number of retries when the peer has no receive posted. 7 means no limit; the caller must then set
    /// a deadline of its own.
    pub rnr_retries: u8,
    /// The time that a peer is asked to wait when no receive is posted here.
    pub min_rnr_delay: Duration,
}

/// The reason for which a call was refused. A refused call has changed nothing, except as [`Rnic::post_send`]
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// A queue is full, or there are no more queue pairs or completion queues.
    #[error("no resources left for the request")]
    NoResources,
    /// The queue pair or completion queue does not exist.
    #[error("no such queue pair or completion queue")]
    NotFound,
    /// An argument is outside of the limits in [`Attributes`].
    #[error("an argument exceeds the limits of the RNIC")]
    InvalidArgument,
    /// The state of the queue pair does not allow the call.
    #[error("the queue pair is not in a state for the request")]
    InvalidState,
    /// A local address is outside of the memory that the key covers.
    #[error("a local address is outside of registered memory")]
    LocalProtection,
    /// No path to the peer was found.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The RNIC does not support the service or operation.
    #[error("the RNIC does not support the request")]
    Unsupported,
    /// The device no longer responds.
    #[error("the RNIC has failed")]
    DeviceFailed,
    /// The device may still serve a queue pair that was to be destroyed: packets that arrive for it may
    /// change memory.
    #[error("the RNIC may still serve the queue pair")]
    StillServed,
}

/// A counter for metrics: its name and its value.
pub type Counter = (&'static str, u64);

/// An RDMA network interface.
///
/// Any processor may make any call, and no call waits for the network. Work proceeds only inside
/// [`progress`](Self::progress), although a hardware RNIC does much of it alone. `progress`, `post_*`,
/// `poll_cq`, `next_deadline` and `arm` do not allocate, and the poller may call them in an interrupt.
///
/// # Examples
///
/// A SEND from a queue pair to itself. It works on each implementation, given a connected queue pair whose
/// send and receive work completes into `cq`. Here the implementation is one that does nothing but move
/// inline SENDs:
///
/// ```
/// use platform::{Instant, IoAddr};
/// use std::sync::Mutex;
/// use verbs::*;
///
/// fn send_to_itself(rnic: &dyn Rnic, cq: CqId, qp: QpNum) -> Result<u32, VerbsError> {
///     let buffer = [Sge { addr: IoAddr(0), len: 64 }];
///     let receive = RecvWr { id: WrId(1), scatter: &buffer };
///     rnic.post_recv(qp, &[receive]).map_err(|(_, error)| error)?;
///     let op = SendOp::Send { data: Payload::Inline(b"hello"), imm: None };
///     let send = SendWr { id: WrId(2), op, signaled: false, solicited: false, fence: false };
///     rnic.post_send(qp, &[send]).map_err(|(_, error)| error)?;
///     let mut completions = [Completion::BLANK; 4];
///     loop {
///         rnic.progress(Instant::ZERO, 16);
///         let taken = rnic.poll_cq(cq, &mut completions);
///         if let Some(received) = completions[..taken].iter().find(|c| c.id == WrId(1)) {
///             assert_eq!(received.status, Status::Success);
///             return Ok(received.byte_len);
///         }
///     }
/// }
///
/// /// One queue pair that is its own peer, and 64 bytes of memory.
/// #[derive(Default)]
/// struct Loopback(Mutex<State>);
///
/// #[derive(Default)]
/// struct State {
///     memory: Vec<u8>,
///     receives: Vec<(WrId, u64, u32)>,
///     completed: Vec<Completion>,
/// }
///
/// const QP: QpNum = QpNum::new(2);
///
/// impl Rnic for Loopback {
///     fn attributes(&self) -> Attributes {
///         let port = PortAddress { mac: MacAddr([0; 6]), gid: Gid([0; 16]), lid: 0 };
///         Attributes {
///             driver: "loopback",
///             links: &[],
///             port,
///             port_state: PortState::Active,
///             max_mtu: PathMtu::B1024,
///             max_qps: 1,
///             max_depth: 1,
///             max_sge: 1,
///             max_inline: 64,
///             max_rd_atomic: 0,
///         }
///     }
///     fn memory_key(&self) -> MemoryKey {
///         MemoryKey { rkey: RemoteKey(0), base: IoAddr(0), len: 64 }
///     }
///     fn create_cq(&self, _: CqOptions) -> Result<CqId, VerbsError> {
///         Ok(CqId(0))
///     }
///     fn destroy_cq(&self, _: CqId) -> Result<(), VerbsError> {
///         Ok(())
///     }
///     fn create_qp(&self, _: QpOptions) -> Result<QpNum, VerbsError> {
///         Ok(QP)
///     }
///     fn connect_qp(&self, _: QpNum, _: &QpConnect) -> Result<(), VerbsError> {
///         Ok(())
///     }
///     fn destroy_qp(&self, _: QpNum) -> Result<(), VerbsError> {
///         Ok(())
///     }
///     fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
///         let state = &mut *self.0.lock().unwrap();
///         for (n, request) in work.iter().enumerate() {
///             let SendOp::Send { data: Payload::Inline(data), imm } = request.op else {
///                 return Err((n, VerbsError::Unsupported));
///             };
///             let (id, addr, _) = state.receives.pop().ok_or((n, VerbsError::NoResources))?;
///             state.memory.resize(64, 0);
///             state.memory[addr as usize..][..data.len()].copy_from_slice(data);
///             let mut received = Completion::new(id, qp, Status::Success, WorkKind::Recv);
///             received.byte_len = data.len() as u32;
///             received.imm = imm;
///             state.completed.push(received);
///         }
///         Ok(())
///     }
///     fn post_recv(&self, _: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
///         let receives = work.iter().map(|wr| (wr.id, wr.scatter[0].addr.0, wr.scatter[0].len));
///         self.0.lock().unwrap().receives.extend(receives);
///         Ok(())
///     }
///     fn poll_cq(&self, _: CqId, out: &mut [Completion]) -> usize {
///         let completed = &mut self.0.lock().unwrap().completed;
///         let taken = completed.len().min(out.len());
///         out.iter_mut().zip(completed.drain(..taken)).for_each(|(out, done)| *out = done);
///         taken
///     }
///     fn progress(&self, _: Instant, _: usize) -> bool {
///         false // `post_send` has done all the work.
///     }
///     fn next_deadline(&self) -> Option<Instant> {
///         None
///     }
///     fn arm(&self) -> bool {
///         false
///     }
///     fn counters(&self, each: &mut dyn FnMut(Counter)) {
///         each(("receives_posted", self.0.lock().unwrap().receives.len() as u64));
///     }
/// }
///
/// assert_eq!(send_to_itself(&Loopback::default(), CqId(0), QP), Ok(5));
/// ```
pub trait Rnic: Send + Sync {
    /// Returns the properties and limits of the RNIC.
    fn attributes(&self) -> Attributes;

    /// Returns the key with which peers reach this node's memory.
    fn memory_key(&self) -> MemoryKey;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// `NoResources`, `InvalidArgument` or `DeviceFailed`.
    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError>;

    /// Destroys a completion queue and discards the completions in it. Its number may be used again.
    ///
    /// # Errors
    /// `InvalidState` while a queue pair uses the completion queue, `NotFound` if there is none.
    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError>;

    /// Makes a reliable connected queue pair. Receives may be posted at once, sends after
    /// [`connect_qp`](Self::connect_qp).
    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError>;

    /// Connects a new queue pair to a peer's and brings it to RTS. The peer may be this RNIC, and even the
    /// same queue pair.
    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError>;

    /// Makes an unreliable datagram queue pair. Without being connected, it can send at once, and receives
    /// datagrams that carry its Q_Key. A message is at most [`Attributes::max_mtu`] bytes.
    ///
    /// # Errors
    /// `Unsupported` if the RNIC has no datagram service; otherwise as [`create_qp`](Self::create_qp).
    fn create_ud_qp(&self, options: UdOptions) -> Result<UdQp, VerbsError> {
        let _ = options;
        Err(VerbsError::Unsupported)
    }

    /// Queues datagrams, in order. A completion says that the datagram was sent, not that a peer received it.
    ///
    /// # Errors
    /// `(n, error)` as [`post_send`](Self::post_send) returns it.
    fn post_send_ud(&self, qp: UdQp, work: &[UdSendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let _ = (qp, work);
        Err((0, VerbsError::Unsupported))
    }

    /// Destroys a queue pair of either service. After the return no packet for it changes memory, and its
    /// outstanding work has completed as flushed into its completion queues. A later queue pair may get the
    /// same number before these completions are polled, so [`Completion::qp`] alone does not tell the two
    /// apart; identifiers of work requests do.
    ///
    /// # Errors
    /// [`StillServed`](VerbsError::StillServed): the device may continue to serve the queue pair. Nothing can
    /// be posted any more, but memory that the queue pair reaches must not be used for anything else until a
    /// later call for the same queue pair returns another result. After any other error the device reaches no
    /// memory through the queue pair, as if it were destroyed.
    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError>;

    /// Queues send work, in order.
    ///
    /// # Errors
    /// `(n, error)`: the first `n` work requests are queued; the next was refused because of `error`.
    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)>;

    /// Queues receive work of either service, in order.
    ///
    /// # Errors
    /// `(n, error)` as [`post_send`](Self::post_send) returns it.
    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)>;

    /// Moves up to `out.len()` completions to `out`, oldest first, and returns their number.
    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize;

    /// Receives, responds, sends and retransmits, about `budget` packets in each direction at most. Returns
    /// whether there was work.
    fn progress(&self, now: Instant, budget: usize) -> bool;

    /// Returns true if the RNIC carries out work and completes it without `progress`, which then only takes
    /// rare events. A processor that waits for completions need not call it all the time.
    fn works_alone(&self) -> bool {
        false
    }

    /// Returns the time by which `progress` must be called even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant>;

    /// Requests an interrupt for the next arrival. Returns true if something has already arrived; the caller
    /// must then not sleep.
    fn arm(&self) -> bool;

    /// Calls `each` for every counter of the device.
    fn counters(&self, each: &mut dyn FnMut(Counter));
}
