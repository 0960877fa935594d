//! A minimal driver: commands, tables, one event queue, completion queues, and queue pairs over one physical
//! region.

use super::Machine;
use connectx3::device::{Card, Function, LinkType, Profile};
use verbs::{Gid, MacAddr};

/// Addresses in the machine's memory.
pub(super) const IN_BOX: u64 = 0x1000;
pub(super) const OUT_BOX: u64 = 0x2000;
const ICM: u64 = 0x10_0000;
/// ICM addresses of tables. The table of regions is the last.
const MCG_BASE: u64 = 0;
const MTT_BASE: u64 = 0x8_0000;
const HCR: u64 = 0x80680;

/// The sizes of tables and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// log2 of the number of regions.
    pub log_regions: u32,
    /// The length of ICM in bytes: a power of two of at least 1 MiB.
    pub icm: u64,
    /// The length of the memory for queues and data in bytes, which follows ICM.
    pub heap: u64,
}

impl Sizes {
    /// Returns the total length of memory in bytes.
    const fn memory(&self) -> u64 {
        ICM + self.icm + self.heap
    }

    /// Returns the ICM address of the table of regions.
    const fn regions(&self) -> u64 {
        self.icm - (64 << self.log_regions)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self { log_regions: 10, icm: 1 << 20, heap: 2 << 20 }
    }
}

/// Rows of the GID table, by RoCE version.
pub(crate) const V2: u32 = 0;
pub(crate) const V1: u32 = 1;

/// The protection domain of all objects.
pub(crate) const PD: u32 = 5;
/// The key to all memory, for the node itself and for peers.
pub(crate) const KEY: u32 = 0x0001_0000;

/// A card, its machine, and the driver's state.
pub(crate) struct Node {
    pub card: Card,
    pub machine: Machine,
    sizes: Sizes,
    /// True if the card is a virtual function.
    slave: bool,
    roce_v1: bool,
    pub(super) toggle: bool,
    heap: u64,
    mtts: u64,
    pub gid: Gid,
    pub mac: MacAddr,
    /// The event queue of the completion queues, and the address of the event queue made last.
    pub eqn: u32,
    pub eq: u64,
    /// The LID that a subnet manager has assigned to the port.
    pub lid: u16,
}

/// The driver's record of a queue pair.
pub(crate) struct Queue {
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
pub(crate) struct Setup {
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

/// The capability mask that a driver sets for an InfiniBand port.
const CAPABILITIES: u32 = 0x0211_0860;
/// The code of the path MTU 1024.
const MTU_1024: u32 = 3;
pub(super) const LOG_ENTRIES: u32 = 6;
pub(super) const LOG_STRIDE: u32 = 7;
pub(super) const LOG_CQ: u32 = 8;

/// A parsed completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
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
    /// Creates a virtual function that is up, with one open port, one address and one GID.
    pub(crate) fn slave(number: u8) -> Self {
        let profile = Profile::named("vf", MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        Self::with(Card::new(profile), Sizes::default(), number)
    }

    /// Creates a card that is up, with one InfiniBand port that searches for a partner.
    pub(crate) fn infiniband(number: u8) -> Self {
        let profile = Profile::named("ib", MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        Self::with(Card::new(profile), Sizes::default(), number)
    }

    /// Creates a card that is up, with one open port and one GID.
    pub(crate) fn new(number: u8) -> Self {
        Self::sized(Sizes::default(), number)
    }

    /// Creates a card that is up, with tables and memory of the given sizes.
    pub(crate) fn sized(sizes: Sizes, number: u8) -> Self {
        let profile = Profile::pro(MacAddr([2, 0, 0, 0, 0, number]));
        Self::with(Card::new(profile), sizes, number)
    }

    /// Creates a node from a card, with tables and memory of the given sizes, and brings it up.
    pub(crate) fn with(card: Card, sizes: Sizes, number: u8) -> Self {
        let mac = card.profile().ports[0].mac;
        let slave = card.profile().function == Function::Virtual;
        let mut node = Self {
            card,
            machine: Machine::new(sizes.memory() as usize),
            sizes,
            slave,
            roce_v1: slave,
            toggle: false,
            heap: ICM + sizes.icm,
            mtts: 0,
            gid: Gid::from_ipv4([10, 9, 0, number]),
            mac,
            eqn: 0,
            eq: 0,
            lid: 0,
        };
        node.come_up();
        node
    }

    /// Brings up the card or the slave.
    pub(crate) fn come_up(&mut self) {
        if self.slave {
            self.bring_up_slave();
        } else {
            self.bring_up();
        }
    }

    pub(crate) const fn is_slave(&self) -> bool {
        self.slave
    }

    pub(crate) fn alloc(&mut self, len: u64) -> u64 {
        let at = self.heap.next_multiple_of(4096);
        self.heap = at + len;
        assert!(self.heap <= self.sizes.memory());
        at
    }

    pub(crate) fn write_register(&mut self, offset: u64, value: u32) {
        self.card.write_bar0(offset, &value.to_be_bytes(), &self.machine);
    }

    fn read_register(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.card.read_bar0(offset, &mut word, &self.machine);
        u32::from_be_bytes(word)
    }

    /// Runs a command with immediate input. Returns its status and immediate output.
    pub(crate) fn raw_command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, in_param: u64) -> (u8, u64) {
        if self.slave {
            return self.slave_command(opcode, op_mod, in_mod, in_param);
        }
        self.hcr([in_param, u64::from(in_mod), OUT_BOX, u64::from(op_mod << 12 | opcode)])
    }

    /// Runs a command by its registers: input parameter, input modifier, output parameter, opcode with its
    /// modifier.
    pub(crate) fn hcr(&mut self, [in_param, in_mod, out_param, opcode]: [u64; 4]) -> (u8, u64) {
        self.toggle = !self.toggle;
        let words = [
            (in_param >> 32) as u32,
            in_param as u32,
            in_mod as u32,
            (out_param >> 32) as u32,
            out_param as u32,
            0xffff_0000,
            1 << 23 | u32::from(self.toggle) << 21 | opcode as u32,
        ];
        for (i, word) in words.into_iter().enumerate() {
            self.write_register(HCR + 4 * i as u64, word);
        }
        let control = self.read_register(HCR + 0x18);
        assert_eq!(control >> 21 & 1 != 0, self.toggle);
        assert_eq!(control >> 23 & 1, 0, "GO falls");
        let out = u64::from(self.read_register(HCR + 0xc)) << 32 | u64::from(self.read_register(HCR + 0x10));
        ((control >> 24) as u8, out)
    }

    /// Runs a command with a mailbox. Returns its status.
    pub(crate) fn try_command(
        &mut self,
        opcode: u32,
        op_mod: u32,
        in_mod: u32,
        mailbox: &[(usize, u32)],
    ) -> u8 {
        self.machine.put(IN_BOX, &[0; 4096]);
        for &(offset, word) in mailbox {
            self.machine.put(IN_BOX + offset as u64, &word.to_be_bytes());
        }
        self.raw_command(opcode, op_mod, in_mod, IN_BOX).0
    }

    pub(crate) fn command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, mailbox: &[(usize, u32)]) {
        let status = self.try_command(opcode, op_mod, in_mod, mailbox);
        assert_eq!(status, 0, "command {opcode:#x} failed");
    }

    /// Returns the word of the output mailbox at an offset.
    pub(crate) fn output(&self, offset: u64) -> u32 {
        self.machine.be32(OUT_BOX + offset)
    }

    /// Clears the driver's state, as when a driver is reloaded. Memory keeps its contents.
    pub(crate) fn forget(&mut self) {
        (self.heap, self.mtts, self.toggle) = (ICM + self.sizes.icm, 0, false);
    }

    /// Resets the card and brings it up.
    pub(crate) fn bring_up(&mut self) {
        assert_eq!(self.read_register(0x8069c), 0, "the card is free");
        self.write_register(0xf0010, 1);
        self.command(0x004, 0, 0, &[]);
        let pages = self.output(0) >> 16;
        assert!(pages <= 16);
        self.command(0xfff, 0, 1, &[(0x0c, 0x4000 | 4)]);
        self.command(0xff6, 0, 0, &[]);
        let (status, aux) = self.raw_command(0xffd, 0, 0, self.sizes.icm);
        assert_eq!((status, aux), (0, 1));
        self.command(0xffc, 0, 1, &[(0x0c, 0x3000)]);
        self.command(0xffa, 0, 1, &[(0x0c, ICM as u32 | (self.sizes.icm >> 12).ilog2())]);
        self.init_hca(0);
    }

    /// Closes the card and opens it again with device-managed steering, which uses rules instead of a table.
    pub(crate) fn steer_by_rules(&mut self) {
        const DEVICE_MANAGED: u32 = 1 << 6;
        self.command(0x008, 0, 0, &[]);
        self.init_hca(DEVICE_MANAGED);
    }

    /// Runs INIT_HCA, registers a region over all memory, and opens the port.
    fn init_hca(&mut self, flags: u32) {
        let profile = self.card.profile();
        let init = [
            (0x000, 2 << 24),
            (0x014, flags),
            (0x0c4, MCG_BASE as u32),
            (0x0d0, 9),
            (0x0d4, 4),
            (0x058, if profile.large_entries { 3 << 29 } else { 0 }),
            (0x0d8, u32::from(profile.steering.groups) << 27 | 5),
            (0x0f4, self.sizes.regions() as u32),
            (0x0f8, 1 << 31 | self.sizes.log_regions),
            (0x104, MTT_BASE as u32),
        ];
        self.command(0x007, 0, 0, &init);
        // One physical region over all memory, with every right.
        let index = KEY >> 8;
        self.command(
            0x00d,
            0,
            index,
            &[(0x00, 0x0002_7f00), (0x08, index), (0x0c, PD), (0x18, u32::MAX), (0x1c, u32::MAX)],
        );
        if self.card.profile().ports[0].links.suggested() == LinkType::InfiniBand {
            self.command(0x00c, 0, 1, &[(0x04, CAPABILITIES)]);
        } else {
            self.command(0x00c, 1, 0xd01, &self.gid_table());
        }
        self.command(0x009, 0, 1, &[]);
    }

    /// Sets the GID for RoCE v1. Later connections use that version.
    pub(crate) fn set_roce_v1(&mut self) {
        self.roce_v1 = true;
        let gid = self.gid_table();
        self.command(0x00c, 1, 0x501, &gid[..4]);
    }

    pub(super) fn gid_table(&self) -> Vec<(usize, u32)> {
        let mut words: Vec<_> = self
            .gid
            .0
            .chunks(4)
            .enumerate()
            .map(|(i, w)| (4 * i, u32::from_be_bytes(w.try_into().unwrap())))
            .collect();
        words.push((0x18, 2));
        // The same GID, for RoCE v1.
        let v1: Vec<_> = words.iter().take(4).map(|&(at, word)| (0x20 * V1 as usize + at, word)).collect();
        words.extend(v1);
        words
    }

    /// Writes MTT entries for `len` bytes at `at`. Returns the byte offset of the first.
    pub(crate) fn map_pages(&mut self, at: u64, len: u64) -> u32 {
        if self.slave {
            return self.map_slave_pages(at, len);
        }
        let first = self.mtts;
        for page in 0..len.div_ceil(4096) {
            let entry = (at + page * 4096) | 1;
            self.machine.put(ICM + MTT_BASE + self.mtts, &entry.to_be_bytes());
            self.mtts += 8;
        }
        first as u32
    }

    /// Returns the memory address of an entry in the table of regions.
    pub(crate) fn region_entry(&self, index: u32) -> u64 {
        ICM + self.sizes.regions() + 64 * u64::from(index)
    }

    /// Returns the memory address of an entry in the table of pages, given its byte offset.
    pub(crate) fn page_entry(&self, mtt: u32) -> u64 {
        ICM + MTT_BASE + u64::from(mtt)
    }

    /// Returns the length of an entry in event and completion queues, in bytes.
    pub(crate) fn entry_len(&self) -> u64 {
        if self.card.profile().large_entries { 64 } else { 32 }
    }

    pub(crate) fn create_eq(&mut self, eqn: u32, log_entries: u32) -> u64 {
        let len = self.entry_len() << log_entries;
        let at = self.alloc(len);
        let mtt = self.map_pages(at, len);
        self.command(0x013, 0, eqn, &[(0x00, 9 << 8), (0x0c, log_entries << 24), (0x14, 3), (0x1c, mtt)]);
        self.eq = at;
        at
    }

    pub(crate) fn create_cq(&mut self, cqn: u32, eqn: u32, log_entries: u32) -> (u64, u64) {
        self.create_flagged_cq(cqn, eqn, log_entries, 0)
    }

    /// Creates a completion queue with flags in its context.
    pub(crate) fn create_flagged_cq(
        &mut self,
        cqn: u32,
        eqn: u32,
        log_entries: u32,
        flags: u32,
    ) -> (u64, u64) {
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

    /// Creates a queue pair with its own completion queue, and connects it to `peer`.
    pub(crate) fn connect(&mut self, qpn: u32, cqn: u32, peer: &Self, peer_qpn: u32) -> Queue {
        self.connect_as(qpn, cqn, peer, peer_qpn, Setup::default())
    }

    /// Creates and connects a queue pair with the given properties.
    pub(crate) fn connect_as(
        &mut self,
        qpn: u32,
        cqn: u32,
        peer: &Self,
        peer_qpn: u32,
        setup: Setup,
    ) -> Queue {
        let queue = self.ready_to_receive(qpn, cqn, peer, peer_qpn, setup);
        self.ready_to_send(&queue, peer_qpn, setup);
        queue
    }

    /// Makes a queue pair that is ready to receive also ready to send.
    pub(crate) fn ready_to_send(&mut self, queue: &Queue, peer_qpn: u32, setup: Setup) {
        let counts = 4 << 21 | 7 << 16 | setup.rnr_retries << 13;
        let words = [(0x20, 14 << 27), (0x70, counts), (0x78, (100 + peer_qpn) & 0xff_ffff)];
        self.command(0x01b, 0, queue.qpn, &context(&words));
    }

    /// Creates a queue pair that is ready to receive.
    pub(crate) fn ready_to_receive(
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
    pub(crate) fn path_to(&self, peer: &Self, qpn: u32, peer_qpn: u32) -> Vec<(usize, u32)> {
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

    /// Posts a signaled send work request with an opcode and the words after the control segment, and rings
    /// the doorbell.
    pub(crate) fn post_send(&mut self, queue: &mut Queue, opcode: u32, imm: u32, words: &[u32]) {
        self.write_send(queue, opcode, imm, words);
        self.ring(queue);
    }

    /// Rings the doorbell.
    pub(crate) fn ring(&mut self, queue: &Queue) {
        self.card.write_bar2(0x80_000 + 0x14, &(queue.qpn << 8).to_be_bytes(), &self.machine);
    }

    /// Writes a send work request without ringing the doorbell.
    pub(crate) fn write_send(&mut self, queue: &mut Queue, opcode: u32, imm: u32, words: &[u32]) {
        self.write_flagged(queue, opcode, 0, imm, words);
    }

    /// Writes a send work request with control flags in addition to the one for a completion.
    pub(crate) fn write_flagged(
        &mut self,
        queue: &mut Queue,
        opcode: u32,
        flags: u32,
        imm: u32,
        words: &[u32],
    ) {
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

    pub(crate) fn post_receive(&mut self, queue: &mut Queue, at: u64, len: u32) {
        self.post_receive_of(queue, KEY, at, len);
    }

    pub(crate) fn post_receive_of(&mut self, queue: &mut Queue, key: u32, at: u64, len: u32) {
        let entry = queue.receive + u64::from(queue.posted & ((1 << LOG_ENTRIES) - 1)) * (1 << LOG_STRIDE);
        for (i, word) in [len, key, (at >> 32) as u32, at as u32, 0, 0x100, 0, 0].into_iter().enumerate() {
            self.machine.put(entry + 4 * i as u64, &word.to_be_bytes());
        }
        queue.posted += 1;
        self.machine.put(queue.record, &queue.posted.to_be_bytes());
    }

    /// Replaces the buffer of the queue's completion queue. Moves the waiting entries as Linux does: those
    /// before the resize entry move one index up, because that entry counts too.
    pub(crate) fn resize_cq(&mut self, queue: &mut Queue, log_entries: u32) {
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

    /// Creates a shared receive queue whose entries are linked in order.
    pub(crate) fn create_srq(&mut self, srqn: u32) -> SharedQueue {
        self.create_xrc_srq(srqn, 0, 0, PD)
    }

    /// Creates a shared receive queue of an XRC domain and a protection domain, with completions in `cqn`.
    pub(crate) fn create_xrc_srq(&mut self, srqn: u32, domain: u32, cqn: u32, pd: u32) -> SharedQueue {
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

    pub(crate) fn post_shared(&mut self, queue: &mut SharedQueue, at: u64, len: u32) {
        let entry = queue.at + u64::from(queue.posted & ((1 << LOG_ENTRIES) - 1)) * (1 << LOG_STRIDE);
        for (i, word) in [len, KEY, (at >> 32) as u32, at as u32, 0, 0x100, 0, 0].into_iter().enumerate() {
            self.machine.put(entry + 16 + 4 * i as u64, &word.to_be_bytes());
        }
        queue.posted += 1;
        self.machine.put(queue.record, &queue.posted.to_be_bytes());
    }

    /// Creates a multicast group. `members` are words of an entry.
    pub(crate) fn make_group(&mut self, gid: Gid, members: &[u32]) {
        self.machine.put(IN_BOX, &[0; 4096]);
        self.machine.put(IN_BOX, &gid.0);
        let (status, index) = self.raw_command(0x027, 0, 0, IN_BOX);
        assert_eq!(status, 0);
        let mut entry = vec![(0x04, members.len() as u32)];
        entry.extend(gid_words(gid).into_iter().enumerate().map(|(i, word)| (0x10 + 4 * i, word)));
        entry.extend(members.iter().enumerate().map(|(i, &word)| (0x20 + 4 * i, word)));
        self.command(0x026, 0, index as u32, &entry);
    }

    /// Returns the bytes of the completion that [`poll`](Self::poll) returned last.
    pub(crate) fn last_entry(&self, queue: &Queue) -> Vec<u8> {
        let index = queue.cq_index.wrapping_sub(1) & ((1 << queue.cq_log) - 1);
        self.machine.bytes(queue.cq + u64::from(index) * 32, 32)
    }

    /// Returns the next completion, if there is one.
    pub(crate) fn poll(&mut self, queue: &mut Queue) -> Option<Entry> {
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

/// Moves words of a context to their offsets in the mailbox.
fn context(words: &[(usize, u32)]) -> Vec<(usize, u32)> {
    words.iter().map(|&(offset, word)| (offset + 8, word)).collect()
}

/// Returns the words of a data segment.
pub(crate) fn data(at: u64, len: u32) -> [u32; 4] {
    data_of(KEY, at, len)
}

/// Returns the words of a data segment with a key.
pub(crate) fn data_of(key: u32, at: u64, len: u32) -> [u32; 4] {
    [len, key, (at >> 32) as u32, at as u32]
}

/// The driver's record of a shared receive queue.
pub(crate) struct SharedQueue {
    pub srqn: u32,
    at: u64,
    record: u64,
    posted: u32,
}

/// Returns the words of a GID.
pub(crate) fn gid_words(gid: Gid) -> [u32; 4] {
    std::array::from_fn(|i| u32::from_be_bytes(gid.0[4 * i..4 * i + 4].try_into().unwrap()))
}

/// Returns the words of an untagged datagram segment: from a row of the GID table, to a GID, an Ethernet
/// address and a queue pair.
pub(crate) fn datagram(row: u32, gid: Gid, mac: MacAddr, qpn: u32, qkey: u32) -> Vec<u32> {
    const NO_VLAN: u32 = 0xffff;
    let [a, b, c, d, e, f] = mac.0.map(u32::from);
    let mut words = vec![1 << 24, 0, row << 16 | 64, 0];
    words.extend(gid_words(gid));
    words.extend([qpn, qkey, NO_VLAN << 16 | a << 8 | b, c << 24 | d << 16 | e << 8 | f]);
    words
}

/// Returns the words of a remote address segment.
pub(crate) fn remote(at: u64, key: u32) -> [u32; 4] {
    [(at >> 32) as u32, at as u32, key, 0]
}

/// Carries frames between two cards until there are none. Frames for which `lost` returns true are dropped.
pub(crate) fn exchange(a: &mut Node, b: &mut Node, mut lost: impl FnMut(&[u8]) -> bool) {
    loop {
        let mut any = false;
        for _ in 0..2 {
            a.card.progress(&a.machine);
            for (port, frame) in a.card.take_outbox() {
                any = true;
                if !lost(&frame) {
                    b.card.receive(port, &frame, &b.machine);
                }
            }
            std::mem::swap(a, b);
        }
        if !any {
            return;
        }
    }
}
