//! The name directory: what nodes publish under names, until they free them, leave or die.

use proto::{NameError, NodeId};
use std::collections::BTreeMap;

/// Names with their owners and values.
#[derive(Debug, Default)]
pub struct Directory(BTreeMap<String, (NodeId, Vec<u8>)>);

impl Directory {
    /// Binds a free name.
    pub fn bind(&mut self, owner: NodeId, name: String, value: Vec<u8>) -> Result<(), NameError> {
        proto::check_lengths(&name, &value)?;
        if self.0.contains_key(&name) {
            return Err(NameError::Taken);
        }
        self.0.insert(name, (owner, value));
        Ok(())
    }

    /// Frees a name of `owner`.
    pub fn unbind(&mut self, owner: NodeId, name: &str) -> Result<(), NameError> {
        match self.0.get(name) {
            None => Err(NameError::NotFound),
            Some((bound_by, _)) if *bound_by != owner => Err(NameError::NotOwner),
            Some(_) => {
                self.0.remove(name);
                Ok(())
            }
        }
    }

    /// The owner and the value of a name.
    pub fn lookup(&self, name: &str) -> Result<(NodeId, Vec<u8>), NameError> {
        self.0.get(name).cloned().ok_or(NameError::NotFound)
    }

    /// Frees all names of a node that is no more.
    pub fn forget(&mut self, owner: NodeId) {
        self.0.retain(|_, (bound_by, _)| *bound_by != owner);
    }
}
