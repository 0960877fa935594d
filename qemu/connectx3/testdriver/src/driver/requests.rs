//! Work requests and their segments.

use super::{KEY, LOG_ENTRIES, LOG_STRIDE, Node, Queue, gid_words};
use verbs::{Gid, MacAddr};

impl Node {
    /// Posts a signaled send work request with an opcode and the words after the control segment, and rings
    /// the doorbell.
    pub fn post_send(&mut self, queue: &mut Queue, opcode: u32, imm: u32, words: &[u32]) {
        self.write_send(queue, opcode, imm, words);
        self.ring(queue);
    }

    /// Rings the doorbell.
    pub fn ring(&mut self, queue: &Queue) {
        self.card.write_bar2(0x80_000 + 0x14, &(queue.qpn << 8).to_be_bytes(), &self.machine);
    }

    /// Writes a send work request without ringing the doorbell.
    pub fn write_send(&mut self, queue: &mut Queue, opcode: u32, imm: u32, words: &[u32]) {
        self.write_flagged(queue, opcode, 0, imm, words);
    }

    /// Writes a send work request with control flags in addition to the one for a completion.
    pub fn write_flagged(&mut self, queue: &mut Queue, opcode: u32, flags: u32, imm: u32, words: &[u32]) {
        let at = queue.send + u64::from(queue.send_index & ((1 << LOG_ENTRIES) - 1)) * (1 << LOG_STRIDE);
        let units = 1 + (words.len() as u32).div_ceil(4);
        for (i, word) in words.iter().enumerate() {
            self.machine.put(at + 16 + 4 * i as u64, &word.to_be_bytes());
        }
        for (i, word) in [units, 0xc | flags, imm].into_iter().enumerate() {
            self.machine.put(at + 4 + 4 * i as u64, &word.to_be_bytes());
        }
        let owner = (queue.send_index >> LOG_ENTRIES & 1) << 31;
        self.machine.put(at, &(owner | opcode).to_be_bytes());
        queue.send_index += 1;
    }

    pub fn post_receive(&mut self, queue: &mut Queue, at: u64, len: u32) {
        self.post_receive_of(queue, KEY, at, len);
    }

    pub fn post_receive_of(&mut self, queue: &mut Queue, key: u32, at: u64, len: u32) {
        let entry = queue.receive + u64::from(queue.posted & ((1 << LOG_ENTRIES) - 1)) * (1 << LOG_STRIDE);
        for (i, word) in [len, key, (at >> 32) as u32, at as u32, 0, 0x100, 0, 0].into_iter().enumerate() {
            self.machine.put(entry + 4 * i as u64, &word.to_be_bytes());
        }
        queue.posted += 1;
        self.machine.put(queue.record, &queue.posted.to_be_bytes());
    }
}

/// Returns the words of a data segment.
pub fn data(at: u64, len: u32) -> [u32; 4] {
    data_of(KEY, at, len)
}

/// Returns the words of a data segment with a key.
pub fn data_of(key: u32, at: u64, len: u32) -> [u32; 4] {
    [len, key, (at >> 32) as u32, at as u32]
}

/// Returns the words of an untagged datagram segment: from a row of the GID table, to a GID, an Ethernet
/// address and a queue pair.
pub fn datagram(row: u32, gid: Gid, mac: MacAddr, qpn: u32, qkey: u32) -> Vec<u32> {
    const NO_VLAN: u32 = 0xffff;
    let [a, b, c, d, e, f] = mac.0.map(u32::from);
    let mut words = vec![1 << 24, 0, row << 16 | 64, 0];
    words.extend(gid_words(gid));
    words.extend([qpn, qkey, NO_VLAN << 16 | a << 8 | b, c << 24 | d << 16 | e << 8 | f]);
    words
}

/// Returns the words of a remote address segment.
pub fn remote(at: u64, key: u32) -> [u32; 4] {
    [(at >> 32) as u32, at as u32, key, 0]
}
