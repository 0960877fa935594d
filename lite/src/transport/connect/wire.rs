//! The messages by which two nodes set up and end a connection.
//!
//! The messages of a set-up travel encrypted, as [`datagram`](super::datagram)s on the fabric or in a
//! [`Message`] through the manager. The messages about its end travel through the manager.

use crate::base::config::MOST_CORES;
use crate::channel::area::RpcArea;
use alloc::string::String;
use alloc::vec::Vec;
use platform::IoAddr;
use serde::{Deserialize, Serialize};
use verbs::{LinkKind, PathMtu, Psn, QpNum};

/// The version of these messages and of the RPC headers.
pub(crate) const VERSION: u8 = 11;

/// The maximum length of the reason of a refusal, in bytes, so that it fits a datagram.
pub(crate) const MAX_REASON: usize = 120;

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// The frame format, chosen by the requester.
    pub(crate) link: LinkKind,
    /// The largest path MTU of the sender's port.
    pub(crate) mtu: PathMtu,
    /// The number of READs and atomics that the sender serves at once.
    pub(crate) rd_atomic: u8,
    /// The numbers and first PSNs of the queue pairs: as many for each core, those of the first core first.
    pub(crate) queue_pairs: Vec<(QpNum, Psn)>,
    /// The memory for RPC messages.
    pub(crate) rpc: RpcAreas,
}

/// The memory for RPC messages of all cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RpcAreas {
    /// The length of each ring, in bytes.
    ring_len: u32,
    /// The length of each slot, in bytes.
    slot_len: u32,
    /// The number of slots of each core.
    slot_count: u32,
    /// The addresses of ring and slots, by core.
    addrs: Vec<(IoAddr, IoAddr)>,
}

impl RpcAreas {
    /// Makes the areas of all cores, which have the lengths of the first.
    pub(crate) fn new(areas: &[RpcArea]) -> Self {
        let (ring_len, slot_len, slot_count) =
            areas.first().map_or((0, 0, 0), |area| (area.ring_len, area.slot_len, area.slot_count));
        let addrs = areas.iter().map(|area| (area.ring, area.slots)).collect();
        Self { ring_len, slot_len, slot_count, addrs }
    }

    /// Returns the number of cores.
    pub(crate) fn cores(&self) -> usize {
        self.addrs.len()
    }

    /// Returns the areas, by core.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RpcArea> {
        let Self { ring_len, slot_len, slot_count, .. } = *self;
        self.addrs.iter().map(move |&(ring, slots)| RpcArea { ring, ring_len, slots, slot_len, slot_count })
    }
}

impl End {
    /// Returns the number of queue pairs for each core, if it is the same for all cores and LITE can use it.
    pub(crate) fn each(&self) -> Option<usize> {
        let (all, cores) = (self.queue_pairs.len(), self.rpc.cores());
        let each = all.checked_div(cores)?;
        (cores <= MOST_CORES && (1..=4).contains(&each) && each * cores == all).then_some(each)
    }
}

/// A request for a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The requester's side.
    pub(crate) end: End,
    /// The queue pair at which the requester receives the answer; `None`: it receives it through the manager.
    pub(crate) answer_to: Option<QpNum>,
}

/// A message of a set-up. It belongs to an [`Attempt`](proto::Attempt).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SetUp {
    /// A request for a connection.
    Request(Request),
    /// The request is accepted; the sender's queue pairs are connected.
    Reply(End),
    /// The requester's queue pairs are connected too.
    Ready,
    /// The request is refused, for the reason that the text gives, of at most [`MAX_REASON`] bytes.
    Refused(String),
    /// No permit is free for another connection, or the attempt is over; the requester may ask again.
    Full,
}

/// A message between two nodes through the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A datagram of the set-up of a connection.
    SetUp(Vec<u8>),
    /// Proposes to close the connection of that attempt. The sender has nothing in flight on it; the
    /// receiver should refuse if it has used the connection within `unused_ns`.
    /// A repeated proposal has another `number`.
    Close { unused_ns: u64, number: u64 },
    /// The sender's queue pairs of the connection are destroyed.
    Closed,
    /// The refusal of the proposal with that number: the peer still uses the connection.
    Used { number: u64 },
    /// The connection of that attempt has ended at the sender, who expects [`Closed`](Self::Closed) when it
    /// has ended at the receiver.
    Broken,
}

/// A message through the manager, with the attempt that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The protocol version, [`VERSION`].
    pub(crate) version: u8,
    /// The [stamp](proto::Attempt::stamp) of the attempt.
    pub(crate) attempt: u64,
    /// The message.
    pub(crate) message: Message,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn golden_bytes() {
        let rpc = RpcArea {
            ring: IoAddr(0x1000),
            ring_len: 0x8000,
            slots: IoAddr(0x9000),
            slot_len: 64,
            slot_count: 2,
        };
        let end = End {
            link: LinkKind::RoceV2,
            mtu: PathMtu::B1024,
            rd_atomic: 16,
            queue_pairs: vec![(QpNum::new(0x11), Psn::new(0x22))],
            rpc: RpcAreas::new(&[rpc]),
        };
        let request = SetUp::Request(Request { end, answer_to: Some(QpNum::new(0x33)) });
        let bytes = proto::encode(&request);
        // Varints, little-endian.
        let golden =
            [0, 0, 2, 16, 1, 0x11, 0x22, 0x80, 0x80, 2, 64, 2, 1, 0x80, 0x20, 0x80, 0xa0, 2, 1, 0x33];
        assert_eq!(bytes, golden);
        assert_eq!(proto::decode::<SetUp>(&bytes), Ok(request));
        assert!(proto::decode::<SetUp>(&golden[..19]).is_err());
        let carried = Envelope { version: VERSION, attempt: 5, message: Message::SetUp(vec![7, 8]) };
        assert_eq!(proto::encode(&carried), [11, 5, 0, 2, 7, 8]);
        let close =
            Envelope { version: VERSION, attempt: 5, message: Message::Close { unused_ns: 200, number: 3 } };
        assert_eq!(proto::encode(&close), [11, 5, 1, 0xc8, 1, 3]);
        let broken = Envelope { version: VERSION, attempt: 6, message: Message::Broken };
        assert_eq!(proto::encode(&broken), [11, 6, 4]);
    }
}
