//! The name directory: the values that nodes publish under names, until they unbind them, leave or die.

use super::records::NameRecord;
use crate::planted::{Bug, planted};
use proto::{Incarnation, NameError, NodeId, ToManager};
use std::collections::{BTreeMap, BTreeSet};

/// The directory of names: each name with its owner and its value.
#[derive(Debug, Default)]
pub struct Directory {
    names: BTreeMap<String, Bound>,
    owners: BTreeMap<NodeId, Owned>,
}

/// A binding.
#[derive(Debug)]
struct Bound {
    owner: NodeId,
    value: Vec<u8>,
    /// The owner's number of the request, and the number of the binding.
    request: u32,
    number: u64,
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
    /// Returns the directory with these bindings.
    pub(super) fn restore(bindings: Vec<NameRecord>) -> Self {
        let mut directory = Self::default();
        for NameRecord { name, owner, request, number, value, .. } in bindings {
            let owned = directory.owners.entry(owner).or_default();
            owned.cost += cost(&name, &value);
            owned.names.insert(name.clone());
            directory.names.insert(name, Bound { owner, value, request, number });
        }
        directory
    }

    /// Returns the number of the binding that an owner's request has made. The owner asks again if the answer
    /// was lost.
    pub(super) fn bound_by(&self, owner: NodeId, request: u32, name: &str) -> Option<u64> {
        let bound = self.names.get(name).filter(|bound| bound.owner == owner && bound.request == request)?;
        Some(bound.number)
    }

    /// Binds a free name by a request of its owner, and gives the binding a number.
    ///
    /// # Errors
    /// [`NameError::Length`], [`NameError::Taken`], [`NameError::Quota`].
    pub(super) fn bind(
        &mut self,
        (owner, incarnation, request): (NodeId, Incarnation, u32),
        name: String,
        value: Vec<u8>,
        number: u64,
    ) -> Result<NameRecord, NameError> {
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
        self.names.insert(name.clone(), Bound { owner, value: value.clone(), request, number });
        Ok(NameRecord { name, owner, incarnation, request, number, value })
    }

    /// Unbinds a name of `owner`.
    ///
    /// # Errors
    /// [`NameError::NotFound`], [`NameError::NotOwner`].
    pub fn unbind(&mut self, owner: NodeId, name: &str) -> Result<(), NameError> {
        match self.names.get(name) {
            None => Err(NameError::NotFound),
            Some(bound) if bound.owner != owner => Err(NameError::NotOwner),
            Some(bound) => {
                if let Some(owned) = self.owners.get_mut(&owner) {
                    owned.cost = owned.cost.saturating_sub(cost(name, &bound.value));
                    owned.names.remove(name);
                }
                self.names.remove(name);
                Ok(())
            }
        }
    }

    /// Gives a name of `owner` to another member, with another value and a new number of the binding. Returns
    /// the new record; `None` if that has been done before.
    ///
    /// # Errors
    /// [`NameError::NotFound`], [`NameError::NotOwner`], [`NameError::Length`], [`NameError::Quota`].
    pub(super) fn give(
        &mut self,
        owner: NodeId,
        (to, incarnation): (NodeId, Incarnation),
        name: &str,
        value: Vec<u8>,
        number: u64,
    ) -> Result<Option<NameRecord>, NameError> {
        let bound = self.names.get(name).ok_or(NameError::NotFound)?;
        if bound.owner == to && bound.value == value {
            return Ok(None);
        }
        if bound.owner != owner {
            return Err(NameError::NotOwner);
        }
        proto::check_lengths(name, &value)?;
        let room = self.owners.get(&to).map_or(0, |owned| owned.cost) + cost(name, &value);
        if room > ToManager::NAME_QUOTA {
            return Err(NameError::Quota);
        }
        self.unbind(owner, name)?;
        // No node numbers a request 0.
        self.bind((to, incarnation, 0), name.into(), value, number).map(Some)
    }

    /// Returns the number of the binding of a name.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|bound| bound.number)
    }

    /// Returns the owner and the value of a name.
    ///
    /// # Errors
    /// [`NameError::NotFound`].
    pub fn lookup(&self, name: &str) -> Result<(NodeId, Vec<u8>), NameError> {
        self.names.get(name).map(|bound| (bound.owner, bound.value.clone())).ok_or(NameError::NotFound)
    }

    /// Unbinds all names of a node that is no member any more, and returns them.
    pub(super) fn forget(&mut self, owner: NodeId) -> BTreeSet<String> {
        let names = self.owners.remove(&owner).unwrap_or_default().names;
        for name in &names {
            self.names.remove(name);
        }
        names
    }
}
