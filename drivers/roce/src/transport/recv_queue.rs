//! The ring of receive work requests, allocated once.

use super::send_queue::{check_list, scatter};
use alloc::boxed::Box;
use alloc::vec;
use platform::{IoAddr, Memory, MemoryError};
use verbs::{RecvWr, Sge, VerbsError, WrId};

#[derive(Clone, Copy)]
struct Wqe {
    id: WrId,
    sges: u8,
    len: u32,
}

/// The ring. Positions only grow; `head..tail` are queued.
pub(super) struct RecvQueue {
    ring: Box<[Wqe]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    depth: u64,
    head: u64,
    tail: u64,
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Self {
        let slots = (depth as usize).next_power_of_two();
        let max_sge = max_sge as usize;
        Self {
            ring: vec![Wqe { id: WrId(0), sges: 0, len: 0 }; slots].into(),
            sges: vec![Sge { addr: IoAddr(0), len: 0 }; slots * max_sge].into(),
            max_sge,
            depth: u64::from(depth),
            head: 0,
            tail: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    fn slot(&self, position: u64) -> usize {
        // The ring's length is a power of two.
        position as usize & (self.ring.len() - 1)
    }

    /// Appends `work`.
    pub(super) fn push(&mut self, work: &RecvWr<'_>, memory: &dyn Memory) -> Result<(), VerbsError> {
        if self.tail - self.head >= self.depth {
            return Err(VerbsError::NoResources);
        }
        let len = check_list(work.scatter, memory)?;
        let slot = self.slot(self.tail);
        let start = slot * self.max_sge;
        let to = self.sges.get_mut(start..start + self.max_sge);
        let to = to.and_then(|to| to.get_mut(..work.scatter.len())).ok_or(VerbsError::InvalidArgument)?;
        to.copy_from_slice(work.scatter);
        if let Some(wqe) = self.ring.get_mut(slot) {
            *wqe = Wqe { id: work.id, sges: work.scatter.len() as u8, len };
        }
        self.tail += 1;
        Ok(())
    }

    fn front(&self) -> Option<&Wqe> {
        if self.is_empty() { None } else { self.ring.get(self.slot(self.head)) }
    }

    /// Returns the capacity of the oldest receive, in bytes.
    pub(super) fn capacity(&self) -> Option<u32> {
        self.front().map(|wqe| wqe.len)
    }

    /// Removes the oldest receive.
    pub(super) fn pop(&mut self) -> Option<WrId> {
        let id = self.front()?.id;
        self.head += 1;
        Some(id)
    }

    /// Copies `data` into the oldest receive, from `offset` on.
    pub(super) fn scatter(&self, offset: u32, data: &[u8], memory: &dyn Memory) -> Result<(), MemoryError> {
        let wqe = self.front().ok_or(MemoryError::OutOfRange)?;
        let start = self.slot(self.head) * self.max_sge;
        let list = self.sges.get(start..start + usize::from(wqe.sges)).unwrap_or(&[]);
        scatter(list, offset, data, memory)
    }
}
