//! The sizes and times of a node.

use super::qos::Scheme;
use alloc::string::String;
use core::time::Duration;
use platform::Platform;

/// The call slots reserved for LITE's internal calls. Those overtake calls of applications whose handlers
/// take long, and may be what such a handler waits for.
pub(crate) const OWN_SLOTS: u32 = 8;
/// The most operations in flight on one core: the number of slots that fit the bits of an operation's number.
pub(crate) const MOST_SLOTS: u32 = 1 << 16;
/// The most cores with queue pairs of their own.
pub(crate) const MOST_CORES: usize = 16;

/// The sizes and times of one node's LITE. The nodes of a cluster need not agree on them.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name, for its own entry in [`Lite::members`](crate::Lite::members).
    pub name: String,
    /// The time after which an operation ends, unless its handle has another deadline.
    pub deadline: Duration,
    /// The number of cores that have a completion queue, a table of operations, bounce buffers, and queue
    /// pairs of each connection of their own, 1 to 16, and at most as many as the platform has. Cores beyond
    /// that number share these with another core.
    pub cores: usize,
    /// The number of queue pairs of each connection for each core, 1 to 4. The first carries RPC; one-sided
    /// operations share the others, if there are any.
    pub queue_pairs: usize,
    /// The number of send work requests that may be outstanding on one queue pair, at least 8.
    pub send_depth: u32,
    /// The number of one-sided operations and RPC messages that may be outstanding on one core.
    pub operations: u32,
    /// The number of peers that may be connected at once, at least 2, because a node that serves a request
    /// may have to call another node. When one more peer is wanted, the connection that has been unused for
    /// longest and has nothing in flight is closed by agreement with its peer; its next use opens it again.
    /// While all connections are in use, a task that wants another peer waits until its deadline.
    pub peers: u32,
    /// The time for which a connection may be unused at both ends before it is closed. `None`: it stays
    /// until its permit is wanted for another peer.
    pub idle: Option<Duration>,
    /// The bounce buffers of each core as (size in bytes, count), ascending by size. The largest size is the
    /// chunk of large transfers.
    pub bounce: [(u32, u32); 3],
    /// The number of chunks of one large transfer that may be in flight at once, 1 to 8.
    pub window: usize,
    /// The length of the ring that receives one peer's requests, in bytes: a power of two, at least 16 KiB.
    /// The longest request that travels in the ring is a quarter of it; the server fetches a longer one.
    pub ring: u32,
    /// The number of calls that may be outstanding to one peer, 1 to 4,088; further calls wait in order.
    /// LITE's internal calls have 8 slots of their own.
    pub calls: u32,
    /// The limit on one peer's undelivered requests, in bytes. Each request counts as its length plus 256.
    /// Beyond the limit the peer is told to try again later, as with a full queue. One request is always
    /// accepted.
    pub backlog: u32,
    /// The length of the slot for one reply, in bytes. A longer reply goes to a buffer that is allocated
    /// for the call.
    pub reply_slot: u32,
    /// The time after which the set-up of a connection starts again.
    pub connect_timeout: Duration,
    /// The repetition of packets by queue pairs.
    pub retransmission: Retransmission,
    /// The time beyond the lease for which the manager may be silent before this node gives up its
    /// membership; `None`: no limit. Meanwhile the node is suspended: it keeps all that it has and posts
    /// nothing.
    pub silence: Option<Duration>,
    /// The scheme by which priorities are told apart, until
    /// [`Lite::configure_qos`](crate::Lite::configure_qos) selects another.
    pub scheme: Scheme,
    /// The service level, 0 to 7, of the queue pairs of high priority under HW-Sep, on connections that are
    /// opened under that scheme. Low priority, and all queue pairs under another scheme, have level 0. On
    /// RoCE the level is the priority of a VLAN tag, if there is one, and selects the DSCP, which is eight
    /// times the level (the class selectors of RFC 2474).
    pub service_level: u8,
    /// The number of bytes for which operations on a region wait at once when a move of the region begins. It
    /// adapts: a move lets operations wait for some 50 ms at a time, as far as copies of 256 KiB are fast
    /// enough for that.
    pub move_window: u64,
}

/// The repetition of packets by queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    /// The time that a queue pair waits for an acknowledgement before it retransmits.
    pub ack_timeout: Duration,
    /// The number of retransmissions before a queue pair fails, at most 7.
    pub retries: u8,
    /// The time for which a peer waits before it tries again when no receive is posted (RNR timer).
    pub rnr_delay: Duration,
}

impl Default for Retransmission {
    fn default() -> Self {
        Self { ack_timeout: Duration::from_millis(30), retries: 7, rnr_delay: Duration::from_millis(1) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            deadline: Duration::from_secs(10),
            cores: 8,
            queue_pairs: 2,
            send_depth: 128,
            operations: 1024,
            peers: 64,
            idle: Some(Duration::from_secs(600)),
            bounce: [(256, 256), (4096, 64), (65536, 16)],
            window: 4,
            ring: 128 << 10,
            calls: 32,
            backlog: 1 << 20,
            reply_slot: 4096,
            connect_timeout: Duration::from_secs(2),
            retransmission: Retransmission::default(),
            silence: Some(Duration::from_secs(600)),
            scheme: Scheme::None,
            service_level: 4,
            move_window: 4 << 20,
        }
    }
}

impl Config {
    /// Returns the nearest configuration that works.
    pub(crate) fn checked(mut self) -> Self {
        self.cores = self.cores.clamp(1, MOST_CORES);
        self.queue_pairs = self.queue_pairs.clamp(1, 4);
        self.send_depth = self.send_depth.max(8);
        self.peers = self.peers.max(2);
        self.operations = self.operations.clamp(16, MOST_SLOTS);
        self.window = self.window.clamp(1, 8);
        self.ring = self.ring.clamp(16 << 10, 1 << 24).next_power_of_two();
        self.calls = self.calls.clamp(1, 4096 - OWN_SLOTS);
        self.reply_slot = self.reply_slot.clamp(256, 1 << 16).next_multiple_of(64);
        self.bounce.sort_unstable();
        for (size, count) in &mut self.bounce {
            *size = (*size).clamp(64, 1 << 20).next_multiple_of(64);
            *count = (*count).max(1);
        }
        // Every RPC message that is not inline must fit a bounce buffer.
        let least = (self.ring / 4).max(self.reply_slot);
        let largest = &mut self.bounce[2].0;
        *largest = (*largest).max(least);
        self.retransmission.retries = self.retransmission.retries.min(7);
        self.service_level = self.service_level.min(7);
        self
    }

    /// Returns the number of bytes of the node's memory that each connected peer uses for each core: the ring
    /// for its requests and the slots for its replies.
    #[must_use]
    pub fn peer_memory(&self) -> u64 {
        let config = self.clone().checked();
        u64::from(config.ring) + u64::from(config.slots()) * u64::from(config.reply_slot)
    }

    /// Returns the number of cores that have queue pairs of their own on a platform.
    pub(crate) fn shards(&self, platform: &dyn Platform) -> usize {
        self.cores.min(platform.cpus()).max(1)
    }

    /// Returns the number of slots for one peer's replies.
    pub(crate) fn slots(&self) -> u32 {
        self.calls + OWN_SLOTS
    }

    /// Returns the number of receives posted for one peer: enough for all requests and replies in flight
    /// and the credit messages between them.
    pub(crate) fn recv_depth(&self) -> u32 {
        2 * self.slots().max(32) + 24
    }
}
