//! NUMA nodes: the system resource affinity table (SRAT; ACPI 6.5, 5.2.16) and the distances between nodes
//! (SLIT; 5.2.17).

use alloc::vec::Vec;
use core::ops::Range;

use crate::Bytes;

/// The most nodes that are told apart. Memory and processors of further ones have no node.
pub const MAX_NODES: usize = 64;
/// The distance of a node from itself, and the one that is assumed for others without a SLIT.
const LOCAL: u8 = 10;
const REMOTE: u8 = 20;

/// The nodes of a machine. A node has a number below [`MAX_NODES`], in the order of its first mention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// The proximity domain of each node.
    domains: Vec<u32>,
    /// Memory and its node.
    memory: Vec<(Range<u64>, usize)>,
    /// Local APIC ids and their nodes.
    processors: Vec<(u32, usize)>,
    /// PCI functions and their nodes: segment, then bus, device and function.
    functions: Vec<(u16, u16, usize)>,
    /// Distances by proximity domain, in rows.
    distances: Vec<u8>,
    /// The length of a row of `distances`.
    width: usize,
}

impl Numa {
    /// Reads an SRAT and, if there is one, a SLIT.
    #[must_use]
    pub fn read(srat: Bytes<'_>, slit: Option<Bytes<'_>>) -> Self {
        let mut found = Self::default();
        for (kind, s) in srat.structures(48) {
            // A structure that is too short says nothing.
            let _ = found.structure(kind, s);
        }
        if let Some(slit) = slit {
            found.width =
                slit.u64(36).and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= 4096).unwrap_or(0);
            found.distances = slit.0.get(44..).unwrap_or_default().to_vec();
        }
        found
    }

    fn structure(&mut self, kind: u8, s: Bytes<'_>) -> Option<()> {
        let enabled = |at| s.u32(at).is_some_and(|flags| flags & 1 != 0);
        match kind {
            0 if enabled(4) => {
                let upper = [s.u8(9)?, s.u8(10)?, s.u8(11)?];
                let domain = u32::from_le_bytes([s.u8(2)?, upper[0], upper[1], upper[2]]);
                let id = u32::from(s.u8(3)?);
                let node = self.node(domain)?;
                self.processors.push((id, node));
            }
            1 if enabled(28) => {
                let (start, len) = (s.u64(8)?, s.u64(16)?);
                let node = self.node(s.u32(2)?)?;
                self.memory.push((start..start.saturating_add(len), node));
            }
            2 if enabled(12) => {
                let node = self.node(s.u32(4)?)?;
                self.processors.push((s.u32(8)?, node));
            }
            // A device that is no processor, by its PCI address.
            5 if enabled(24) && s.u8(3)? == 1 => {
                let node = self.node(s.u32(4)?)?;
                self.functions.push((s.u16(8)?, s.u16(10)?, node));
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the number of a proximity domain's node.
    fn node(&mut self, domain: u32) -> Option<usize> {
        if let Some(node) = self.domains.iter().position(|d| *d == domain) {
            return Some(node);
        }
        (self.domains.len() < MAX_NODES).then(|| {
            self.domains.push(domain);
            self.domains.len() - 1
        })
    }

    /// Returns the number of nodes; 0 if the firmware describes none.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.domains.len()
    }

    /// Returns the node of the processor with a local APIC id.
    #[must_use]
    pub fn node_of(&self, apic_id: u32) -> Option<usize> {
        self.processors.iter().find(|(id, _)| *id == apic_id).map(|(_, node)| *node)
    }

    /// Returns the node of a PCI function, if the SRAT names it. `address` is the bus in the upper
    /// 8 bits, the device in 5, the function in 3.
    #[must_use]
    pub fn node_of_function(&self, segment: u16, address: u16) -> Option<usize> {
        let found = self.functions.iter().find(|(s, a, _)| (*s, *a) == (segment, address));
        found.map(|(_, _, node)| *node)
    }

    /// Returns the memory of a node.
    pub fn memory_of(&self, node: usize) -> impl Iterator<Item = Range<u64>> + '_ {
        self.memory.iter().filter(move |(_, of)| *of == node).map(|(range, _)| range.clone())
    }

    /// Returns all nodes, the nearest to `node` first: the node itself, then by distance, then by number.
    #[must_use]
    pub fn nearest(&self, node: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.nodes()).collect();
        order.sort_by_key(|other| (*other != node, self.distance(node, *other), *other));
        order
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        let domain = |node: usize| self.domains.get(node).and_then(|d| usize::try_from(*d).ok());
        let told = || {
            let (from, to) = (domain(from)?, domain(to)?);
            if from >= self.width || to >= self.width {
                return None;
            }
            self.distances.get(from * self.width + to).copied()
        };
        told().unwrap_or(if from == to { LOCAL } else { REMOTE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn srat(structures: &[Vec<u8>]) -> Vec<u8> {
        let mut table = vec![0; 48];
        structures.iter().for_each(|s| table.extend_from_slice(s));
        table
    }

    fn processor(domain: u8, id: u8) -> Vec<u8> {
        vec![0, 16, domain, id, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    fn processor_x2apic(domain: u32, id: u32) -> Vec<u8> {
        let mut s = vec![2, 24, 0, 0];
        for word in [domain, id, 1, 0, 0] {
            s.extend_from_slice(&word.to_le_bytes());
        }
        s
    }

    fn memory(domain: u32, start: u64, len: u64, flags: u32) -> Vec<u8> {
        let mut s = vec![1, 40];
        s.extend_from_slice(&domain.to_le_bytes());
        s.extend_from_slice(&[0; 2]);
        s.extend_from_slice(&start.to_le_bytes());
        s.extend_from_slice(&len.to_le_bytes());
        s.extend_from_slice(&[0; 4]);
        s.extend_from_slice(&flags.to_le_bytes());
        s.resize(40, 0);
        s
    }

    fn device(domain: u32, segment: u16, address: u16) -> Vec<u8> {
        let mut s = vec![5, 32, 0, 1];
        s.extend_from_slice(&domain.to_le_bytes());
        s.extend_from_slice(&segment.to_le_bytes());
        s.extend_from_slice(&address.to_le_bytes());
        s.resize(24, 0);
        s.extend_from_slice(&1u32.to_le_bytes());
        s.resize(32, 0);
        s
    }

    /// Four sockets, as servers with two boards describe them: the distance tells the boards apart.
    #[test]
    fn four_nodes() {
        let slit = {
            let mut slit = vec![0; 36];
            slit.extend_from_slice(&4u64.to_le_bytes());
            slit.extend_from_slice(&[10, 30, 21, 30, 30, 10, 30, 21, 21, 30, 10, 30, 30, 21, 30, 10]);
            slit
        };
        let srat = srat(&[
            processor(0, 0),
            processor(1, 2),
            processor_x2apic(2, 256),
            processor_x2apic(3, 0x1_0000),
            memory(0, 0, 0xa_0000, 1),
            memory(0, 1 << 20, 1 << 31, 1),
            memory(1, 4 << 30, 1 << 30, 1),
            memory(2, 8 << 30, 1 << 30, 1),
            memory(3, 16 << 30, 1 << 30, 0),
            device(2, 1, 0x8100),
        ]);
        let numa = Numa::read(Bytes(&srat), Some(Bytes(&slit)));
        assert_eq!(numa.nodes(), 4);
        assert_eq!(
            [0, 2, 256, 0x1_0000, 7].map(|id| numa.node_of(id)),
            [Some(0), Some(1), Some(2), Some(3), None]
        );
        assert_eq!(numa.memory_of(0).collect::<Vec<_>>(), [0..0xa_0000, 1 << 20..(1 << 31) + (1 << 20)]);
        assert_eq!(numa.memory_of(3).count(), 0);
        assert_eq!(numa.nearest(0), [0, 2, 1, 3]);
        assert_eq!(numa.nearest(1), [1, 3, 0, 2]);
        assert_eq!((numa.node_of_function(1, 0x8100), numa.node_of_function(0, 0x8100)), (Some(2), None));
        // Without distances, each other node is equally far.
        assert_eq!(Numa::read(Bytes(&srat), None).nearest(2), [2, 0, 1, 3]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(
            srat in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
            slit in proptest::collection::vec(proptest::num::u8::ANY, 0..100),
        ) {
            let numa = Numa::read(Bytes(&srat), Some(Bytes(&slit)));
            for node in 0..numa.nodes() {
                let mut order = numa.nearest(node);
                proptest::prop_assert_eq!(order[0], node);
                order.sort_unstable();
                proptest::prop_assert_eq!(order, (0..numa.nodes()).collect::<Vec<_>>());
            }
        }
    }
}
