//! Commands for the locations of the tables: INIT_HCA, QUERY_HCA, CLOSE_HCA.

use super::io::Output;
use crate::device::adapter::Adapter;
use crate::device::clock;
use crate::device::cq::Cqs;
use crate::device::eq::Eqs;
use crate::device::hca::Hca;
use crate::device::hcr::Status;
use crate::device::layout::{ENTRY, init_hca};
use crate::device::mailbox::Mailbox;
use crate::device::memory::Regions;

impl Adapter {
    /// INIT_HCA: checks the parameters and sets up empty tables.
    pub(crate) fn init_hca(&mut self, mailbox: Mailbox) -> Result<Output, Status> {
        if !self.firmware.running || self.tables.hca.is_some() {
            return Err(Status::BadSystemState);
        }
        let hca = Hca::parse(mailbox, &self.profile)?;
        self.eqs = Eqs::new(if hca.large_eqes { 2 * ENTRY } else { ENTRY });
        self.traffic.queues.cqs = Cqs::new(if hca.large_cqes { 2 * ENTRY } else { ENTRY });
        let regions = hca.mailbox.double(init_hca::DMPT_BASE_HIGH);
        let log_regions = hca.mailbox.field(init_hca::LOG_MPTS) as u8;
        self.tables.regions = Regions::new(regions, log_regions, self.traffic.costs.clone());
        self.tables.hca = Some(hca);
        Ok(Output::None)
    }

    pub(super) fn query_hca(&self) -> Result<Output, Status> {
        let mut out = self.tables.hca()?.mailbox.clone();
        // The clock's frequency. The same bytes mean something else in INIT_HCA.
        out.put_u16(0x00c, clock::MHZ);
        Ok(Output::Mailbox(out))
    }

    pub(super) fn close_hca(&mut self) -> Result<Output, Status> {
        self.forget_objects();
        Ok(Output::None)
    }
}
