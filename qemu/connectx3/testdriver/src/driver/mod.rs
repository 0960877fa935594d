//! A minimal driver: commands, tables, one event queue, completion queues, and queue pairs over one physical
//! region.

mod commands;
mod pairs;
mod queues;
mod requests;
mod shared;

pub use pairs::{Queue, Setup};
pub use queues::Entry;
pub use requests::{data, data_of, datagram, remote};
pub use shared::SharedQueue;

use crate::Machine;
use connectx3::device::{Card, Function, LinkType, Profile};
use verbs::{Gid, MacAddr};

/// Addresses in the machine's memory.
pub(crate) const IN_BOX: u64 = 0x1000;
pub(crate) const OUT_BOX: u64 = 0x2000;
const ICM: u64 = 0x10_0000;
/// ICM addresses of tables. The table of regions is the last.
const MCG_BASE: u64 = 0;
const MTT_BASE: u64 = 0x8_0000;

/// The sizes of tables and memory.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
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
pub const V2: u32 = 0;
pub const V1: u32 = 1;

/// The protection domain of all objects.
pub const PD: u32 = 5;
/// The key to all memory, for the node itself and for peers.
pub const KEY: u32 = 0x0001_0000;

/// A card, its machine, and the driver's state.
pub struct Node {
    pub card: Card,
    pub machine: Machine,
    sizes: Sizes,
    /// True if the card is a virtual function.
    slave: bool,
    roce_v1: bool,
    pub(crate) toggle: bool,
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

/// The capability mask that a driver sets for an InfiniBand port.
const CAPABILITIES: u32 = 0x0211_0860;
pub(crate) const LOG_ENTRIES: u32 = 6;
pub(crate) const LOG_STRIDE: u32 = 7;
pub(crate) const LOG_CQ: u32 = 8;

impl Node {
    /// Creates a virtual function that is up, with one open port, one address and one GID.
    pub fn slave(number: u8) -> Self {
        let profile = Profile::named("vf", MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        Self::with(Card::new(profile), Sizes::default(), number)
    }

    /// Creates a card that is up, with one InfiniBand port that searches for a partner.
    pub fn infiniband(number: u8) -> Self {
        let profile = Profile::named("ib", MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        Self::with(Card::new(profile), Sizes::default(), number)
    }

    /// Creates a card that is up, with one open port and one GID.
    pub fn new(number: u8) -> Self {
        Self::sized(Sizes::default(), number)
    }

    /// Creates a card that is up, with tables and memory of the given sizes.
    pub fn sized(sizes: Sizes, number: u8) -> Self {
        let profile = Profile::pro(MacAddr([2, 0, 0, 0, 0, number]));
        Self::with(Card::new(profile), sizes, number)
    }

    /// Creates a node from a card, with tables and memory of the given sizes, and brings it up.
    pub fn with(card: Card, sizes: Sizes, number: u8) -> Self {
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
    pub fn come_up(&mut self) {
        if self.slave {
            self.bring_up_slave();
        } else {
            self.bring_up();
        }
    }

    pub const fn is_slave(&self) -> bool {
        self.slave
    }

    pub fn alloc(&mut self, len: u64) -> u64 {
        let at = self.heap.next_multiple_of(4096);
        self.heap = at + len;
        assert!(self.heap <= self.sizes.memory());
        at
    }

    /// Clears the driver's state, as when a driver is reloaded. Memory keeps its contents.
    pub fn forget(&mut self) {
        (self.heap, self.mtts, self.toggle) = (ICM + self.sizes.icm, 0, false);
    }

    /// Resets the card and brings it up.
    pub fn bring_up(&mut self) {
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
    pub fn steer_by_rules(&mut self) {
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
    pub fn set_roce_v1(&mut self) {
        self.roce_v1 = true;
        let gid = self.gid_table();
        self.command(0x00c, 1, 0x501, &gid[..4]);
    }

    pub(crate) fn gid_table(&self) -> Vec<(usize, u32)> {
        let mut words: Vec<_> = self
            .gid
            .0
            .chunks(4)
            .enumerate()
            .map(|(i, w)| (4 * i, u32::from_be_bytes(w.try_into().unwrap())))
            .collect();
        words.push((0x18, 2));
        // A second entry of the table has the same GID, for RoCE v1.
        let v1: Vec<_> = words.iter().take(4).map(|&(at, word)| (0x20 * V1 as usize + at, word)).collect();
        words.extend(v1);
        words
    }

    /// Writes MTT entries for `len` bytes at `at`. Returns the byte offset of the first.
    pub fn map_pages(&mut self, at: u64, len: u64) -> u32 {
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
    pub fn region_entry(&self, index: u32) -> u64 {
        ICM + self.sizes.regions() + 64 * u64::from(index)
    }

    /// Returns the memory address of an entry in the table of pages, given its byte offset.
    pub fn page_entry(&self, mtt: u32) -> u64 {
        ICM + MTT_BASE + u64::from(mtt)
    }

    /// Creates a multicast group. `members` are words of an entry.
    pub fn make_group(&mut self, gid: Gid, members: &[u32]) {
        self.machine.put(IN_BOX, &[0; 4096]);
        self.machine.put(IN_BOX, &gid.0);
        let (status, index) = self.raw_command(0x027, 0, 0, IN_BOX);
        assert_eq!(status, 0);
        let mut entry = vec![(0x04, members.len() as u32)];
        entry.extend(gid_words(gid).into_iter().enumerate().map(|(i, word)| (0x10 + 4 * i, word)));
        entry.extend(members.iter().enumerate().map(|(i, &word)| (0x20 + 4 * i, word)));
        self.command(0x026, 0, index as u32, &entry);
    }
}

/// Returns the words of a GID.
pub fn gid_words(gid: Gid) -> [u32; 4] {
    std::array::from_fn(|i| u32::from_be_bytes(gid.0[4 * i..4 * i + 4].try_into().unwrap()))
}

/// Carries frames between two cards until there are none. Frames for which `lost` returns true are dropped.
pub fn exchange(a: &mut Node, b: &mut Node, mut lost: impl FnMut(&[u8]) -> bool) {
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
