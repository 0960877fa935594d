//! The RNIC itself.

use crate::{
    AddressVector, Completion, CqId, LinkKind, PathMtu, PortAddress, Psn, QKey, QpNum, RecvWr, RemoteKey,
    SendWr, UdQp, UdSendWr,
};
use core::time::Duration;
use platform::{Instant, IoAddr};
use serde::{Deserialize, Serialize};

/// What a peer needs to reach this node's memory, and what it may reach with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryKey {
    /// The key.
    pub rkey: RemoteKey,
    /// First address it covers.
    pub base: IoAddr,
    /// Bytes it covers.
    pub len: u64,
}

/// The state of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, but not yet configured (InfiniBand: no subnet manager has been).
    Initializing,
    /// Traffic flows.
    Active,
}

/// What an RNIC is and can do. Constant but for `port_state` and `port`.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// The driver's name: `softroce`, `mlx4`, `ibverbs`.
    pub driver: &'static str,
    /// Frame formats it speaks, best first.
    pub links: &'static [LinkKind],
    /// How peers find the port.
    pub port: PortAddress,
    /// Whether traffic flows.
    pub port_state: PortState,
    /// The largest path MTU of the port.
    pub max_mtu: PathMtu,
    /// Queue pairs that can exist at once.
    pub max_qps: u32,
    /// Work requests that a send or receive queue can hold.
    pub max_depth: u32,
    /// Elements of a scatter or gather list.
    pub max_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline: u32,
    /// READs and atomics in flight on one queue pair, as requester and as responder.
    pub max_rd_atomic: u8,
}

/// What to create a completion queue with.
#[derive(Clone, Copy, Debug)]
pub struct CqOptions {
    /// Completions it can hold. Must not be less than the work that can complete into it.
    pub depth: u32,
}

/// What to create a reliable connected queue pair with.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// Where send work completes.
    pub send_cq: CqId,
    /// Where receive work completes.
    pub recv_cq: CqId,
    /// Send work requests outstanding.
    pub send_depth: u32,
    /// Receive work requests outstanding.
    pub recv_depth: u32,
}

/// What to create an unreliable datagram queue pair with.
#[derive(Clone, Copy, Debug)]
pub struct UdOptions {
    /// Where send work completes.
    pub send_cq: CqId,
    /// Where receive work completes.
    pub recv_cq: CqId,
    /// Send work requests outstanding.
    pub send_depth: u32,
    /// Receive work requests outstanding.
    pub recv_depth: u32,
    /// What datagrams must name to be taken.
    pub qkey: QKey,
}

/// What connects a queue pair: the attributes of the transitions to RTR and RTS (specification 11.2.5.2).
#[derive(Clone, Copy, Debug)]
pub struct QpConnect {
    /// The way to the peer.
    pub address: AddressVector,
    /// The peer's queue pair.
    pub remote_qp: QpNum,
    /// First PSN sent.
    pub send_psn: Psn,
    /// First PSN expected.
    pub recv_psn: Psn,
    /// Payload bytes of a full packet.
    pub mtu: PathMtu,
    /// READs and atomics this side keeps in flight: at most what the peer answers.
    pub max_rd_atomic: u8,
    /// How long to wait for an acknowledgement before going back.
    pub ack_timeout: Duration,
    /// How often to go back without progress before the work fails.
    pub retries: u8,
    /// How often to retry when the peer has no receive posted; 7 is for ever (a deadline above must end it).
    pub rnr_retries: u8,
    /// How long to ask a peer to wait when no receive is posted here.
    pub min_rnr_delay: Duration,
}

/// Why a call was refused. It changed nothing, but for what [`Rnic::post_send`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// No room: queue full, or no more queue pairs or completion queues.
    #[error("no resources left for the request")]
    NoResources,
    /// No such queue pair or completion queue.
    #[error("no such queue pair or completion queue")]
    NotFound,
    /// An argument is outside what [`Attributes`] says.
    #[error("an argument exceeds the limits of the RNIC")]
    InvalidArgument,
    /// The queue pair's state does not allow it.
    #[error("the queue pair is not in a state for the request")]
    InvalidState,
    /// A local address is outside the one key.
    #[error("a local address is outside of registered memory")]
    LocalProtection,
    /// No way to the peer was found.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The RNIC does not have the service or operation.
    #[error("the RNIC does not support the request")]
    Unsupported,
    /// The device does not answer any more.
    #[error("the RNIC has failed")]
    DeviceFailed,
    /// The device may still serve a queue pair that is to be destroyed: what arrives for it may change memory.
    #[error("the RNIC does not let go of the queue pair")]
    StillServed,
}

/// A named count, for metrics: what it counts, and how many.
pub type Counter = (&'static str, u64);

/// An RDMA network interface.
///
/// Calls may come from any processor; none waits for the network. Work proceeds only inside [`progress`](Self::progress)
/// (a hardware RNIC does much of it alone). `progress`, `post_*`, `poll_cq`, `next_deadline` and `arm` do not allocate
/// and may be called by the poller in an interrupt.
pub trait Rnic: Send + Sync {
    /// What it is and can do.
    fn attributes(&self) -> Attributes;

    /// What a peer needs to reach all memory of this node.
    fn memory_key(&self) -> MemoryKey;

    /// Makes a completion queue.
    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError>;

    /// Ends a completion queue that no queue pair uses any more (`InvalidState` while one does), with the completions that are
    /// still in it. Its number may be given again.
    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError>;

    /// Makes a reliable connected queue pair. Receives may be posted at once; sends after [`connect_qp`](Self::connect_qp).
    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError>;

    /// Brings a new queue pair to RTS. The peer may be this RNIC itself, also the very queue pair.
    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError>;

    /// Makes an unreliable datagram queue pair. It needs no connecting: it sends, and takes datagrams that name its
    /// Q_Key, at once. A message is at most [`Attributes::max_mtu`] bytes.
    fn create_ud_qp(&self, options: UdOptions) -> Result<UdQp, VerbsError> {
        let _ = options;
        Err(VerbsError::Unsupported)
    }

    /// Queues datagrams, in order. A completion says that the datagram has left, not that anybody has taken it.
    /// `Err((n, e))` as for [`post_send`](Self::post_send).
    fn post_send_ud(&self, qp: UdQp, work: &[UdSendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let _ = (qp, work);
        Err((0, VerbsError::Unsupported))
    }

    /// Ends a queue pair of either service: from the return on nothing that arrives for it touches memory, and outstanding work has
    /// completed as flushed into its completion queues.
    ///
    /// [`StillServed`](VerbsError::StillServed): the device may go on serving it. Nothing can be posted any more, but memory
    /// that it reaches must not be used for anything else until a later call for the same queue pair gives another result. With
    /// any other error the device reaches no memory through it, as if it were destroyed.
    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError>;

    /// Queues send work, in order. `Err((n, e))`: the first `n` are queued, the next was refused because of `e`.
    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)>;

    /// Queues receive work of either service, in order. `Err((n, e))` as for `post_send`.
    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)>;

    /// Takes up to `out.len()` completions, oldest first; gives how many.
    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize;

    /// Receives, answers, sends and retransmits: at most about `budget` packets each way. Gives whether there was work.
    fn progress(&self, now: Instant, budget: usize) -> bool;

    /// When `progress` must be called even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant>;

    /// Asks for an interrupt at the next arrival. `true`: something already waits, do not sleep.
    fn arm(&self) -> bool;

    /// Calls `each` for every counter of the device.
    fn counters(&self, each: &mut dyn FnMut(Counter));
}
