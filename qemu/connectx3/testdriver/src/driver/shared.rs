//! Shared receive queues.

use super::{KEY, LOG_ENTRIES, LOG_STRIDE, Node, PD};

/// The driver's record of a shared receive queue.
pub struct SharedQueue {
    pub srqn: u32,
    at: u64,
    record: u64,
    posted: u32,
}

impl Node {
    /// Creates a shared receive queue whose entries are linked in order.
    pub fn create_srq(&mut self, srqn: u32) -> SharedQueue {
        self.create_xrc_srq(srqn, 0, 0, PD)
    }

    /// Creates a shared receive queue of an XRC domain and a protection domain, with completions in `cqn`.
    pub fn create_xrc_srq(&mut self, srqn: u32, domain: u32, cqn: u32, pd: u32) -> SharedQueue {
        let len = 1u64 << (LOG_ENTRIES + LOG_STRIDE);
        let (at, record) = (self.alloc(len), self.alloc(4));
        let mtt = self.map_pages(at, len);
        for entry in 0..1u32 << LOG_ENTRIES {
            let next = (entry + 1) & ((1 << LOG_ENTRIES) - 1);
            self.machine.put(at + (u64::from(entry) << LOG_STRIDE), &next.to_be_bytes());
        }
        self.command(
            0x035,
            0,
            srqn,
            &[
                (0x00, LOG_ENTRIES << 24 | srqn),
                (0x04, (LOG_STRIDE - 4) << 24 | domain),
                (0x08, cqn),
                (0x14, mtt),
                (0x18, pd),
                (0x2c, record as u32),
            ],
        );
        SharedQueue { srqn, at, record, posted: 0 }
    }

    pub fn post_shared(&mut self, queue: &mut SharedQueue, at: u64, len: u32) {
        let entry = queue.at + u64::from(queue.posted & ((1 << LOG_ENTRIES) - 1)) * (1 << LOG_STRIDE);
        for (i, word) in [len, KEY, (at >> 32) as u32, at as u32, 0, 0x100, 0, 0].into_iter().enumerate() {
            self.machine.put(entry + 16 + 4 * i as u64, &word.to_be_bytes());
        }
        queue.posted += 1;
        self.machine.put(queue.record, &queue.posted.to_be_bytes());
    }
}
