//! The multicast group and steering table (MCG): destinations and their queue pairs.

use super::hca::Hca;
use super::hcr::Status;
use super::host::Host;
use super::icm::Icm;
use super::layout::mcg;
use super::mailbox::{MAILBOX, Mailbox};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use verbs::Gid;

/// The table of multicast groups in ICM.
pub(super) struct McgTable<'a> {
    /// The memory of the card's tables.
    pub icm: &'a Icm,
    /// The parameters of INIT_HCA, with the table's address.
    pub hca: &'a Hca,
}

/// Returns the ICM address of an entry, and its length in bytes.
fn locate(hca: &Hca, index: u32) -> Result<(u64, usize), Status> {
    let [log_entry, _, log_table] = hca.mcg_log;
    if u64::from(index) >= 1 << log_table {
        return Err(Status::BadIndex);
    }
    let len = 1usize << log_entry;
    if len > MAILBOX {
        return Err(Status::ExceedsLimit);
    }
    Ok((hca.mcg_base + (u64::from(index) << log_entry), len))
}

/// WRITE_MCG: writes an entry.
pub(super) fn write(
    hca: &Hca,
    icm: &mut Icm,
    index: u32,
    entry: &Mailbox,
    host: &dyn Host,
) -> Result<(), Status> {
    let (virt, len) = locate(hca, index)?;
    hca.found.clear();
    icm.write(host, virt, &entry.bytes()[..len]).map_err(|_| Status::IcmError)
}

impl McgTable<'_> {
    /// READ_MCG: returns an entry.
    pub(super) fn read(&self, index: u32, host: &dyn Host) -> Result<Mailbox, Status> {
        let (virt, len) = locate(self.hca, index)?;
        let mut out = Mailbox::default();
        self.icm.read(host, virt, &mut out.bytes_mut()[..len]).map_err(|_| Status::IcmError)?;
        Ok(out)
    }

    /// MGID_HASH: returns the index at which the chain of a GID begins.
    #[must_use]
    pub(super) fn hash(&self, gid: &[u8; 16]) -> u32 {
        let [_, log_hash, _] = self.hca.mcg_log;
        // FNV-1a. Any hash function is correct, as long as lookups use the same.
        let hash = gid
            .iter()
            .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        (hash ^ hash >> 16) & ((1 << log_hash.min(16)) - 1)
    }
}

/// The maximum number of entries that a lookup follows.
const LONGEST_CHAIN: u32 = 1024;

/// The kind of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Steer {
    /// A multicast group, or broadcast.
    Multicast = 0,
    /// A unicast address.
    Unicast = 1,
}

/// The key of an entry: its destination.
type Key = [u8; 16];

/// The words of members in their entry, by protocol and destination.
type Lookups = HashMap<(u32, Key), Arc<[u32]>>;

/// A cache of lookups since the table was last written, so that a frame needs no walk through the machine's
/// memory.
#[derive(Debug, Default)]
pub(super) struct Found(Mutex<Lookups>);

impl Found {
    /// The maximum number of cached destinations. Any sender on the cable can invent new ones.
    const MAX: usize = 4096;

    /// Clears the cache after a write to the table.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn get(&self, key: (u32, Key), walk: impl FnOnce() -> Vec<u32>) -> Arc<[u32]> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = found.get(&key) {
            return Arc::clone(members);
        }
        if found.len() >= Self::MAX {
            found.clear();
        }
        let members: Arc<[u32]> = walk().into();
        found.insert(key, Arc::clone(&members));
        members
    }
}

impl McgTable<'_> {
    /// Returns the queue pairs of an Ethernet destination, each with its [`BLOCK_LOOPBACK`] flag.
    #[must_use]
    pub(super) fn members(&self, port: usize, steer: Steer, mac: [u8; 6], host: &dyn Host) -> Arc<[u32]> {
        const ETHERNET: u32 = 1;
        let mut key = [0; 16];
        key[5] = port as u8 + 1;
        key[7] = (steer as u8) << 1;
        key[10..].copy_from_slice(&mac);
        self.hca.found.get((ETHERNET, key), || self.walk(&key, ETHERNET, host))
    }

    /// Returns the queue pairs of an RDMA multicast group, each with its [`BLOCK_LOOPBACK`] flag.
    #[must_use]
    pub(super) fn group(&self, gid: Gid, host: &dyn Host) -> Arc<[u32]> {
        const RDMA: u32 = 0;
        self.hca.found.get((RDMA, gid.0), || self.walk(&gid.0, RDMA, host))
    }

    /// Returns the words of the queue pairs in the entry of a key, from the chain that begins at its hash.
    fn walk(&self, key: &Key, protocol: u32, host: &dyn Host) -> Vec<u32> {
        let [_, _, log_table] = self.hca.mcg_log;
        let mut index = self.hash(key);
        // The limit protects against a loop in the guest's chain; drivers make no longer ones.
        for _ in 0..LONGEST_CHAIN.min(1 << log_table.min(31)) {
            let Ok((virt, _)) = locate(self.hca, index) else { return Vec::new() };
            let mut front = [0; 32];
            if self.icm.read(host, virt, &mut front).is_err() {
                return Vec::new();
            }
            let [n0, n1, n2, n3, c0, c1, c2, c3, ..] = front;
            let count = u32::from_be_bytes([c0, c1, c2, c3]);
            if count >> 30 == protocol && front.last_chunk() == Some(key) {
                return self.read(index, host).map_or_else(|_| Vec::new(), |entry| words(&entry).collect());
            }
            index = u32::from_be_bytes([n0, n1, n2, n3]) >> 6;
            if index == 0 {
                break;
            }
        }
        Vec::new()
    }
}

/// Flag of a member: it does not receive its own frames.
pub(super) const BLOCK_LOOPBACK: u32 = 1 << 30;

/// Returns the queue pair in an entry's word, if it receives frames of the sender: a queue pair of the card,
/// or `None` for the wire.
#[must_use]
pub(super) fn receiver(word: u32, from: Option<u32>) -> Option<u32> {
    let qpn = word & 0xff_ffff;
    (word & BLOCK_LOOPBACK == 0 || from != Some(qpn)).then_some(qpn)
}

/// Returns the queue pairs of an entry.
#[must_use]
pub(super) fn members(entry: &Mailbox) -> Vec<u32> {
    words(entry).map(|word| word & 0xff_ffff).collect()
}

fn words(entry: &Mailbox) -> impl Iterator<Item = u32> + '_ {
    let count = (entry.field(mcg::MEMBERS)).min((MAILBOX / 4 - 8) as u32) as usize;
    (0..count).map(|i| entry.u32(0x20 + 4 * i))
}
