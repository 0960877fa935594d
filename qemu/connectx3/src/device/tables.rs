//! The card's tables in ICM, which INIT_HCA sets up.

use super::hca::Hca;
use super::hcr::Status;
use super::host::Host;
use super::icm::Icm;
use super::mailbox::Mailbox;
use super::memory::{Domain, Keyed, LocalWork, Refused, Regions};
use super::queue_memory::MttTable;
use super::steering::{self, McgTable};

/// The card's tables of objects, and the memory in which they lie.
#[derive(Default)]
pub(super) struct Tables {
    /// The memory of the tables.
    pub icm: Icm,
    /// The parameters of INIT_HCA; `None` before it and after CLOSE_HCA.
    pub hca: Option<Hca>,
    /// The memory protection table.
    pub regions: Regions,
}

impl Tables {
    /// Returns the parameters of INIT_HCA.
    ///
    /// # Errors
    ///
    /// Fails outside of INIT_HCA and CLOSE_HCA.
    pub(super) fn hca(&self) -> Result<&Hca, Status> {
        self.hca.as_ref().ok_or(Status::BadSystemState)
    }

    /// Returns the table of pages.
    ///
    /// # Errors
    ///
    /// Fails outside of INIT_HCA and CLOSE_HCA.
    pub(super) fn mtt(&self) -> Result<MttTable<'_>, Status> {
        Ok(MttTable { icm: &self.icm, base: self.hca()?.mtt_base })
    }

    /// Returns the steering table.
    ///
    /// # Errors
    ///
    /// Fails outside of INIT_HCA and CLOSE_HCA.
    pub(super) fn groups(&self) -> Result<McgTable<'_>, Status> {
        Ok(McgTable { icm: &self.icm, hca: self.hca()? })
    }

    /// WRITE_MCG: writes an entry of the steering table.
    ///
    /// # Errors
    ///
    /// Fails outside of INIT_HCA and CLOSE_HCA, and if the entry is outside of the table or not mapped.
    pub(super) fn write_group(&mut self, index: u32, entry: &Mailbox, host: &dyn Host) -> Result<(), Status> {
        let hca = self.hca.as_ref().ok_or(Status::BadSystemState)?;
        steering::write(hca, &mut self.icm, index, entry, host)
    }

    /// Returns the guest's memory, addressed by keys. Returns `None` outside of INIT_HCA and CLOSE_HCA.
    pub(super) fn keyed<'a>(&'a self, host: &'a dyn Host) -> Option<Keyed<'a>> {
        Some(Keyed { regions: &self.regions, table: self.mtt().ok()?, host })
    }

    /// Executes a work request that changes the tables. Returns `None` outside of INIT_HCA and CLOSE_HCA.
    pub(super) fn run(
        &mut self,
        work: &LocalWork,
        who: Domain,
        host: &dyn Host,
    ) -> Option<Result<(), Refused>> {
        let base = self.hca.as_ref()?.mtt_base;
        Some(self.regions.run(work, who, base, &mut self.icm, host))
    }
}
