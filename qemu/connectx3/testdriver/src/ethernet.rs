//! Raw Ethernet queue pairs as a driver creates them, and frames.

use super::driver::{KEY, LOG_CQ, LOG_ENTRIES, LOG_STRIDE, Node, PD, Queue};

/// The length of a receive buffer, in bytes.
pub const BUFFER: u32 = 2048;

impl Node {
    /// Creates a raw Ethernet queue pair that is ready to send. `words` are additional words of its context.
    pub fn raw(&mut self, qpn: u32, cqn: u32, words: &[(usize, u32)]) -> Queue {
        let (cq, cq_record) = self.create_cq(cqn, self.eqn, LOG_CQ);
        let ring = 1u64 << (LOG_ENTRIES + LOG_STRIDE);
        let (buffer, record) = (self.alloc(2 * ring), self.alloc(4));
        for entry in 0..1u64 << LOG_ENTRIES {
            self.machine.put(buffer + (entry << LOG_STRIDE), &[0xff; 4]);
        }
        let mtt = self.map_pages(buffer, 2 * ring);
        let size = LOG_ENTRIES << 3 | (LOG_STRIDE - 4);
        let mut context = vec![
            (0x00, 7 << 16),
            (0x04, PD),
            (0x08, 0xff00_0000 | size << 16 | size << 8),
            (0x10, qpn),
            (0x20, 1 << 24),
            (0x38, 0x8300_0000),
            (0x7c, cqn),
            (0x9c, cqn),
            (0xa4, record as u32),
            (0xcc, mtt),
        ];
        for &(offset, word) in words {
            match context.iter_mut().find(|(place, _)| *place == offset) {
                Some((_, present)) => *present |= word,
                None => context.push((offset, word)),
            }
        }
        let context: Vec<_> = context.into_iter().map(|(offset, word)| (offset + 8, word)).collect();
        for transition in [0x019, 0x01a, 0x01b] {
            self.command(transition, 0, qpn, &context);
        }
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

    /// Posts receive buffers and returns their addresses.
    pub fn post_buffers(&mut self, queue: &mut Queue, count: usize) -> Vec<u64> {
        let places: Vec<_> = (0..count).map(|_| self.alloc(u64::from(BUFFER))).collect();
        places.iter().for_each(|&at| self.post_receive(queue, at, BUFFER));
        places
    }

    /// Writes a work request: opcode, second and third word of the control segment, and the bytes after it.
    /// Does not ring the doorbell.
    pub fn write_request(&mut self, queue: &mut Queue, opcode: u32, word1: u32, flags: u32, rest: &[u8]) {
        let bytes = (16 + rest.len()).next_multiple_of(16);
        let mask = (1 << LOG_ENTRIES) - 1;
        let first = u64::from(queue.send_index & mask) << LOG_STRIDE;
        let ring = 1u64 << (LOG_ENTRIES + LOG_STRIDE);
        for (index, byte) in rest.iter().enumerate() {
            let at = (first + 16 + index as u64) % ring;
            self.machine.put(queue.send + at, &[*byte]);
        }
        for (index, word) in [word1 | (bytes / 16) as u32, flags, 0].into_iter().enumerate() {
            self.machine.put(queue.send + first + 4 + 4 * index as u64, &word.to_be_bytes());
        }
        let owner = (queue.send_index >> LOG_ENTRIES & 1) << 31;
        self.machine.put(queue.send + first, &(owner | opcode).to_be_bytes());
        queue.send_index += bytes.div_ceil(1 << LOG_STRIDE) as u32;
    }

    /// Sends a frame as libmlx4 does for a raw queue pair: the control segment also contains the destination.
    pub fn send_looped(&mut self, queue: &mut Queue, frame: &[u8]) {
        let at = self.alloc(frame.len() as u64);
        self.machine.put(at, frame);
        let [a, b, rest @ ..] = &frame[..6] else { panic!("a frame has a destination") };
        let place = queue.send + (u64::from(queue.send_index & ((1 << LOG_ENTRIES) - 1)) << LOG_STRIDE);
        let flags = u32::from(*a) << 24 | u32::from(*b) << 16 | 0x0c;
        self.write_request(queue, 0x0a, 0, flags, &segment(at, frame.len()));
        self.machine.put(place + 12, rest);
        self.ring(queue);
    }

    /// Adds a rule of device-managed steering that sends frames for an address to a queue pair. `flags` are
    /// those of its control block.
    pub fn add_rule(&mut self, qpn: u32, to: [u8; 6], flags: u32) {
        let [a, b, c, d, e, f] = to;
        let words = [
            (0x00, 0x1000 << 16 | flags),
            (0x04, 1),
            (0x08, qpn),
            (0x10, 12 << 24 | 0xe001),
            (0x18, u32::from_be_bytes([0, 0, a, b])),
            (0x1c, u32::from_be_bytes([c, d, e, f])),
            (0x20, 0x0000_ffff),
            (0x24, u32::MAX),
        ];
        self.command(0x065, 0, 16, &words);
    }

    /// Sends a frame. If `checksums` is set, the card inserts checksums; `word1` may contain a VLAN tag.
    pub fn send_frame(&mut self, queue: &mut Queue, frame: &[u8], checksums: bool, word1: u32) {
        let at = self.alloc(frame.len() as u64);
        self.machine.put(at, frame);
        let flags = if checksums { 0x3c } else { 0x0c };
        self.write_request(queue, 0x0a, word1, flags, &segment(at, frame.len()));
        self.ring(queue);
    }

    /// Returns the 32 bytes of the next completion, if there is one.
    pub fn raw_completion(&mut self, queue: &mut Queue) -> Option<[u8; 32]> {
        let len = self.entry_len();
        let at = queue.cq + u64::from(queue.cq_index & ((1 << queue.cq_log) - 1)) * len + len - 32;
        let entry: [u8; 32] = self.machine.bytes(at, 32).try_into().unwrap();
        if u32::from(entry[31] >> 7) != queue.cq_index >> queue.cq_log & 1 {
            return None;
        }
        queue.cq_index += 1;
        self.machine.put(queue.cq_record, &queue.cq_index.to_be_bytes());
        Some(entry)
    }

    /// Steers an Ethernet address to queue pairs (B0). The hashes of a test's addresses must differ.
    pub fn steer(&mut self, unicast: bool, address: [u8; 6], members: &[u32]) {
        let [a, b, c, d, e, f] = address;
        // Byte 5 is the port, bit 1 of byte 7 means unicast, the last six bytes are the address.
        let key = [
            0,
            u32::from_be_bytes([0, 1, 0, u8::from(unicast) << 1]),
            u32::from_be_bytes([0, 0, a, b]),
            u32::from_be_bytes([c, d, e, f]),
        ];
        let words: Vec<_> = key.into_iter().enumerate().map(|(index, word)| (4 * index, word)).collect();
        self.machine.put(0x1000, &[0; 4096]);
        for (offset, word) in &words {
            self.machine.put(0x1000 + *offset as u64, &word.to_be_bytes());
        }
        let (status, index) = self.raw_command(0x027, 1, 0, 0x1000);
        assert_eq!(status, 0);
        let mut entry: Vec<_> = words.iter().map(|&(offset, word)| (0x10 + offset, word)).collect();
        entry.push((0x04, 1 << 30 | members.len() as u32));
        entry.extend(members.iter().enumerate().map(|(place, &qpn)| (0x20 + 4 * place, qpn)));
        self.command(0x026, 0, index as u32, &entry);
    }
}

/// Returns a data segment.
pub fn segment(at: u64, len: usize) -> Vec<u8> {
    let words = [len as u32, KEY, (at >> 32) as u32, at as u32];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns a frame with an Ethernet header, an IPv4 or IPv6 header, TCP, and `data`. The checksums are zero.
pub fn tcp(to: [u8; 6], source: &str, destination: &str, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 9, 9]);
    let len = (20 + data.len()) as u16;
    match (source.parse().unwrap(), destination.parse().unwrap()) {
        (core::net::IpAddr::V4(from), core::net::IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((20 + len).to_be_bytes());
            frame.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (core::net::IpAddr::V6(from), core::net::IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([6, 64]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("both of one version"),
    }
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.extend(1000u32.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, 0x99, 0x10, 0, 0, 0, 0, 0]);
    frame.extend(data);
    frame
}
