//! The messages by which two nodes set up a connection through the manager.

use crate::base::config::MOST_CORES;
use crate::channel::area::RpcArea;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use verbs::{LinkKind, PathMtu, Psn, QpNum};

/// The version of these messages and of the RPC headers.
pub(crate) const VERSION: u8 = 9;

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
    /// The memory for RPC messages, by core.
    pub(crate) rpc: Vec<RpcArea>,
}

impl End {
    /// Returns the number of queue pairs for each core, if it is the same for all cores and LITE can use it.
    pub(crate) fn each(&self) -> Option<usize> {
        let (all, cores) = (self.queue_pairs.len(), self.rpc.len());
        let each = all.checked_div(cores)?;
        (cores <= MOST_CORES && (1..=4).contains(&each) && each * cores == all).then_some(each)
    }
}

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A request for a connection.
    Request(End),
    /// The request is accepted; the sender's queue pairs are connected.
    Reply(End),
    /// The requester's queue pairs are connected too.
    Ready,
    /// The request is refused, for the reason that the text gives.
    Refused(String),
    /// No permit is free for another connection; the requester may ask again.
    Full,
    /// Proposes to close the connection of that attempt. The sender has nothing in flight on it; the
    /// receiver should refuse if it has used the connection within `unused_ns`.
    Close { unused_ns: u64 },
    /// The sender's queue pairs of the connection are destroyed.
    Closed,
    /// The refusal of a proposal to close: the peer still uses the connection.
    Used,
    /// The connection of that attempt has ended at the sender, who expects [`Closed`](Self::Closed) when it
    /// has ended at the receiver.
    Broken,
}

/// A message with the attempt that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The protocol version, [`VERSION`].
    pub(crate) version: u8,
    /// A random number, chosen by the requester.
    pub(crate) attempt: u64,
    /// The message.
    pub(crate) message: Message,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use platform::IoAddr;

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
            rpc: vec![rpc],
        };
        let envelope = Envelope { version: VERSION, attempt: 5, message: Message::Request(end) };
        let bytes = proto::encode(&envelope);
        // Varints, little-endian.
        let golden = [9, 5, 0, 0, 2, 16, 1, 0x11, 0x22, 1, 0x80, 0x20, 0x80, 0x80, 2, 0x80, 0xa0, 2, 64, 2];
        assert_eq!(bytes, golden);
        assert_eq!(proto::decode::<Envelope>(&bytes), Ok(envelope));
        assert!(proto::decode::<Envelope>(&golden[..19]).is_err());
        let close = Envelope { version: VERSION, attempt: 5, message: Message::Close { unused_ns: 200 } };
        assert_eq!(proto::encode(&close), [9, 5, 5, 0xc8, 1]);
        let broken = Envelope { version: VERSION, attempt: 6, message: Message::Broken };
        assert_eq!(proto::encode(&broken), [9, 6, 8]);
    }
}
