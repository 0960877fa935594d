//! The multicast group and steering table (MCG) in the guest's memory: which queue pairs a destination goes to.

use super::command::Hca;
use super::hcr::Status;
use super::host::Host;
use super::icm::Icm;
use super::mailbox::{MAILBOX, Mailbox};

/// Places of entries.
pub struct McgTable<'a> {
    /// What is mapped.
    pub icm: &'a Icm,
    /// Where the table is.
    pub hca: &'a Hca,
}

impl McgTable<'_> {
    fn place(&self, index: u32) -> Result<(u64, usize), Status> {
        let [log_entry, _, log_table] = self.hca.mcg_log;
        if u64::from(index) >= 1 << log_table {
            return Err(Status::BadIndex);
        }
        let len = 1usize << log_entry;
        let virt = self.hca.mcg_base + (u64::from(index) << log_entry);
        if len > MAILBOX {
            return Err(Status::ExceedsLimit);
        }
        self.icm.bus(virt, len as u64).map(|bus| (bus, len)).ok_or(Status::IcmError)
    }

    /// READ_MCG.
    pub fn read(&self, index: u32, host: &dyn Host) -> Result<Mailbox, Status> {
        let (bus, len) = self.place(index)?;
        let mut out = Mailbox::default();
        host.read(bus, &mut out.bytes_mut()[..len]).map_err(|_| Status::IcmError)?;
        Ok(out)
    }

    /// WRITE_MCG.
    pub fn write(&self, index: u32, entry: &Mailbox, host: &dyn Host) -> Result<(), Status> {
        let (bus, len) = self.place(index)?;
        host.write(bus, &entry.bytes()[..len]).map_err(|_| Status::IcmError)
    }

    /// MGID_HASH: where the chain of a GID begins.
    #[must_use]
    pub fn hash(&self, gid: &[u8; 16]) -> u32 {
        let [_, log_hash, _] = self.hca.mcg_log;
        // FNV-1a: any function does, as long as lookups use the same.
        let hash = gid.iter().fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        (hash ^ hash >> 16) & ((1 << log_hash.min(16)) - 1)
    }
}
