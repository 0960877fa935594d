//! Messages that the manager sends.

use proto::{ToClient, ToNode};
use std::borrow::Cow;
use std::sync::Arc;

/// A message to a node or to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// To a node.
    ToNode(ToNode),
    /// To several nodes: an encoded [`ToNode`], kept once for all of them. Never one with [`bulk`](Self::bulk).
    ToNodes(Arc<[u8]>),
    /// To a client.
    ToClient(ToClient),
}

impl Message {
    /// A message to several nodes.
    #[must_use]
    pub fn to_nodes(message: &ToNode) -> Self {
        Self::ToNodes(proto::encode(message).into())
    }

    /// The message as it travels.
    #[must_use]
    pub fn encode(&self) -> Cow<'_, [u8]> {
        match self {
            Self::ToNode(message) => proto::encode(message).into(),
            Self::ToNodes(bytes) => (&**bytes).into(),
            Self::ToClient(message) => proto::encode(message).into(),
        }
    }

    /// Bytes of the encoded message.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::ToNode(message) => proto::encoded_len(message),
            Self::ToNodes(bytes) => bytes.len(),
            Self::ToClient(message) => proto::encoded_len(message),
        }
    }

    /// What [`Sent`](super::Event::Sent) must tell once the message has been handed to the network, zero for messages
    /// of which nobody needs to know: the bytes of output, and the [charge](ToNode::input_charge) of input.
    #[must_use]
    pub fn bulk(&self) -> usize {
        match self {
            Self::ToNode(ToNode::JobInput { bytes, .. }) => {
                usize::try_from(ToNode::input_charge(bytes.len())).unwrap_or(usize::MAX)
            }
            Self::ToClient(ToClient::Output { bytes }) => bytes.len(),
            _ => 0,
        }
    }
}
