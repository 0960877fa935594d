//! One of the two software RNICs, and the layout of its memory.

use crate::wire::{Port, Shared};
use platform::{Arena, IoAddr, Memory};
use softroce::{Config, SoftRoce};
use std::sync::{Arc, LazyLock};
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, PathMtu, Psn, QpConnect, QpNum, QpOptions,
    RemoteAddr, Rnic,
};

/// The maximum number of work requests of one kind per side.
pub(crate) const MAX_WORK: usize = 12;
/// The maximum length of a message, in bytes.
pub(crate) const MAX_LEN: usize = 1500;
/// The length of all memory, in bytes.
pub(crate) const MEMORY: usize = 64 << 10;

/// The length of the source in bytes, from offset 0: the data of all sends and READs. Nothing may ever write
/// there.
pub(crate) const SOURCE_LEN: usize = 4096;
/// The offset of the word to which the peer adds, and of the word that it swaps.
pub(crate) const WORDS: [usize; 2] = [4096, 4160];
/// Returns the offset of the result of an atomic, by its number.
pub(crate) const fn result_at(id: usize) -> usize {
    4608 + 16 * id
}
/// Returns the offset of a message's slot, by use and number.
pub(crate) const fn slot_at(use_: SlotUse, id: usize) -> usize {
    8192 + (use_ as usize * MAX_WORK + id) * 1536
}

/// The use of a slot: memory that the peer writes, that is read, or that is received.
#[derive(Clone, Copy)]
pub(crate) enum SlotUse {
    WrittenByPeer = 0,
    Read = 1,
    Received = 2,
}

/// A node.
pub(crate) struct Node {
    pub rnic: Arc<dyn Rnic>,
    pub memory: Arc<Arena>,
    pub qp: QpNum,
    /// The contents of the node's memory at the start.
    pub initial: &'static [u8],
    base: u64,
    send_cq: CqId,
    recv_cq: CqId,
}

impl Node {
    pub(crate) fn new(side: usize, wire: &Shared, seed: u8) -> Self {
        // Different addresses at both ends, so that a mix-up is detected.
        let base = 0x1000_0000 << side;
        let memory = Arc::new(Arena::new(IoAddr(base), MEMORY as u64));
        let initial = &INITIAL[side];
        memory.write(IoAddr(base), initial).expect("its own memory");
        let mut random = [seed; 16];
        random[side] ^= 0x5a;
        let port = Port { wire: wire.clone(), side, buffer: Vec::new() };
        let config = Config::new(gid(side), random);
        let rnic: Arc<dyn Rnic> = Arc::new(SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), config));
        let depth = MAX_WORK as u32;
        let cq = || rnic.create_cq(CqOptions { depth }).expect("a completion queue");
        let (send_cq, recv_cq) = (cq(), cq());
        let options = QpOptions { send_cq, recv_cq, send_depth: depth, recv_depth: depth };
        let qp = rnic.create_qp(options).expect("a queue pair");
        Self { rnic, memory, qp, initial, base, send_cq, recv_cq }
    }

    /// Connects the node to `peer`. `psn` holds the first PSNs of this side and of the other.
    pub(crate) fn connect(&self, peer: &Self, psn: [u32; 2], mtu: PathMtu, retries: u8) {
        let address = AddressVector {
            link: LinkKind::RoceV2,
            peer: peer.rnic.attributes().port,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        };
        let connect = QpConnect {
            address,
            remote_qp: peer.qp,
            send_psn: Psn::new(psn[0]),
            recv_psn: Psn::new(psn[1]),
            mtu,
            max_rd_atomic: 4,
            ack_timeout: std::time::Duration::from_micros(500),
            retries,
            // 7 would mean no limit.
            rnr_retries: 6,
            min_rnr_delay: std::time::Duration::from_micros(100),
        };
        self.rnic.connect_qp(self.qp, &connect).expect("connected");
    }

    pub(crate) const fn at(&self, offset: usize) -> IoAddr {
        IoAddr(self.base + offset as u64)
    }

    /// Returns the offset of `len` bytes at an address, if they are in this node's memory.
    pub(crate) fn offset(&self, addr: IoAddr, len: u64) -> Option<usize> {
        self.memory.check(addr, len).ok().map(|()| addr.0.wrapping_sub(self.base) as usize)
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.at(offset), key: self.rnic.memory_key().rkey }
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(self.at(offset), &mut bytes).expect("its own memory");
        bytes
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        word(&self.bytes(offset, 8))
    }

    /// Returns the waiting completions: of sends, then of receives.
    pub(crate) fn completions(&self) -> [Vec<Completion>; 2] {
        [self.send_cq, self.recv_cq].map(|cq| {
            let mut all = vec![Completion::BLANK; 2 * MAX_WORK];
            let n = self.rnic.poll_cq(cq, &mut all);
            all.truncate(n);
            all
        })
    }

    /// Returns the counter with a name.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.rnic.counters(&mut |(n, count)| {
            if n == name {
                found = Some(count);
            }
        });
        found.unwrap_or_else(|| panic!("no counter {name}"))
    }
}

/// Returns the 64-bit word in eight bytes.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns the GID of a side's port.
pub(crate) const fn gid(side: usize) -> Gid {
    Gid::from_ipv4([10, 0, 0, 1 + side as u8])
}

/// The contents of each side's memory at the start.
static INITIAL: LazyLock<[Vec<u8>; 2]> =
    LazyLock::new(|| [0, 1].map(|side| (0..MEMORY).map(|at| pattern(side, at)).collect()));

/// Returns a byte that depends on the side and the offset.
fn pattern(side: usize, at: usize) -> u8 {
    let mixed = (at as u32 + 1).wrapping_mul(0x9e37_79b1) ^ (side as u32).wrapping_mul(0x85eb_ca6b);
    (mixed >> 15) as u8
}
