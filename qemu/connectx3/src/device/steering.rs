//! The multicast group and steering table (MCG): which queue pairs a destination goes to.

use super::Card;
use super::command::Hca;
use super::hcr::Status;
use super::host::Host;
use super::icm::Icm;
use super::mailbox::{MAILBOX, Mailbox};
use super::profile::Steering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use verbs::Gid;

/// Places of entries.
pub struct McgTable<'a> {
    /// Where tables are.
    pub icm: &'a Icm,
    /// Where the table is.
    pub hca: &'a Hca,
}

/// The ICM address of an entry, and its bytes.
fn place(hca: &Hca, index: u32) -> Result<(u64, usize), Status> {
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

/// WRITE_MCG.
pub fn write(hca: &Hca, icm: &mut Icm, index: u32, entry: &Mailbox, host: &dyn Host) -> Result<(), Status> {
    let (virt, len) = place(hca, index)?;
    hca.found.clear();
    icm.write(host, virt, &entry.bytes()[..len]).map_err(|_| Status::IcmError)
}

impl McgTable<'_> {
    /// READ_MCG.
    pub fn read(&self, index: u32, host: &dyn Host) -> Result<Mailbox, Status> {
        let (virt, len) = place(self.hca, index)?;
        let mut out = Mailbox::default();
        self.icm.read(host, virt, &mut out.bytes_mut()[..len]).map_err(|_| Status::IcmError)?;
        Ok(out)
    }

    /// MGID_HASH: where the chain of a GID begins.
    #[must_use]
    pub fn hash(&self, gid: &[u8; 16]) -> u32 {
        let [_, log_hash, _] = self.hca.mcg_log;
        // FNV-1a: any function does, as long as lookups use the same.
        let hash = gid
            .iter()
            .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        (hash ^ hash >> 16) & ((1 << log_hash.min(16)) - 1)
    }
}

/// Entries that a lookup goes through at most.
const LONGEST_CHAIN: u32 = 1024;

/// How a destination is steered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steer {
    /// To multicast groups, the broadcast one included.
    Multicast = 0,
    /// To one address.
    Unicast = 1,
}

/// A destination as the key of an entry.
type Key = [u8; 16];

/// Members as their entry has them, by protocol and destination.
type Lookups = HashMap<(u32, Key), Arc<[u32]>>;

/// Lookups since the table was written, so that a frame costs no walk through the machine's memory.
#[derive(Debug, Default)]
pub struct Found(Mutex<Lookups>);

impl Found {
    /// Destinations remembered. Anybody on the cable can make up new ones.
    const MAX: usize = 4096;

    /// Forgets them: the table is written.
    pub fn clear(&self) {
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
    /// The queue pairs of an Ethernet destination, each with [`BLOCK_LOOPBACK`].
    #[must_use]
    pub fn members(&self, port: usize, steer: Steer, mac: [u8; 6], host: &dyn Host) -> Arc<[u32]> {
        const ETHERNET: u32 = 1;
        let mut key = [0; 16];
        key[5] = port as u8 + 1;
        key[7] = (steer as u8) << 1;
        key[10..].copy_from_slice(&mac);
        self.hca.found.get((ETHERNET, key), || self.walk(&key, ETHERNET, host))
    }

    /// The queue pairs of an RDMA multicast group, each with [`BLOCK_LOOPBACK`].
    #[must_use]
    fn group(&self, gid: Gid, host: &dyn Host) -> Arc<[u32]> {
        const RDMA: u32 = 0;
        self.hca.found.get((RDMA, gid.0), || self.walk(&gid.0, RDMA, host))
    }

    /// The words of the queue pairs of the entry with a key, in the chain that begins at its hash.
    fn walk(&self, key: &Key, protocol: u32, host: &dyn Host) -> Vec<u32> {
        let [_, _, log_table] = self.hca.mcg_log;
        let mut index = self.hash(key);
        // A chain is no longer than the table, nor than any that a driver makes, whatever the guest wrote into it.
        for _ in 0..LONGEST_CHAIN.min(1 << log_table.min(31)) {
            let Ok((virt, _)) = place(self.hca, index) else { return Vec::new() };
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

/// Of a member: what it sends to the group does not come back to it.
pub const BLOCK_LOOPBACK: u32 = 1 << 30;

/// The queue pair of an entry's word, if it hears frames of a sender: a queue pair of the card or the wire.
#[must_use]
pub fn hears(word: u32, from: Option<u32>) -> Option<u32> {
    let qpn = word & 0xff_ffff;
    (word & BLOCK_LOOPBACK == 0 || from != Some(qpn)).then_some(qpn)
}

/// The queue pairs of an entry.
#[must_use]
pub fn members(entry: &Mailbox) -> Vec<u32> {
    words(entry).map(|word| word & 0xff_ffff).collect()
}

fn words(entry: &Mailbox) -> impl Iterator<Item = u32> + '_ {
    let count = (entry.u32(0x04) & 0xff_ffff).min((MAILBOX / 4 - 8) as u32) as usize;
    (0..count).map(|i| entry.u32(0x20 + 4 * i))
}

impl Card {
    /// The queue pairs that get a frame to an RDMA multicast group at a port, `from` a queue pair of the card or the wire.
    pub(super) fn group_members(
        &mut self,
        port: usize,
        gid: Gid,
        from: Option<u32>,
        host: &dyn Host,
    ) -> Vec<u32> {
        let Some(hca) = &self.hca else { return Vec::new() };
        let members = match hca.steering {
            Steering::Flows => self.flows.group(port, &gid.0).into(),
            Steering::Groups | Steering::Table => McgTable { icm: &self.icm, hca }.group(gid, host),
        };
        let wants = |&word: &u32| {
            let qpn = hears(word, from)?;
            (self.qps.get_mut(qpn)?.context.port() == port).then_some(qpn)
        };
        members.iter().filter_map(wants).collect()
    }
}
