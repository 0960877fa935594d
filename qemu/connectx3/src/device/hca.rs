//! The parameters of INIT_HCA: the locations of the tables, and the steering scheme.

use super::hcr::Status;
use super::layout::init_hca;
use super::mailbox::Mailbox;
use super::profile::{Profile, Steering};
use super::steering::Found;

/// The parameters of INIT_HCA.
pub(super) struct Hca {
    /// The mailbox as the driver passed it, for QUERY_HCA.
    pub mailbox: Mailbox,
    /// ICM address of the MTT table.
    pub mtt_base: u64,
    /// ICM address of the multicast (and B0 steering) table.
    pub mcg_base: u64,
    /// log2 of the multicast table's entry size, of the length of its hash part, and of its total length.
    pub mcg_log: [u8; 3],
    /// True if the entries of event queues have twice the usual length.
    pub large_eqes: bool,
    /// True if the entries of completion queues have twice the usual length.
    pub large_cqes: bool,
    /// The cache of steering entries found in the multicast table.
    pub found: Found,
    /// The scheme by which Ethernet frames find their queue pairs.
    pub steering: Steering,
}

impl Hca {
    /// Parses the mailbox of INIT_HCA.
    ///
    /// # Errors
    ///
    /// Fails if the interface's version is unknown, or if the card does not offer what the mailbox enables.
    pub(super) fn parse(mailbox: Mailbox, profile: &Profile) -> Result<Self, Status> {
        const VERSION: u32 = 2;
        const DEVICE_MANAGED: u32 = 1 << 6;
        const LARGE_EQE: u32 = 1 << 29;
        const LARGE_CQE: u32 = 1 << 30;
        if mailbox.field(init_hca::VERSION) != VERSION {
            return Err(Status::BadParameter);
        }
        let steering = match (
            mailbox.field(init_hca::FLAGS) & DEVICE_MANAGED != 0,
            mailbox.field(init_hca::UNICAST_STEERING) != 0,
        ) {
            (true, _) => Steering::Flows,
            (false, true) => Steering::Groups,
            (false, false) => Steering::Table,
        };
        if !profile.steering.offers(steering) {
            return Err(Status::BadParameter);
        }
        let large = mailbox.field(init_hca::ENTRY_SIZES);
        if large & (LARGE_EQE | LARGE_CQE) != 0 && !profile.large_entries {
            return Err(Status::BadParameter);
        }
        let log = |field| mailbox.field(field) as u8 & 0x1f;
        Ok(Self {
            mtt_base: mailbox.double(init_hca::MTT_BASE_HIGH),
            mcg_base: mailbox.double(init_hca::MCG_BASE_HIGH),
            mcg_log: [init_hca::LOG_MCG_ENTRY, init_hca::LOG_MCG_HASH, init_hca::LOG_MCGS].map(log),
            large_eqes: large & LARGE_EQE != 0,
            large_cqes: large & LARGE_CQE != 0,
            found: Found::default(),
            steering,
            mailbox,
        })
    }
}
