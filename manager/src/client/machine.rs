//! Orders to the machine of a node, by the node or by its power controller, and the inventory.

use super::{Client, ClientError, REPLY_TIMEOUT, SHUTDOWN};
use proto::{BootImage, FromClient, InventoryNode, PowerAction, PowerVerb, ToClient, printable};
use sha2::{Digest as _, Sha256};

impl Client {
    /// Turns the machine of a node off, or resets it. Returns once the node has left.
    pub fn power(&mut self, node: &str, action: PowerAction) -> Result<(), ClientError> {
        match self.ask(&FromClient::Power { node: node.into(), action }, SHUTDOWN)? {
            ToClient::NodeLeft => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Does something by the power controller of a node's machine, with `force` also while the node answers.
    /// Returns true if the machine is on at the end.
    pub fn bmc(&mut self, node: &str, verb: PowerVerb, force: bool) -> Result<bool, ClientError> {
        match self.ask(&FromClient::Bmc { node: node.into(), verb, force }, SHUTDOWN)? {
            ToClient::Powered { on } => Ok(on),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns the nodes of the inventory and the members that it does not list, by name.
    pub fn inventory(&mut self) -> Result<Vec<InventoryNode>, ClientError> {
        let mut all: Vec<InventoryNode> = Vec::new();
        loop {
            let after = all.last().map(|node| node.name.clone()).unwrap_or_default();
            let answer = self.ask(&FromClient::Inventory { after }, REPLY_TIMEOUT)?;
            let ToClient::Inventory { nodes, more } = answer else { return Err(ClientError::Unexpected) };
            if more && nodes.is_empty() {
                return Err(ClientError::Unexpected);
            }
            all.extend(nodes);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Boots `image`, an ELF file with a kernel, on the machine of a node. Returns once the node has checked
    /// it and has left.
    pub fn boot(&mut self, node: &str, image: &[u8]) -> Result<(), ClientError> {
        let description = BootImage { len: image.len() as u64, sha256: Sha256::digest(image).into() };
        let boot = FromClient::Boot { node: node.into(), image: description };
        let mut answer = self.ask(&boot, REPLY_TIMEOUT)?;
        let mut pieces = image.chunks(BootImage::PIECE).peekable();
        let mut sent = 0;
        loop {
            let taken = match answer {
                ToClient::NodeLeft => return Ok(()),
                ToClient::ImageTaken { bytes } => bytes,
                ToClient::Failed { reason } => return Err(ClientError::Failed(printable(&reason))),
                _ => return Err(ClientError::Unexpected),
            };
            let room = taken + BootImage::WINDOW;
            while let Some(piece) = pieces.next_if(|piece| sent + piece.len() as u64 <= room) {
                sent += piece.len() as u64;
                self.connection.sending.send(&FromClient::ImagePiece { bytes: piece.into() })?;
            }
            answer = self.connection.receiving.receive(Some(SHUTDOWN))?;
        }
    }
}
