//! What can be tuned.

use crate::rpc::OWN_SLOTS;
use alloc::string::String;
use core::time::Duration;

/// Sizes and times of one node's LITE. The nodes of a cluster need not agree on them.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name, for its own entry in [`Lite::members`](crate::Lite::members).
    pub name: String,
    /// How long an operation may take unless its handle says otherwise.
    pub deadline: Duration,
    /// Reliable connections per peer that this node opens, 1 to 4. The first carries RPC; one-sided operations share the
    /// others, if there are others.
    pub queue_pairs: usize,
    /// Send work requests outstanding on one queue pair.
    pub send_depth: u32,
    /// One-sided operations and RPC messages outstanding on this node.
    pub operations: u32,
    /// Peers that may be connected at once, 2 at least, for a node that is asked may have to ask another. When one more is
    /// wanted, the connection that was not used for longest, and on which nothing is under way, is closed by agreement with
    /// its peer; its next use opens it again. While all are in use, whoever wants another peer waits, until the deadline.
    pub peers: u32,
    /// How long a connection may be unused at both ends before it is closed; `None`: as long as its place is not wanted.
    pub idle: Option<Duration>,
    /// Bounce buffers as (size, count), ascending by size. The largest size is the chunk of large transfers.
    pub bounce: [(u32, u32); 3],
    /// Chunks of one large transfer under way at once, 1 to 8.
    pub window: usize,
    /// Bytes of the ring that takes one peer's requests: a power of two, at least 16 KiB. A quarter of it is the longest
    /// request that travels in the ring; longer ones are fetched by the server.
    pub ring: u32,
    /// Calls outstanding to one peer, 1 to 4,088; more wait in line. LITE's own have 8 places besides.
    pub calls: u32,
    /// Bytes that one peer's requests may hold here before a task takes them, 256 of them for each request besides its
    /// own; a peer that sends more is put off, as by a full queue. One request always has room.
    pub backlog: u32,
    /// Bytes of the place for one reply. Longer replies go to a buffer that is taken for the call.
    pub reply_slot: u32,
    /// How long the set-up of a connection may take before it starts anew.
    pub connect_timeout: Duration,
    /// How long to wait for an acknowledgement before a queue pair goes back.
    pub ack_timeout: Duration,
    /// How often to go back before a queue pair fails, at most 7.
    pub retries: u8,
    /// How long a peer is asked to wait when no receive is posted.
    pub rnr_delay: Duration,
    /// How long the manager may be silent beyond the lease until this node gives its membership up; `None`: for ever.
    /// Meanwhile the node is suspended: it keeps all that it has and posts nothing.
    pub silence: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            deadline: Duration::from_secs(10),
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
            ack_timeout: Duration::from_millis(30),
            retries: 7,
            rnr_delay: Duration::from_millis(1),
            silence: Some(Duration::from_secs(600)),
        }
    }
}

impl Config {
    /// The nearest configuration that works.
    pub(crate) fn checked(mut self) -> Self {
        self.queue_pairs = self.queue_pairs.clamp(1, 4);
        self.send_depth = self.send_depth.max(8);
        self.peers = self.peers.max(2);
        self.operations = self.operations.clamp(16, crate::op::MOST_SLOTS);
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
        self.retries = self.retries.min(7);
        self
    }

    /// Bytes of the node's memory that each connected peer takes: the ring for its requests and the slots for its replies.
    #[must_use]
    pub fn peer_memory(&self) -> u64 {
        let config = self.clone().checked();
        u64::from(config.ring) + u64::from(config.slots()) * u64::from(config.reply_slot)
    }

    /// Slots for one peer's replies.
    pub(crate) fn slots(&self) -> u32 {
        self.calls + OWN_SLOTS
    }

    /// Receives posted for one peer: all requests and all replies under way, and the credits between them.
    pub(crate) fn recv_depth(&self) -> u32 {
        2 * self.slots().max(32) + 16
    }
}
