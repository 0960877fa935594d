//! Commands for the locations of the tables: INIT_HCA, QUERY_HCA, CLOSE_HCA.

use super::Output;
use crate::device::Card;
use crate::device::clock;
use crate::device::cq::{CQE, Cqs};
use crate::device::eq::{EQE, Eqs};
use crate::device::hcr::Status;
use crate::device::mailbox::Mailbox;
use crate::device::memory::Regions;
use crate::device::profile::Steering;
use crate::device::steering::Found;

/// The parameters of INIT_HCA.
pub struct Hca {
    /// The mailbox as the driver passed it, for QUERY_HCA.
    mailbox: Mailbox,
    /// ICM address of the MTT table.
    pub mtt_base: u64,
    /// ICM address of the multicast (and B0 steering) table.
    pub mcg_base: u64,
    /// log2 of the multicast table's entry size, of the length of its hash part, and of its total length.
    pub mcg_log: [u8; 3],
    /// The cache of steering entries found in the multicast table.
    pub found: Found,
    /// The scheme by which Ethernet frames find their queue pairs.
    pub steering: Steering,
}

impl Card {
    /// INIT_HCA: checks the parameters and sets up empty tables.
    pub(in crate::device) fn init_hca(&mut self, mailbox: Mailbox) -> Result<Output, Status> {
        const VERSION: u8 = 2;
        const DEVICE_MANAGED: u32 = 1 << 6;
        const LARGE_EQE: u32 = 1 << 29;
        const LARGE_CQE: u32 = 1 << 30;
        const UNICAST_GROUPS: u8 = 1 << 3;
        if !self.firmware.running || self.hca.is_some() {
            return Err(Status::BadSystemState);
        }
        if mailbox.u8(0) != VERSION {
            return Err(Status::BadParameter);
        }
        let steering =
            match (mailbox.u32(0x14) & DEVICE_MANAGED != 0, mailbox.u8(0x0d8) & UNICAST_GROUPS != 0) {
                (true, _) => Steering::Flows,
                (false, true) => Steering::Groups,
                (false, false) => Steering::Table,
            };
        if !self.profile.steering.offers(steering) {
            return Err(Status::BadParameter);
        }
        let large = mailbox.u32(0x58);
        if large & (LARGE_EQE | LARGE_CQE) != 0 && !self.profile.large_entries {
            return Err(Status::BadParameter);
        }
        self.eqs = Eqs::new(if large & LARGE_EQE != 0 { 2 * EQE } else { EQE });
        self.cqs = Cqs::new(if large & LARGE_CQE != 0 { 2 * CQE } else { CQE });
        self.regions = Regions::new(mailbox.u64(0x0f0), mailbox.u8(0x0fb) & 0x3f, self.costs.clone());
        self.hca = Some(Hca {
            mtt_base: mailbox.u64(0x100),
            mcg_base: mailbox.u64(0x0c0),
            mcg_log: [mailbox.u8(0x0d3) & 0x1f, mailbox.u8(0x0d7) & 0x1f, mailbox.u8(0x0db) & 0x1f],
            found: Found::default(),
            steering,
            mailbox,
        });
        Ok(Output::None)
    }

    pub(super) fn query_hca(&self) -> Result<Output, Status> {
        let mut out = self.hca.as_ref().ok_or(Status::BadSystemState)?.mailbox.clone();
        // The clock's frequency. The same bytes mean something else in INIT_HCA.
        out.put_u16(0x00c, clock::MHZ);
        Ok(Output::Mailbox(out))
    }

    pub(super) fn close_hca(&mut self) -> Result<Output, Status> {
        self.forget_objects();
        Ok(Output::None)
    }
}
