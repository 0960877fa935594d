//! Queue pairs, and their connections.

use super::{LOG_CQ, LOG_ENTRIES, LOG_STRIDE, Node, PD};

/// The code of the path MTU 1024.
const MTU_1024: u32 = 3;

/// The driver's record of a queue pair.
pub struct Queue {
    pub qpn: u32,
    pub cqn: u32,
    pub send: u64,
    pub send_index: u32,
    pub receive: u64,
    pub posted: u32,
    pub record: u64,
    pub cq: u64,
    pub cq_record: u64,
    pub cq_log: u32,
    pub cq_index: u32,
}

/// The properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub pd: u32,
    /// True for a kernel's queue pair, which may use FAST_REG and the reserved key.
    pub kernel: bool,
    /// The peer's rights: READ 4, WRITE 2, atomics 1.
    pub rights: u32,
    /// The number of retries when the peer is not ready; 7 means no limit.
    pub rnr_retries: u32,
    /// The service code: 0 RC, 1 UC, 3 UD, 6 XRC, 7 headers built by the driver.
    pub service: u32,
    pub qkey: u32,
    /// The shared receive queue, if the queue pair uses one.
    pub srqn: Option<u32>,
    /// The XRC domain.
    pub domain: u32,
    /// True if the completion queue has timestamps.
    pub stamps: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            pd: PD,
            kernel: true,
            rights: 7,
            rnr_retries: 7,
            service: 0,
            qkey: 0,
            srqn: None,
            domain: 0,
            stamps: false,
        }
    }
}

impl Node {
    /// Creates a queue pair with its own completion queue, and connects it to `peer`.
    pub fn connect(&mut self, qpn: u32, cqn: u32, peer: &Self, peer_qpn: u32) -> Queue {
        self.connect_as(qpn, cqn, peer, peer_qpn, Setup::default())
    }

    /// Creates and connects a queue pair with the given properties.
    pub fn connect_as(&mut self, qpn: u32, cqn: u32, peer: &Self, peer_qpn: u32, setup: Setup) -> Queue {
        let queue = self.ready_to_receive(qpn, cqn, peer, peer_qpn, setup);
        self.ready_to_send(&queue, peer_qpn, setup);
        queue
    }

    /// Makes a queue pair that is ready to receive also ready to send.
    pub fn ready_to_send(&mut self, queue: &Queue, peer_qpn: u32, setup: Setup) {
        let counts = 4 << 21 | 7 << 16 | setup.rnr_retries << 13;
        let words = [(0x20, 14 << 27), (0x70, counts), (0x78, (100 + peer_qpn) & 0xff_ffff)];
        self.command(0x01b, 0, queue.qpn, &context(&words));
    }

    /// Creates a queue pair that is ready to receive.
    pub fn ready_to_receive(
        &mut self,
        qpn: u32,
        cqn: u32,
        peer: &Self,
        peer_qpn: u32,
        setup: Setup,
    ) -> Queue {
        let (cq, cq_record) = self.create_flagged_cq(cqn, 0, LOG_CQ, u32::from(setup.stamps) << 19);
        let ring = 1u64 << (LOG_ENTRIES + LOG_STRIDE);
        let (buffer, record) = (self.alloc(2 * ring), self.alloc(4));
        self.machine.put(record, &[0; 4]);
        for entry in 0..1u64 << LOG_ENTRIES {
            self.machine.put(buffer + (entry << LOG_STRIDE), &[0xff, 0xff, 0xff, 0xff]);
        }
        let mtt = self.map_pages(buffer, 2 * ring);
        let size = LOG_ENTRIES << 3 | (LOG_STRIDE - 4);
        self.command(
            0x019,
            0,
            qpn,
            &context(&[
                (0x00, setup.service << 16),
                (0x04, setup.pd),
                (0x08, MTU_1024 << 29 | size << 16 | size << 8 | u32::from(setup.kernel) << 4),
                (0x10, qpn),
                (0x70, u32::from(setup.kernel) << 11),
                (0x7c, cqn),
                (0x90, setup.rights << 13),
                (0x98, setup.domain),
                (0x9c, cqn),
                (0xa4, record as u32),
                (0xa8, setup.qkey),
                (0xac, setup.srqn.map_or(0, |srqn| 1 << 24 | srqn)),
                (0xcc, mtt),
            ]),
        );
        self.command(0x01a, 0, qpn, &self.path_to(peer, qpn, peer_qpn));
        Queue {
            qpn,
            cqn,
            send: buffer,
            send_index: 0,
            receive: buffer + ring,
            posted: 0,
            record,
            cq,
            cq_record,
            cq_log: LOG_CQ,
            cq_index: 0,
        }
    }

    /// Returns the mailbox that makes a queue pair ready to receive from `peer`.
    pub fn path_to(&self, peer: &Self, qpn: u32, peer_qpn: u32) -> Vec<(usize, u32)> {
        let mut path = vec![
            (0x08, MTU_1024 << 29 | if self.roce_v1 { 0 } else { 2 << 6 }),
            // No counter and the first source address; on InfiniBand, the peer's LID.
            (0x1c, if self.slave { 127 << 24 } else { u32::from(peer.lid) }),
            (0x14, peer_qpn),
            (0x94, 100 + qpn),
            (0x20, 64),
            (0x38, 0x8300_0000),
        ];
        for (i, word) in peer.gid.0.chunks(4).enumerate() {
            path.push((0x28 + 4 * i, u32::from_be_bytes(word.try_into().unwrap())));
        }
        let [a, b, c, d, e, f] = peer.mac.0;
        path.push((0x3c, u32::from_be_bytes([0, 0, a, b])));
        path.push((0x40, u32::from_be_bytes([c, d, e, f])));
        let mut path = context(&path);
        // The path is marked as an optional parameter, because a master checks that.
        path.push((0, 1 << 7));
        path
    }
}

/// Moves words of a context to their offsets in the mailbox.
fn context(words: &[(usize, u32)]) -> Vec<(usize, u32)> {
    words.iter().map(|&(offset, word)| (offset + 8, word)).collect()
}
