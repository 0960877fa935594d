//! Event queues and completion queues.

use super::{Node, Queue};

/// A parsed completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub qpn: u32,
    pub wqe: u16,
    pub send: bool,
    pub opcode: u8,
    pub len: u32,
    pub imm: u32,
    pub syndrome: u8,
    pub vendor: u8,
}

impl Node {
    /// Returns the length of an entry in event and completion queues, in bytes.
    pub fn entry_len(&self) -> u64 {
        if self.card.profile().large_entries { 64 } else { 32 }
    }

    pub fn create_eq(&mut self, eqn: u32, log_entries: u32) -> u64 {
        let len = self.entry_len() << log_entries;
        let at = self.alloc(len);
        let mtt = self.map_pages(at, len);
        self.command(0x013, 0, eqn, &[(0x00, 9 << 8), (0x0c, log_entries << 24), (0x14, 3), (0x1c, mtt)]);
        self.eq = at;
        at
    }

    pub fn create_cq(&mut self, cqn: u32, eqn: u32, log_entries: u32) -> (u64, u64) {
        self.create_flagged_cq(cqn, eqn, log_entries, 0)
    }

    /// Creates a completion queue with flags in its context.
    pub fn create_flagged_cq(&mut self, cqn: u32, eqn: u32, log_entries: u32, flags: u32) -> (u64, u64) {
        let len = self.entry_len() << log_entries;
        let (at, record) = (self.alloc(len), self.alloc(8));
        self.machine.put(record, &[0; 8]);
        let mtt = self.map_pages(at, len);
        self.command(
            0x016,
            0,
            cqn,
            &[(0x00, flags), (0x0c, log_entries << 24), (0x14, eqn), (0x1c, mtt), (0x3c, record as u32)],
        );
        (at, record)
    }

    /// Replaces the buffer of the queue's completion queue. Moves the waiting entries as Linux does: those
    /// before the resize entry move one index up, because that entry counts too.
    pub fn resize_cq(&mut self, queue: &mut Queue, log_entries: u32) {
        const RESIZE: u8 = 0x16;
        let at = self.alloc(32 << log_entries);
        let mtt = self.map_pages(at, 32 << log_entries);
        self.command(0x02c, 0, queue.cqn, &[(0x0c, log_entries << 24), (0x1c, mtt)]);
        let mut index = queue.cq_index;
        loop {
            let old = queue.cq + u64::from(index & ((1 << queue.cq_log) - 1)) * 32;
            let mut entry = self.machine.bytes(old, 32);
            if entry[31] & 0x1f == RESIZE {
                break;
            }
            index += 1;
            let lap = (index >> log_entries & 1) as u8;
            entry[31] = entry[31] & 0x7f | lap << 7;
            self.machine.put(at + u64::from(index & ((1 << log_entries) - 1)) * 32, &entry);
        }
        queue.cq_index += 1;
        (queue.cq, queue.cq_log) = (at, log_entries);
        self.machine.put(queue.cq_record, &queue.cq_index.to_be_bytes());
    }

    /// Returns the bytes of the completion that [`poll`](Self::poll) returned last.
    pub fn last_entry(&self, queue: &Queue) -> Vec<u8> {
        let index = queue.cq_index.wrapping_sub(1) & ((1 << queue.cq_log) - 1);
        self.machine.bytes(queue.cq + u64::from(index) * 32, 32)
    }

    /// Returns the next completion, if there is one.
    pub fn poll(&mut self, queue: &mut Queue) -> Option<Entry> {
        let at = queue.cq + u64::from(queue.cq_index & ((1 << queue.cq_log) - 1)) * 32;
        let word = |offset| self.machine.be32(at + offset);
        let last = word(0x1c);
        if last >> 7 & 1 != queue.cq_index >> queue.cq_log & 1 {
            return None;
        }
        let opcode = (last & 0x1f) as u8;
        let entry = Entry {
            qpn: word(0) & 0xff_ffff,
            wqe: (word(0x18) >> 16) as u16,
            send: last & 0x40 != 0,
            opcode,
            len: word(0x14),
            imm: word(0x04),
            syndrome: if opcode == 0x1e { word(0x18) as u8 } else { 0 },
            vendor: if opcode == 0x1e { (word(0x18) >> 8) as u8 } else { 0 },
        };
        queue.cq_index += 1;
        self.machine.put(queue.cq_record, &queue.cq_index.to_be_bytes());
        Some(entry)
    }
}
