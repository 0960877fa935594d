//! The shadow of each node's memory: the incarnations that may change each byte.
//!
//! A byte of a region belongs to the region's owner. Those incarnations may change it by RDMA that
//! map the region, as its owner knows, and the owner itself. Neither the writer nor the owner may
//! be an incarnation that all members have cut off. Members do not wait for a node that has ended:
//! the memory of a node that does not yet know of its own end is nobody's. [`Watched`] is the
//! memory as the software RNIC sees it: it judges each byte that a frame of another machine
//! changes, whichever value the byte gets. The memory of emulated cards is not judged.

use lite::testing::{Bytes, Host, has_cut_off, may_change, region_owner};
use lite::{Incarnation, Lite, NodeId};
use platform::{Arena, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The number of a machine: each incarnation of a node runs on a machine of its own.
pub(crate) type Serial = u64;

/// The offset of the operation code in a frame of RoCE v2 over IPv4: behind Ethernet, IPv4 and UDP.
const OPCODE: usize = 14 + 20 + 8;
/// The bits of the operation code that name the operation.
const OPERATION: u8 = 0x1f;

/// Returns whether a frame is a request to write or an atomic.
fn changes_memory(frame: &[u8]) -> bool {
    matches!(frame.get(OPCODE).map(|code| code & OPERATION), Some(6..=11 | 19 | 20))
}

#[derive(Default)]
struct State {
    /// The nodes that have started, by their machines.
    nodes: BTreeMap<Serial, (Lite, Arc<Host>)>,
    violation: Option<String>,
    /// The number of changes of regions that were judged.
    judged: u64,
}

/// The shadows of all nodes.
#[derive(Default)]
pub(crate) struct Shadows(Mutex<State>);

impl Shadows {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under the lock")
    }

    /// Records that a node has started on a machine.
    pub(crate) fn started(&self, machine: Serial, lite: &Lite, host: &Arc<Host>) {
        self.lock().nodes.insert(machine, (lite.clone(), host.clone()));
    }

    /// Returns the first change by an incarnation that had no right to it.
    pub(crate) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    /// Returns the number of changes of regions that were judged.
    pub(crate) fn judged(&self) -> u64 {
        self.lock().judged
    }

    /// Judges a change of bytes of machine `at` by a frame of machine `by`.
    fn judge(&self, at: Serial, by: Serial, bytes: Bytes) {
        let mut state = self.lock();
        let State { nodes, violation, judged } = &mut *state;
        let (Some((node, _)), Some((writer, _))) = (nodes.get(&at), nodes.get(&by)) else { return };
        let Some(owner) = region_owner(node, bytes) else { return };
        *judged += 1;
        if violation.is_none() {
            *violation = wrong(nodes, node, id(writer), owner, bytes);
        }
    }
}

type MemberId = (NodeId, Incarnation);

fn id(lite: &Lite) -> MemberId {
    (lite.node_id(), lite.incarnation())
}

/// Returns the reason for which `writer` may not change `bytes` of `node`, which are a part of a region of
/// `owner`.
fn wrong(
    nodes: &BTreeMap<Serial, (Lite, Arc<Host>)>,
    node: &Lite,
    writer: MemberId,
    owner: MemberId,
    bytes: Bytes,
) -> Option<String> {
    let find = |member: MemberId| nodes.values().find(|(lite, _)| id(lite) == member);
    let live = |member| find(member).filter(|(lite, host)| !host.is_dead() && lite.is_member());
    let mut all = nodes.values().filter(|(_, host)| !host.is_dead()).map(|(lite, _)| lite);
    let have_cut_off = |by: &[MemberId], ended: MemberId, witness: &Lite| {
        live(ended).is_none() && by.iter().all(|by| has_cut_off(*by, ended, witness))
    };
    let change = format!("{writer:?} changes {bytes:?} of {:?}, a region of {owner:?}", id(node));
    if all.clone().any(|witness| have_cut_off(&[id(node)], writer, witness)) {
        return Some(format!("{change}: all members know of the writer's end"));
    }
    // A writer that has ended too is not waited for: the node keeps the memory until it has cut it off.
    if all.any(|witness| have_cut_off(&[id(node), writer], owner, witness)) {
        return Some(format!("{change}: all members know of the owner's end"));
    }
    let (owning, _) = live(owner)?;
    let may = may_change(owning, writer, node, bytes);
    (!may).then(|| format!("{change}: the writer does not map it"))
}

/// The sender of the frame that a port delivers at present.
#[derive(Default)]
pub(crate) struct Sender(AtomicU64);

/// The value without a frame.
const NONE: u64 = 0;

impl Sender {
    /// Calls `deliver` with a frame from machine `from`.
    pub(crate) fn during(&self, from: Serial, frame: &[u8], deliver: impl FnOnce(&[u8])) {
        self.0.store(if changes_memory(frame) { from } else { NONE }, Ordering::Relaxed);
        deliver(frame);
        self.0.store(NONE, Ordering::Relaxed);
    }
}

/// The memory of a machine as its RNIC sees it.
pub(crate) struct Watched {
    arena: Arc<Arena>,
    machine: Serial,
    sender: Arc<Sender>,
    /// The shadows know the nodes, which have this memory.
    shadows: Weak<Shadows>,
}

impl Watched {
    pub(crate) fn new(host: &Host, machine: Serial, sender: Arc<Sender>, shadows: &Arc<Shadows>) -> Self {
        Self { arena: host.arena(), machine, sender, shadows: Arc::downgrade(shadows) }
    }

    fn changes(&self, addr: IoAddr, len: usize) {
        let by = self.sender.0.load(Ordering::Relaxed);
        if by != NONE
            && len > 0
            && let Some(shadows) = self.shadows.upgrade()
        {
            shadows.judge(self.machine, by, Bytes { addr, len: len as u64 });
        }
    }
}

impl Memory for Watched {
    fn range(&self) -> (IoAddr, u64) {
        self.arena.range()
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.arena.check(addr, len)
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.arena.read(addr, buf)
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        self.changes(addr, data.len());
        self.arena.write(addr, data)
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        self.arena.fill(addr, len, byte)
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.arena.copy(src, dst, len)
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.changes(addr, 8);
        self.arena.fetch_add(addr, add)
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.changes(addr, 8);
        self.arena.compare_swap(addr, compare, swap)
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        self.arena.lend(len)
    }

    fn stats(&self) -> MemoryStats {
        self.arena.stats()
    }

    fn take_least_free(&self) -> u64 {
        self.arena.take_least_free()
    }

    fn largest_free(&self) -> u64 {
        self.arena.largest_free()
    }
}
