//! The reliable connected service (specification chapter 9.7), the unreliable connected one (9.8.2) and the unreliable
//! datagram service (9.8.3) as state machines without I/O.
//!
//! A [`DatagramQp`] sends and takes single packets, an [`UnreliableQp`] messages of which it drops what is not whole.
//! A [`ReliableQp`] is a requester and a responder that share a path. Packets and the
//! time go in; packets come out one at a time, when whoever owns the queue pair has room for one: [`ReliableQp::next_tx`]
//! says what is to be sent, [`ReliableQp::emit`] writes it straight from memory into the frame, [`ReliableQp::sent`]
//! goes on. Nothing allocates after [`ReliableQp::new`].
//!
//! PSNs of a work request are fixed when it is posted, so that going back is only a matter of setting one number.
//! A READ longer than [`READ_CHUNK`] packets is asked for in pieces, so that responses do not flood a receive ring.

mod access;
mod congestion;
mod notify;
mod qp;
mod recv_queue;
mod request;
mod requester;
mod resources;
mod responder;
mod rtt;
mod segment;
mod send_queue;
mod timers;
mod uc;
mod ud;

pub use access::{Denied, OneKey, RemoteAccess, Right};
pub use qp::{Limits, ReliableQp, State, Tx};
pub use uc::UnreliableQp;
pub use ud::{DatagramQp, Route};

use platform::{Instant, Memory};
use verbs::Completion;

/// Longest message in bytes (specification 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// READs and atomics that a responder holds for its peer, and so the most that a requester may keep in flight.
pub const MAX_RD_ATOMIC: u8 = 16;

/// Most packets of a READ's responses that are asked for at once.
pub const READ_CHUNK: u32 = 32;

/// Where completions go. The owner of the completion queues decides how.
pub trait Completions {
    /// A send work request has ended. It goes to the queue only if `report`; else the caller wanted no completion.
    fn send_ended(&mut self, completion: &Completion, report: bool);

    /// A receive work request has ended.
    fn recv_ended(&mut self, completion: &Completion);
}

/// What a queue pair works with during one call.
pub struct Env<'a> {
    /// The time.
    pub now: Instant,
    /// The node's memory.
    pub memory: &'a dyn Memory,
    /// The same as peers reach it: the keys.
    pub remote: &'a dyn RemoteAccess,
    /// Counts of what happens.
    pub counters: &'a mut Counters,
    /// Where completions go.
    pub completions: &'a mut dyn Completions,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of what happened since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Calls `each` with every name and count.
            pub fn for_each(&self, each: &mut dyn FnMut((&'static str, u64))) {
                $(each((stringify!($name), self.$name));)*
            }
        }
    };
}

counters! {
    /// RoCE frames received, good or bad.
    rx_packets,
    /// Their bytes, from Ethernet header to ICRC.
    rx_bytes,
    /// RoCE frames sent.
    tx_packets,
    /// Their bytes.
    tx_bytes,
    /// Packets between queue pairs of this RNIC.
    loopback_packets,
    /// Frames dropped for a wrong ICRC.
    rx_icrc_errors,
    /// Frames dropped because they could not be taken apart.
    rx_malformed,
    /// Frames dropped because they were addressed to another port.
    rx_not_ours,
    /// Packets dropped for want of a queue pair with that number.
    rx_unknown_qp,
    /// Packets dropped because their queue pair is of another service.
    rx_wrong_service,
    /// Packets dropped because their queue pair is connected to somebody else, or to nobody.
    rx_wrong_peer,
    /// Packets dropped for their partition key.
    rx_bad_pkey,
    /// Datagrams dropped for their Q_Key.
    rx_bad_qkey,
    /// Datagrams, and messages of unreliable connections, dropped because no receive was posted.
    rx_no_receive,
    /// Datagrams dropped because they are longer than the receive posted, or than the MTU; messages of unreliable
    /// connections longer than the receive posted.
    rx_too_long,
    /// Requests received again.
    rx_duplicates,
    /// Repeated READs and atomics dropped because their answer is not kept any more, or they ask for something else.
    rx_stale_requests,
    /// Requests dropped, or packets of unreliable connections, because one before them is missing.
    rx_out_of_sequence,
    /// Responses that answer nothing outstanding.
    rx_stale_responses,
    /// Packets dropped because their queue pair is not connected, or in error.
    rx_wrong_state,
    /// Packets that asked for what key, range or right do not allow.
    access_errors,
    /// Requests that broke the protocol.
    invalid_requests,
    /// Requests that a receive of this node was not good for.
    operation_errors,
    /// NAKs sent for a missing packet.
    tx_naks,
    /// NAKs received for a missing packet, and READ responses that showed a gap.
    rx_naks,
    /// RNR NAKs sent.
    tx_rnr_naks,
    /// RNR NAKs received.
    rx_rnr_naks,
    /// Request packets sent again.
    retransmits,
    /// Acknowledgement timeouts.
    timeouts,
    /// Packets repeated because an answer was late, before the acknowledgement timeout.
    probes,
    /// Packets that a congested switch has marked.
    rx_ecn_marked,
    /// Congestion notifications received.
    rx_cnps,
    /// Congestion notifications sent.
    tx_cnps,
    /// Queue pairs that went to the error state.
    qp_errors,
}
