//! The state of nodes: lists, drains and their undoing.

use super::{Client, ClientError, REPLY_TIMEOUT};
use proto::{FromClient, NodeStanding, NodeView, Reason, Refusal, ToClient};
use std::time::Duration;

/// A request to take a node out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// The name of the node.
    pub node: String,
    /// The reason.
    pub reason: Reason,
    /// The time after which the node's job is cancelled; `None`: it may take as long as it does.
    pub deadline: Option<Duration>,
    /// True if the node may be the last one that takes jobs.
    pub force: bool,
}

impl Client {
    /// Returns all nodes by name: members, and those that are out of service or in the inventory.
    pub fn node_list(&mut self) -> Result<Vec<NodeView>, ClientError> {
        let mut all: Vec<NodeView> = Vec::new();
        loop {
            let after = all.last().map(|node| node.name.clone()).unwrap_or_default();
            let answer = self.ask(&FromClient::NodeList { after }, REPLY_TIMEOUT)?;
            let ToClient::NodeList { nodes, more } = answer else { return Err(ClientError::Unexpected) };
            if more && nodes.is_empty() {
                return Err(ClientError::Unexpected);
            }
            all.extend(nodes);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Returns the node of this name.
    pub fn node(&mut self, name: &str) -> Result<NodeView, ClientError> {
        let found = self.node_list()?.into_iter().find(|node| node.name == name);
        found.ok_or_else(|| ClientError::refused(Refusal::NotFound, &format!("no node {name} is known")))
    }

    /// Takes a node out of service, and returns its state.
    pub fn drain(&mut self, drain: &Drain) -> Result<NodeStanding, ClientError> {
        let Drain { node, reason, deadline, force } = drain.clone();
        let deadline_ms = deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.change(&FromClient::Drain { node, reason, deadline_ms, force })
    }

    /// Puts a node back into service, and returns its state.
    pub fn undrain(&mut self, node: &str) -> Result<NodeStanding, ClientError> {
        self.change(&FromClient::Undrain { node: node.into() })
    }

    fn change(&mut self, request: &FromClient) -> Result<NodeStanding, ClientError> {
        match self.ask(request, REPLY_TIMEOUT)? {
            ToClient::NodeChanged { standing } => Ok(standing),
            _ => Err(ClientError::Unexpected),
        }
    }
}
