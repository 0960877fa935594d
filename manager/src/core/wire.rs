//! Messages that the manager sends.

use proto::{ToClient, ToNode};

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

    /// Bytes of input or output in it, zero for other messages: what [`Sent`](super::Event::Sent) must tell.
    #[must_use]
    pub fn bulk(&self) -> usize {
        match self {
            Self::ToNode(ToNode::JobInput { bytes, .. }) | Self::ToClient(ToClient::Output { bytes }) => {
                bytes.len()
            }
            _ => 0,
        }
    }
}
