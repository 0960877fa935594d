//! The name directory: the values that nodes publish under names, until they unbind them, leave or die.

use crate::planted::{Bug, planted};
use proto::{NameError, NodeId, ToManager};
use std::collections::{BTreeMap, BTreeSet};

/// The directory of names: each name with its owner and its value.
#[derive(Debug, Default)]
pub struct Directory {
    names: BTreeMap<String, (NodeId, Vec<u8>)>,
    owners: BTreeMap<NodeId, Owned>,
}

/// The names of a node.
#[derive(Debug, Default)]
struct Owned {
    names: BTreeSet<String>,
    /// The total cost of the names.
    cost: usize,
}

/// Returns the cost of a name in its owner's quota, in bytes.
fn cost(name: &str, value: &[u8]) -> usize {
    ToManager::NAME_COST + name.len() + value.len()
}

impl Directory {
    /// Binds a free name.
    ///
    /// # Errors
    /// [`NameError::Length`], [`NameError::Taken`], [`NameError::Quota`].
    pub fn bind(&mut self, owner: NodeId, name: String, value: Vec<u8>) -> Result<(), NameError> {
        proto::check_lengths(&name, &value)?;
        if self.names.contains_key(&name) && !planted(Bug::NameBoundTwice) {
            return Err(NameError::Taken);
        }
        let owned = self.owners.entry(owner).or_default();
        let cost = owned.cost + cost(&name, &value);
        if cost > ToManager::NAME_QUOTA {
            return Err(NameError::Quota);
        }
        owned.cost = cost;
        owned.names.insert(name.clone());
        self.names.insert(name, (owner, value));
        Ok(())
    }

    /// Unbinds a name of `owner`.
    ///
    /// # Errors
    /// [`NameError::NotFound`], [`NameError::NotOwner`].
    pub fn unbind(&mut self, owner: NodeId, name: &str) -> Result<(), NameError> {
        match self.names.get(name) {
            None => Err(NameError::NotFound),
            Some((bound_by, _)) if *bound_by != owner => Err(NameError::NotOwner),
            Some((_, value)) => {
                if let Some(owned) = self.owners.get_mut(&owner) {
                    owned.cost = owned.cost.saturating_sub(cost(name, value));
                    owned.names.remove(name);
                }
                self.names.remove(name);
                Ok(())
            }
        }
    }

    /// Returns the owner and the value of a name.
    ///
    /// # Errors
    /// [`NameError::NotFound`].
    pub fn lookup(&self, name: &str) -> Result<(NodeId, Vec<u8>), NameError> {
        self.names.get(name).cloned().ok_or(NameError::NotFound)
    }

    /// Unbinds all names of a node that is no member any more.
    pub fn forget(&mut self, owner: NodeId) {
        for name in self.owners.remove(&owner).unwrap_or_default().names {
            self.names.remove(&name);
        }
    }
}
