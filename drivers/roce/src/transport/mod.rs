//! The reliable connected service (specification chapter 9.7), the unreliable connected service (9.8.2) and
//! the unreliable datagram service (9.8.3) as state machines without I/O.
//!
//! A [`DatagramQp`] sends and receives single packets; an [`UnreliableQp`] sends and receives messages, and
//! drops incomplete ones. A [`ReliableQp`] is a requester and a responder that share a path. Packets and the
//! time go in. Packets come out one at a time, when the owner of the queue pair has room for one:
//! [`ReliableQp::next_tx`] returns the next packet, [`ReliableQp::emit`] writes it straight from memory into
//! the frame, [`ReliableQp::sent`] advances. Nothing allocates after [`ReliableQp::new`].
//!
//! The PSNs of a work request are fixed when it is posted, so a requester goes back by setting one number. A
//! READ longer than [`READ_CHUNK`] packets is requested in pieces, so that responses do not overrun a receive
//! ring.

mod access;
mod congestion;
mod levels;
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
pub use levels::Levels;
pub use qp::{Limits, ReliableQp, State, Tx};
pub use uc::UnreliableQp;
pub use ud::{DatagramQp, Route};

use platform::{Instant, Memory};
use verbs::Completion;

/// The length of the longest message, in bytes (specification 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The number of READs and atomics that a responder holds for its peer, and therefore the most that a
/// requester may keep in flight.
pub const MAX_RD_ATOMIC: u8 = 16;

/// The maximum number of READ response packets that are requested at once.
pub const READ_CHUNK: u32 = 32;

/// The receiver of completions, which the owner of the completion queues implements.
pub trait Completions {
    /// Receives the completion of a send work request. It belongs into the queue only if `report` is true;
    /// otherwise the caller wanted no completion.
    fn send_ended(&mut self, completion: &Completion, report: bool);

    /// Receives the completion of a receive work request.
    fn recv_ended(&mut self, completion: &Completion);
}

/// The environment of a queue pair during one call.
pub struct Env<'a> {
    /// The present time.
    pub now: Instant,
    /// The node's memory.
    pub memory: &'a dyn Memory,
    /// The registered memory, by the keys that peers name.
    pub remote: &'a dyn RemoteAccess,
    /// The counters of the RNIC.
    pub counters: &'a mut Counters,
    /// The receiver of completions.
    pub completions: &'a mut dyn Completions,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of events since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Calls `each` with the name and the value of every counter.
            pub fn for_each(&self, each: &mut dyn FnMut((&'static str, u64))) {
                $(each((stringify!($name), self.$name));)*
            }
        }
    };
}

counters! {
    /// RoCE frames received, good or bad.
    rx_packets,
    /// Bytes of received RoCE frames, from Ethernet header to ICRC.
    rx_bytes,
    /// RoCE frames sent.
    tx_packets,
    /// Bytes of sent RoCE frames, from Ethernet header to ICRC.
    tx_bytes,
    /// Packets between queue pairs of this RNIC.
    loopback_packets,
    /// Frames dropped for a wrong ICRC.
    rx_icrc_errors,
    /// Frames dropped because they could not be parsed.
    rx_malformed,
    /// Frames dropped because they were addressed to another port.
    rx_not_ours,
    /// Packets dropped because no queue pair has their number.
    rx_unknown_qp,
    /// Packets dropped because their queue pair is of another service.
    rx_wrong_service,
    /// Packets dropped because their queue pair is connected to another peer, or not connected.
    rx_wrong_peer,
    /// Packets dropped for their partition key.
    rx_bad_pkey,
    /// Datagrams dropped for their Q_Key.
    rx_bad_qkey,
    /// Datagrams, and messages of unreliable connections, dropped because no receive was posted.
    rx_no_receive,
    /// Datagrams dropped because they are longer than the receive posted, or than the MTU; messages of
    /// unreliable connections longer than the receive posted.
    rx_too_long,
    /// Requests received again.
    rx_duplicates,
    /// Repeated READs and atomics dropped because their response is no longer kept, or because they differ
    /// from the original.
    rx_stale_requests,
    /// Requests, or packets of unreliable connections, dropped because an earlier one is missing.
    rx_out_of_sequence,
    /// Responses to no outstanding request.
    rx_stale_responses,
    /// Packets dropped because their queue pair is not connected, or in error.
    rx_wrong_state,
    /// Packets refused because of their key, range or access right.
    access_errors,
    /// Requests that violated the protocol.
    invalid_requests,
    /// Requests that failed because the memory of a receive of this node was invalid.
    operation_errors,
    /// NAKs sent for a missing packet.
    tx_naks,
    /// NAKs received for a missing packet, and READ responses that revealed a gap.
    rx_naks,
    /// RNR NAKs sent.
    tx_rnr_naks,
    /// RNR NAKs received.
    rx_rnr_naks,
    /// Request packets sent again.
    retransmits,
    /// Acknowledgement timeouts.
    timeouts,
    /// Packets repeated because a response was late, before the acknowledgement timeout.
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
