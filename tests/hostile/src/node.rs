//! One of the two software RNICs, and how its memory is divided.

use crate::wire::{Port, Shared};
use platform::{Arena, IoAddr, Memory};
use softroce::{Config, SoftRoce};
use std::sync::{Arc, LazyLock};
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, PathMtu, Psn, QpConnect, QpNum, QpOptions,
    RemoteAddr, Rnic,
};

/// Work requests of a kind that a side posts at most.
pub const MAX_WORK: usize = 12;
/// Bytes of a message at most.
pub const MAX_LEN: usize = 1500;
/// Bytes of all memory.
pub const MEMORY: usize = 64 << 10;

/// Bytes from 0 that everything sent and read comes from; nothing may ever write there.
pub const SOURCE_LEN: usize = 4096;
/// The word that the peer adds to, and the one that it swaps.
pub const WORDS: [usize; 2] = [4096, 4160];
/// Where what an atomic found goes, by its number.
pub const fn result_at(id: usize) -> usize {
    4608 + 16 * id
}
/// A place of its own for each message: what the peer writes, what is read, what is received; by number.
pub const fn slot_at(use_: SlotUse, id: usize) -> usize {
    8192 + (use_ as usize * MAX_WORK + id) * 1536
}

/// What a slot is for.
#[derive(Clone, Copy)]
pub enum SlotUse {
    WrittenByPeer = 0,
    Read = 1,
    Received = 2,
}

/// A node.
pub struct Node {
    pub rnic: Arc<dyn Rnic>,
    pub memory: Arc<Arena>,
    pub qp: QpNum,
    /// Its memory at the start.
    pub initial: &'static [u8],
    base: u64,
    send_cq: CqId,
    recv_cq: CqId,
}

impl Node {
    pub fn new(side: usize, wire: &Shared, seed: u8) -> Self {
        // Different addresses at both ends, so that a mix-up shows.
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

    /// Connects it to `peer`, PSNs being those of its side and the other.
    pub fn connect(&self, peer: &Self, psn: [u32; 2], mtu: PathMtu, retries: u8) {
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
            // Not 7, which is for ever.
            rnr_retries: 6,
            min_rnr_delay: std::time::Duration::from_micros(100),
        };
        self.rnic.connect_qp(self.qp, &connect).expect("connected");
    }

    pub const fn at(&self, offset: usize) -> IoAddr {
        IoAddr(self.base + offset as u64)
    }

    /// The offset of `len` bytes at an address, if they are its memory.
    pub fn offset(&self, addr: IoAddr, len: u64) -> Option<usize> {
        self.memory.check(addr, len).ok().map(|()| addr.0.wrapping_sub(self.base) as usize)
    }

    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.at(offset), key: self.rnic.memory_key().rkey }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(self.at(offset), &mut bytes).expect("its own memory");
        bytes
    }

    pub fn word(&self, offset: usize) -> u64 {
        word(&self.bytes(offset, 8))
    }

    /// The completions that wait: of sends, then of receives.
    pub fn completions(&self) -> [Vec<Completion>; 2] {
        [self.send_cq, self.recv_cq].map(|cq| {
            let mut all = vec![Completion::BLANK; 2 * MAX_WORK];
            let n = self.rnic.poll_cq(cq, &mut all);
            all.truncate(n);
            all
        })
    }

    /// The count of that name.
    pub fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.rnic.counters(&mut |(n, count)| {
            if n == name {
                found = Some(count);
            }
        });
        found.unwrap_or_else(|| panic!("no counter {name}"))
    }
}

/// The 64-bit word in eight bytes.
pub fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// The GID of a side's port.
pub const fn gid(side: usize) -> Gid {
    Gid::from_ipv4([10, 0, 0, 1 + side as u8])
}

/// What the memory of each side holds at the start.
static INITIAL: LazyLock<[Vec<u8>; 2]> =
    LazyLock::new(|| [0, 1].map(|side| (0..MEMORY).map(|at| pattern(side, at)).collect()));

/// Bytes that tell where and whose they are.
fn pattern(side: usize, at: usize) -> u8 {
    let mixed = (at as u32 + 1).wrapping_mul(0x9e37_79b1) ^ (side as u32).wrapping_mul(0x85eb_ca6b);
    (mixed >> 15) as u8
}
