//! Mappings as the node sees them that uses them.

use super::layout::{Layout, Spot};
use super::owner::Shape;
use crate::membership::Life;
use crate::node::Node;
use crate::rpc::{Answer, Ask, Undo};
use crate::wait::{Epoch, Gate, Shut};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use platform::Instant;
use proto::NodeId;
use spin::Mutex;

/// One mapping of a region: the right to operate on its memory until revoked.
///
/// Whatever may change about it changes while its gate is shut, so an operation that gets in with the epoch it has
/// [looked](Self::locate) in goes to the right place with the right it has.
pub(crate) struct Mapping {
    pub(crate) owner: Life,
    /// This node's number of it, which the owner knows it by.
    pub(crate) id: u64,
    pub(crate) len: u64,
    rights: AtomicU32,
    /// Of `layout`.
    #[allow(dead_code, reason = "for moves")]
    generation: AtomicU64,
    layout: Mutex<Layout>,
    /// Every operation is inside from before it is posted until its completion.
    pub(crate) gate: Gate,
}

impl Mapping {
    pub(crate) fn new(
        owner: Life,
        id: u64,
        rights: Permissions,
        generation: u64,
        layout: Layout,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner,
            id,
            len: layout.len(),
            rights: AtomicU32::new(rights.bits()),
            generation: AtomicU64::new(generation),
            layout: Mutex::new(layout),
            gate: Gate::default(),
        })
    }

    pub(crate) fn rights(&self) -> Permissions {
        Permissions::from_bits_truncate(self.rights.load(Ordering::SeqCst))
    }

    /// Whether this mapping gives `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        if !self.rights().contains(right) {
            return Err(Error::Permission);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfBounds);
        }
        if self.gate.is_closed() { Err(Error::Freed) } else { Ok(()) }
    }

    /// Where the byte at `offset` lies, if this mapping gives `right` to the `len` bytes from there; and the epoch to enter
    /// the gate with. `None` while that changes: wait until the gate has [opened](Gate::opened).
    pub(crate) fn locate(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Spot, Epoch)>, Error> {
        // The epoch first: what is read after it is void if the gate is shut meanwhile.
        let epoch = match self.gate.epoch() {
            Ok(epoch) => epoch,
            Err(Shut::Closed) => return Err(Error::Freed),
            Err(Shut::Changed) => return Ok(None),
        };
        self.check(right, offset, len)?;
        let spot = self.layout.lock().find(offset).ok_or(Error::OutOfBounds)?;
        Ok(Some((spot, epoch)))
    }
}

#[derive(Default)]
struct Table {
    live: BTreeMap<(NodeId, u64), Arc<Mapping>>,
    /// Mappings that have been asked for, by owner and number; whether one was revoked before the answer came.
    expected: BTreeMap<(NodeId, u64), bool>,
}

/// The mappings that this node uses.
#[derive(Default)]
pub(crate) struct MappingTable(Mutex<Table>);

/// Stands for a mapping that has been asked for.
pub(crate) struct Expected<'a> {
    table: &'a MappingTable,
    owner: NodeId,
    id: u64,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.table.0.lock().expected.remove(&(self.owner, self.id));
    }
}

impl MappingTable {
    pub(crate) fn expect(&self, owner: NodeId, id: u64) -> Expected<'_> {
        self.0.lock().expected.insert((owner, id), false);
        Expected { table: self, owner, id }
    }

    fn remove(&self, mapping: &Mapping) {
        let removed = self.0.lock().live.remove(&(mapping.owner.0, mapping.id));
        drop(removed);
    }

    /// Ends all mappings of an owner that is gone.
    pub(crate) fn forget(&self, owner: NodeId) {
        let mut table = self.0.lock();
        let keys: Vec<_> = table.live.range((owner, 0)..=(owner, u64::MAX)).map(|(k, _)| *k).collect();
        let gone: Vec<_> = keys.iter().filter_map(|k| table.live.remove(k)).collect();
        drop(table);
        for mapping in gone {
            mapping.gate.close();
        }
    }
}

impl Expected<'_> {
    /// The mapping is there.
    pub(crate) fn arrived(self, mapping: &Arc<Mapping>) {
        let mut table = self.table.0.lock();
        if table.expected.get(&(self.owner, self.id)) == Some(&true) {
            mapping.gate.close();
        } else {
            table.live.insert((self.owner, self.id), mapping.clone());
        }
    }
}

impl Node {
    /// Why nothing goes through a mapping whose gate is closed.
    pub(crate) fn ended(&self, mapping: &Mapping) -> Error {
        self.gone(mapping.owner.0, mapping.owner.1).unwrap_or(Error::Freed)
    }

    /// Where the byte at `offset` of a mapping lies, as [`Mapping::locate`] says; waits while that changes.
    pub(crate) async fn locate(
        &self,
        mapping: &Mapping,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(Spot, Epoch), Error> {
        loop {
            match mapping.locate(right, offset, len) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => drop(mapping.gate.opened().await),
                Err(Error::Freed) => return Err(self.ended(mapping)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks `owner` a question whose answer is the mapping `id`. Whatever becomes of it, the owner hears of it if the mapping
    /// is not used.
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        owner: NodeId,
        id: u64,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let life = self.life_of(owner)?;
        let expected = self.mappings.expect(owner, id);
        let undo = Undo::new(self, life, Ask::Unmap { mapping: id });
        let answer = match self.ask_node(owner, ask, deadline).await {
            Ok(answer) => answer,
            Err(error) => {
                if !matches!(error, Error::Unknown) {
                    undo.disarm();
                }
                return Err(error);
            }
        };
        let Answer::Mapped { shape, permissions } = answer else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        let (generation, layout) = self.lay_out(owner, id, shape, deadline).await?;
        let mapping = Mapping::new(life, id, permissions, generation, layout);
        expected.arrived(&mapping);
        undo.disarm();
        Ok(mapping)
    }

    /// Asks for the pieces that a shape does not tell, and gives the layout with its generation.
    async fn lay_out(
        self: &Arc<Self>,
        owner: NodeId,
        id: u64,
        mut shape: Shape,
        deadline: Instant,
    ) -> Result<(u64, Layout), Error> {
        let nonsense = || Error::Refused("the owner's pieces make no region".into());
        let mut pieces = core::mem::take(&mut shape.first);
        while pieces.len() < shape.count as usize {
            let from = pieces.len() as u32;
            let ask = Ask::Pieces { mapping: id, generation: shape.generation, from };
            match self.ask_node_long(owner, &ask, deadline).await? {
                Answer::Pieces(more) if !more.is_empty() => pieces.extend(more),
                Answer::Shape(anew) => {
                    shape = anew;
                    pieces = core::mem::take(&mut shape.first);
                }
                _ => return Err(nonsense()),
            }
        }
        let layout = Layout::new(shape.len, shape.stripe, shape.columns as usize, pieces);
        Ok((shape.generation, layout.ok_or_else(nonsense)?))
    }

    /// Closes mappings and waits until nothing is under way through them.
    pub(crate) async fn revoke_here(&self, owner: NodeId, ids: &[u64]) {
        let mut closed = Vec::new();
        {
            let mut table = self.mappings.0.lock();
            for id in ids {
                if let Some(mapping) = table.live.remove(&(owner, *id)) {
                    mapping.gate.close();
                    closed.push(mapping);
                } else if let Some(revoked) = table.expected.get_mut(&(owner, *id)) {
                    *revoked = true;
                }
            }
        }
        for mapping in closed {
            mapping.gate.drained().await;
        }
    }

    /// Waits out a mapping's operations, then tells its owner that it is not used any more.
    pub(crate) fn release(self: &Arc<Self>, mapping: Arc<Mapping>) {
        let node = self.clone();
        let task = async move {
            mapping.gate.close();
            mapping.gate.drained().await;
            node.mappings.remove(&mapping);
            node.insist(mapping.owner, &Ask::Unmap { mapping: mapping.id }).await;
        };
        self.platform.spawn("lite-unmap", Box::pin(task));
    }
}
