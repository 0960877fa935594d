//! The slave's queries about firmware, card and function: QUERY_FW, QUERY_DEV_CAP, QUERY_FUNC_CAP.

use super::tracker::{INVALID, Result, Tracker};
use super::{native, numbers};
use crate::device::adapter::Adapter;
use crate::device::command::Output;
use crate::device::hcr::Command;
use crate::device::host::Host;
use crate::device::layout::device_capabilities as cap;
use crate::device::mailbox::Mailbox;
use crate::device::opcode as op;
use numbers::Special;

/// Returns the card's answer to a query without parameters.
fn ask(adapter: &mut Adapter, opcode: u16, host: &dyn Host) -> Result<Mailbox> {
    match native(adapter, &Command { opcode, ..Command::default() }, host)? {
        Output::Mailbox(mailbox) => Ok(mailbox),
        Output::None | Output::Immediate(_) => Err(INVALID),
    }
}

/// QUERY_FW: returns only the version. The registers that it would name are not accessible to the slave.
pub(super) fn firmware(adapter: &mut Adapter, host: &dyn Host) -> Result<Output> {
    const NO_PRIMARY_FUNCTION: u8 = 0xff;
    let mut out = ask(adapter, op::QUERY_FW, host)?;
    out.put_u16(0x00, 0);
    out.put(0x08, &[0; 0xf8]);
    out.put_u8(0x09, NO_PRIMARY_FUNCTION);
    Ok(Output::Mailbox(out))
}

/// QUERY_DEV_CAP, without the features that slaves do not have: RoCE v2, memory windows, timestamps,
/// BlueFlame, device-managed steering, tunnels and the physical port's own features.
pub(super) fn capabilities(adapter: &mut Adapter, host: &dyn Host) -> Result<Output> {
    const ROCE_V2: u64 = 1 << 63;
    const PORT_MANAGEMENT_EVENTS: u64 = 1 << 59;
    const RSS_OF_FRAGMENTS: u64 = 1 << 52;
    const MEMORY_WINDOWS: u64 = 1 << 16;
    const EXT2_PHYSICAL: u32 = 1 << 28 | 1 << 26 | 1 << 24 | 1 << 21 | 1 << 20;
    const BMME_ROCE_V2_WINDOWS_REMAP: u32 = 1 << 24 | 1 << 19 | 1 << 9;
    let mut out = ask(adapter, op::QUERY_DEV_CAP, host)?;
    let flags = out.double(cap::FLAGS_HIGH) & !(ROCE_V2 | RSS_OF_FRAGMENTS | MEMORY_WINDOWS);
    out.set_double(cap::FLAGS_HIGH, flags | PORT_MANAGEMENT_EVENTS);
    out.set(cap::EXTENDED_FLAGS, out.field(cap::EXTENDED_FLAGS) & !EXT2_PHYSICAL);
    out.set(cap::BMME_FLAGS, out.field(cap::BMME_FLAGS) & !BMME_ROCE_V2_WINDOWS_REMAP);
    for (field, removed) in [
        (cap::PORT_BEACON, 1 << 7),
        (cap::CQ_TIMESTAMPS, 1 << 7),
        (cap::BLUE_FLAME, 1 << 7),
        (cap::FLOW_STEERING_IPOIB, 1 << 7),
        (cap::FLOW_STEERING, 1 << 7),
        (cap::QOS_PER_FUNCTION, 1),
        (cap::CONGESTION_NOTIFICATION, 1),
        (cap::KEEP_FCS, 1),
        (cap::TUNNELS, 1 << 3 | 1 << 5),
    ] {
        out.set(field, out.field(field) & !removed);
    }
    // The number of rates to which queue pairs can be limited.
    out.set(cap::RATE_LIMITS, 0);
    Ok(Output::Mailbox(out))
}

/// QUERY_FUNC_CAP: returns the capabilities of the function, or of one of its ports.
pub(super) fn function(adapter: &Adapter, tracker: &Tracker, command: &Command) -> Result<Output> {
    const OF_FUNCTION: u8 = 0;
    const OF_PORT: u8 = 1;
    match command.op_mod {
        OF_FUNCTION => Ok(Output::Mailbox(of_function(adapter, tracker, command.in_mod))),
        OF_PORT => of_port(adapter, command.in_mod).map(Output::Mailbox),
        _ => Err(INVALID),
    }
}

fn of_function(adapter: &Adapter, tracker: &Tracker, slave_flags: u32) -> Mailbox {
    const ETHERNET: u8 = 0x80;
    const RDMA: u8 = 0x40;
    const QUOTAS: u8 = 0x10;
    const RESERVED_LKEY: u8 = 0x08;
    const EXTRA_FLAGS: u8 = 0x04;
    const TAKES_ANY_NUMBER_OF_EQS: u32 = 1 << 31;
    const MAY_ASK_FOR_BLUE_FLAME_AND_A0_QPNS: u32 = 1 << 31 | 1 << 30;
    const STEERING_ENTRIES: u32 = (super::startup::MCG_LEN >> super::startup::LOG_MCG_ENTRY) as u32;
    let mut out = Mailbox::default();
    out.put_u8(0x00, ETHERNET | RDMA | QUOTAS | RESERVED_LKEY | EXTRA_FLAGS);
    out.put_u8(0x01, adapter.ports.all.len() as u8);
    for (offset, quota, all) in [
        (0x10, tracker.qps.quota(), 1 << numbers::LOG_QPS),
        (0x14, tracker.cqs.quota(), 1 << numbers::LOG_CQS),
        (0x18, tracker.srqs.quota(), 1 << numbers::LOG_SRQS),
        (0x20, tracker.mpts.quota(), 1 << numbers::LOG_MPTS),
        (0x24, tracker.mtts.quota(), 1 << numbers::LOG_MTTS),
        (0x28, STEERING_ENTRIES, STEERING_ENTRIES),
    ] {
        // Old slaves read the card's total from the first word; others read their quota from the second.
        out.put_u32(offset, all);
        out.put_u32(offset + 0x40, quota);
    }
    let eqs =
        if slave_flags & TAKES_ANY_NUMBER_OF_EQS != 0 { numbers::EQS } else { 1 << numbers::EQS.ilog2() };
    out.put_u32(0x2c, eqs);
    out.put_u32(0x30, numbers::RESERVED_EQS);
    out.put_u32(0x48, numbers::RESERVED_LKEY);
    out.put_u32(0x6c, MAY_ASK_FOR_BLUE_FLAME_AND_A0_QPNS);
    out
}

fn of_port(adapter: &Adapter, number: u32) -> Result<Mailbox> {
    const PORT_ID_VALID: u8 = 0x10;
    let index =
        number.checked_sub(1).filter(|&index| (index as usize) < adapter.ports.all.len()).ok_or(INVALID)?;
    let mut out = Mailbox::default();
    out.put_u8(0x03, number as u8);
    out.put_u8(0x0c, PORT_ID_VALID);
    out.put_u32(0x10, numbers::tunnel(Special::Smi, index));
    out.put_u32(0x14, numbers::proxy(Special::Smi, index));
    out.put_u32(0x18, numbers::tunnel(Special::Gsi, index));
    out.put_u32(0x1c, numbers::proxy(Special::Gsi, index));
    out.put_u64(0x28, adapter.profile.guid(index as usize));
    Ok(out)
}
