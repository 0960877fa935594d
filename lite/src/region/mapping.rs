//! Mappings as the node sees them that uses them.

use crate::node::Node;
use crate::rpc::{Answer, Ask};
use crate::wait::Gate;
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::IoAddr;
use proto::{Incarnation, NodeId};
use spin::Mutex;

/// One mapping of a region: the right to operate on its memory until revoked.
pub(crate) struct Mapping {
    pub(crate) home: NodeId,
    pub(crate) home_life: Incarnation,
    /// The home's number of it.
    pub(crate) id: u64,
    pub(crate) region: u64,
    pub(crate) secret: u64,
    pub(crate) addr: IoAddr,
    pub(crate) len: u64,
    pub(crate) permissions: Permissions,
    /// Every operation is inside from before it is posted until its completion.
    pub(crate) gate: Gate,
}

#[derive(Default)]
struct Table {
    live: BTreeMap<(NodeId, u64), Arc<Mapping>>,
    /// By home: questions under way whose answer will be a mapping, and mappings revoked before that answer came.
    expected: BTreeMap<NodeId, (usize, Vec<u64>)>,
}

/// The mappings that this node uses.
#[derive(Default)]
pub(crate) struct MappingTable(Mutex<Table>);

/// Stands for a question whose answer will be a mapping.
struct Expected<'a> {
    table: &'a MappingTable,
    home: NodeId,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        if let Some((count, _)) = table.expected.get_mut(&self.home) {
            *count -= 1;
            if *count == 0 {
                table.expected.remove(&self.home);
            }
        }
    }
}

impl MappingTable {
    fn expect(&self, home: NodeId) -> Expected<'_> {
        self.0.lock().expected.entry(home).or_default().0 += 1;
        Expected { table: self, home }
    }

    fn insert(&self, mapping: Mapping) -> Arc<Mapping> {
        let mapping = Arc::new(mapping);
        let mut table = self.0.lock();
        let revoked =
            table.expected.get(&mapping.home).is_some_and(|(_, revoked)| revoked.contains(&mapping.id));
        if revoked {
            mapping.gate.close();
        } else {
            table.live.insert((mapping.home, mapping.id), mapping.clone());
        }
        mapping
    }

    fn remove(&self, mapping: &Mapping) {
        let removed = self.0.lock().live.remove(&(mapping.home, mapping.id));
        drop(removed);
    }

    /// Forgets all mappings of a home that is gone.
    pub(crate) fn forget(&self, home: NodeId) {
        let mut table = self.0.lock();
        let keys: Vec<_> = table.live.range((home, 0)..=(home, u64::MAX)).map(|(k, _)| *k).collect();
        let gone: Vec<_> = keys.iter().filter_map(|k| table.live.remove(k)).collect();
        drop(table);
        drop(gone);
    }
}

impl Node {
    /// Asks `home` a question whose answer is a mapping.
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        home: NodeId,
        ask: &Ask,
        secret: u64,
        deadline: platform::Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let expected = self.mappings.expect(home);
        let answer = self.ask_node(home, ask, deadline).await?;
        let Answer::Mapped { mapping, region, home_life, addr, len, permissions } = answer else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        let gate = Gate::default();
        let mapping = Mapping { home, home_life, id: mapping, region, secret, addr, len, permissions, gate };
        let mapping = self.mappings.insert(mapping);
        drop(expected);
        Ok(mapping)
    }

    /// Closes mappings and waits until nothing is under way through them.
    pub(crate) async fn revoke_here(&self, home: NodeId, ids: &[u64]) {
        let mut closed = Vec::new();
        {
            let mut table = self.mappings.0.lock();
            for id in ids {
                if let Some(mapping) = table.live.remove(&(home, *id)) {
                    mapping.gate.close();
                    closed.push(mapping);
                } else if let Some((_, revoked)) = table.expected.get_mut(&home) {
                    revoked.push(*id);
                }
            }
        }
        for mapping in closed {
            mapping.gate.drained().await;
        }
    }

    /// Waits out a mapping's operations, then tells its home that it is not used any more.
    pub(crate) fn release(self: &Arc<Self>, mapping: Arc<Mapping>) {
        let node = self.clone();
        let task = async move {
            mapping.gate.close();
            mapping.gate.drained().await;
            node.mappings.remove(&mapping);
            let home = (mapping.home, mapping.home_life);
            node.insist(home, &Ask::Unmap { mapping: mapping.id }).await;
        };
        self.platform.spawn("lite-unmap", Box::pin(task));
    }
}
