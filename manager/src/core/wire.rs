//! Messages that the manager sends.

use proto::{ToClient, ToNode};

/// What a message with input counts for at least.
const MIN_INPUT: usize = 512;

/// A message to a node or to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// To a node.
    ToNode(ToNode),
    /// To a client.
    ToClient(ToClient),
}

impl Message {
    /// The message as it travels.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::ToNode(message) => proto::encode(message),
            Self::ToClient(message) => proto::encode(message),
        }
    }

    /// Bytes of the encoded message.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::ToNode(message) => proto::encoded_len(message),
            Self::ToClient(message) => proto::encoded_len(message),
        }
    }

    /// What it counts for in a queue, zero for messages that are not counted: what [`Sent`](super::Event::Sent) must
    /// tell. The bytes of output; the bytes of input, but a minimum for a message, lest a client that sends single
    /// bytes fill a node's queue with millions of messages.
    #[must_use]
    pub fn bulk(&self) -> usize {
        match self {
            Self::ToNode(ToNode::JobInput { bytes, .. }) => bytes.len().max(MIN_INPUT),
            Self::ToClient(ToClient::Output { bytes }) => bytes.len(),
            _ => 0,
        }
    }
}
