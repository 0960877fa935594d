//! Messages that the manager sends.

use proto::{ToClient, ToNode};
use std::borrow::Cow;
use std::sync::Arc;

/// A message to a node or to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A message to a node.
    ToNode(ToNode),
    /// To several nodes: an encoded [`ToNode`], stored once for all of them. Its [`bulk`](Self::bulk) is
    /// always zero.
    ToNodes(Arc<[u8]>),
    /// A message to a client.
    ToClient(ToClient),
}

impl Message {
    /// Makes a message to several nodes.
    #[must_use]
    pub fn to_nodes(message: &ToNode) -> Self {
        Self::ToNodes(proto::encode(message).into())
    }

    /// Returns the encoded message.
    #[must_use]
    pub fn encode(&self) -> Cow<'_, [u8]> {
        match self {
            Self::ToNode(message) => proto::encode(message).into(),
            Self::ToNodes(bytes) => (&**bytes).into(),
            Self::ToClient(message) => proto::encode(message).into(),
        }
    }

    /// Returns the length of the encoded message, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::ToNode(message) => proto::encoded_len(message),
            Self::ToNodes(bytes) => bytes.len(),
            Self::ToClient(message) => proto::encoded_len(message),
        }
    }

    /// Returns the value that [`Sent`](super::Event::Sent) must report once the message has been handed to
    /// the network: the [charge](ToNode::input_charge) of input. It is zero for messages that need no report.
    #[must_use]
    pub fn bulk(&self) -> usize {
        match self {
            Self::ToNode(ToNode::JobInput { bytes, .. }) => {
                usize::try_from(ToNode::input_charge(bytes.len())).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }
}
