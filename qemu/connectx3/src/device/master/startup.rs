//! The master's initialization of the card, before its slave starts.

use super::numbers::{LOG_CQS, LOG_EQS, LOG_MPTS, LOG_MTTS, LOG_QPS, LOG_RDMARC, LOG_SRQS};
use crate::device::adapter::Adapter;
use crate::device::icm::{CardMemory, Icm};
use crate::device::layout::init_hca;
use crate::device::mailbox::Mailbox;
use crate::device::port::Port;
use crate::device::queue_memory::MTT_ENTRY;

/// log2 of the length of a steering table entry, in bytes.
pub(super) const LOG_MCG_ENTRY: u8 = 10;
/// log2 of the number of entries in the steering table.
pub(super) const LOG_MCGS: u8 = 13;
/// log2 of the number of entries that a hash can select.
pub(super) const LOG_MCG_HASH: u8 = 12;

/// ICM address of the first table that the card reads. The other tables have addresses only for QUERY_HCA.
const MTT_BASE: u64 = 0;
/// ICM address of the steering table.
pub(super) const MCG_BASE: u64 = MTT_BASE + (MTT_ENTRY << LOG_MTTS);
/// The length of the steering table, in bytes.
pub(super) const MCG_LEN: u64 = 1 << (LOG_MCG_ENTRY + LOG_MCGS);
const MPT_BASE: u64 = MCG_BASE + MCG_LEN;
const MPT_ENTRY: u64 = 64;
const TABLES: u64 = MPT_BASE + (MPT_ENTRY << LOG_MPTS);

/// Puts the card into the state in which the physical function's driver leaves it: all tables empty, in
/// memory of the card.
pub(super) fn start(adapter: &mut Adapter) {
    adapter.forget_objects();
    adapter.tables.icm = Icm::Card(CardMemory::new(TABLES));
    adapter.ports.all = Port::all(&adapter.profile);
    adapter.firmware.running = true;
    if let Err(status) = adapter.init_hca(layout()) {
        log::error!("the master cannot bring the card up: {status}");
    }
}

/// Returns the mailbox of INIT_HCA.
fn layout() -> Mailbox {
    const VERSION: u32 = 2;
    const FLAGS_UD_PORT_CHECK_AND_COUNTERS: u32 = 1 << 4 | 1;
    const LOG_UARS: u32 = 11;
    let mut mailbox = Mailbox::default();
    mailbox.set(init_hca::VERSION, VERSION);
    mailbox.set(init_hca::FLAGS, FLAGS_UD_PORT_CHECK_AND_COUNTERS);
    let mut base = TABLES;
    // The address, log2 of the number of entries, and length of an entry in bytes.
    for (address, log_entries, bytes) in [
        (init_hca::QPC_BASE_HIGH, LOG_QPS, 256),
        (init_hca::SRQC_BASE_HIGH, LOG_SRQS, 128),
        (init_hca::CQC_BASE_HIGH, LOG_CQS, 128),
        (init_hca::ALTC_BASE_HIGH, LOG_QPS, 64),
        (init_hca::AUXC_BASE_HIGH, LOG_QPS, 128),
        (init_hca::EQC_BASE_HIGH, LOG_EQS, 128),
        (init_hca::RDMARC_BASE_HIGH, LOG_QPS + LOG_RDMARC, 32),
        (init_hca::CMPT_BASE_HIGH, LOG_MPTS, 64),
    ] {
        mailbox.set_double(address, base);
        base += bytes << log_entries;
    }
    for (field, log_entries) in [
        (init_hca::LOG_QPS, LOG_QPS),
        (init_hca::LOG_SRQS, LOG_SRQS),
        (init_hca::LOG_CQS, LOG_CQS),
        (init_hca::LOG_EQS, LOG_EQS),
        (init_hca::LOG_RDMARC, LOG_RDMARC),
        (init_hca::LOG_MCG_ENTRY, LOG_MCG_ENTRY),
        (init_hca::LOG_MCG_HASH, LOG_MCG_HASH),
        (init_hca::LOG_MCGS, LOG_MCGS),
        (init_hca::LOG_MPTS, LOG_MPTS),
    ] {
        mailbox.set(field, log_entries.into());
    }
    mailbox.set_double(init_hca::MCG_BASE_HIGH, MCG_BASE);
    mailbox.set_double(init_hca::DMPT_BASE_HIGH, MPT_BASE);
    mailbox.set(init_hca::UNICAST_STEERING, 1);
    mailbox.set_double(init_hca::MTT_BASE_HIGH, MTT_BASE);
    mailbox.set(init_hca::LOG_UARS, LOG_UARS);
    mailbox
}
