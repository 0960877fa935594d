//! The master's initialization of the card, before its slave starts.

use super::numbers::{LOG_CQS, LOG_EQS, LOG_MPTS, LOG_MTTS, LOG_QPS, LOG_RDMARC, LOG_SRQS};
use crate::device::Card;
use crate::device::icm::{CardMemory, Icm};
use crate::device::mailbox::Mailbox;
use crate::device::port::Port;
use crate::device::queue_memory::MTT_ENTRY;

/// log2 of the length of a steering table entry, in bytes.
pub const LOG_MCG_ENTRY: u8 = 10;
/// log2 of the number of entries in the steering table.
pub const LOG_MCGS: u8 = 13;
/// log2 of the number of entries that a hash can select.
pub const LOG_MCG_HASH: u8 = 12;

/// ICM address of the first table that the card reads. The other tables have addresses only for QUERY_HCA.
const MTT_BASE: u64 = 0;
/// ICM address of the steering table.
pub const MCG_BASE: u64 = MTT_BASE + (MTT_ENTRY << LOG_MTTS);
/// The length of the steering table, in bytes.
pub const MCG_LEN: u64 = 1 << (LOG_MCG_ENTRY + LOG_MCGS);
const MPT_BASE: u64 = MCG_BASE + MCG_LEN;
const MPT_ENTRY: u64 = 64;
const TABLES: u64 = MPT_BASE + (MPT_ENTRY << LOG_MPTS);

/// Puts the card into the state in which the physical function's driver leaves it: all tables empty, in
/// memory of the card.
pub fn start(card: &mut Card) {
    card.forget_objects();
    card.icm = Icm::Card(CardMemory::new(TABLES));
    card.ports = Port::all(&card.profile);
    card.firmware.running = true;
    if let Err(status) = card.init_hca(layout()) {
        log::error!("the master cannot bring the card up: {status}");
    }
}

/// Returns the mailbox of INIT_HCA.
fn layout() -> Mailbox {
    const VERSION: u8 = 2;
    const FLAGS_UD_PORT_CHECK_AND_COUNTERS: u32 = 1 << 4 | 1;
    const UNICAST_STEERING: u8 = 1 << 3;
    const LOG_UARS: u8 = 11;
    let mut mailbox = Mailbox::default();
    mailbox.put_u8(0x000, VERSION);
    mailbox.put_u32(0x014, FLAGS_UD_PORT_CHECK_AND_COUNTERS);
    let mut base = TABLES;
    // Offset of the address, log2 of the number of entries, and length of an entry in bytes.
    for (offset, log_entries, bytes) in [
        (0x030, LOG_QPS, 256),
        (0x048, LOG_SRQS, 128),
        (0x050, LOG_CQS, 128),
        (0x060, LOG_QPS, 64),
        (0x070, LOG_QPS, 128),
        (0x080, LOG_EQS, 128),
        (0x090, LOG_QPS + LOG_RDMARC, 32),
        (0x108, LOG_MPTS, 64),
    ] {
        mailbox.put_u64(offset, base);
        base += bytes << log_entries;
    }
    for (offset, log_entries) in
        [(0x037, LOG_QPS), (0x04f, LOG_SRQS), (0x057, LOG_CQS), (0x087, LOG_EQS), (0x097, LOG_RDMARC)]
    {
        mailbox.put_u8(offset, log_entries);
    }
    mailbox.put_u64(0x0c0, MCG_BASE);
    mailbox.put_u64(0x0f0, MPT_BASE);
    mailbox.put_u8(0x0d3, LOG_MCG_ENTRY);
    mailbox.put_u8(0x0d7, LOG_MCG_HASH);
    mailbox.put_u8(0x0d8, UNICAST_STEERING);
    mailbox.put_u8(0x0db, LOG_MCGS);
    mailbox.put_u8(0x0fb, LOG_MPTS);
    mailbox.put_u64(0x100, MTT_BASE);
    mailbox.put_u8(0x12a, LOG_UARS);
    mailbox
}
