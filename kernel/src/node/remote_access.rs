//! The memory of this machine that peers can access: `remote=`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use platform::Memory;

use crate::cmdline;
use crate::machine::{self, RemoteAccess};
use crate::mm::arena::Arena;
use crate::mm::{frames, lent};

const MIB: u64 = 1 << 20;

/// Applies `remote=`. Call before LITE or an RNIC is started.
///
/// # Errors
/// A line for the user: `remote=` is malformed, or there is too little memory.
pub(super) fn set() -> Result<(), String> {
    let text = cmdline::get("remote").unwrap_or("all");
    let covered = lent::covered();
    let (_, free) = frames::lendable_totals();
    let len = match text.strip_prefix("arena") {
        None if text == "all" => {
            let (covered, log_page) = (covered.bytes() / MIB, covered.log_page);
            log::debug!("memory to lend: {covered} MiB in pages of {} KiB", 1u64 << log_page >> 10);
            return Ok(());
        }
        None if text == "physical" => {
            log::warn!(
                "remote=physical: peers can access all that a ConnectX-3 can address, also code and devices"
            );
            machine::set_remote_access(RemoteAccess::Physical);
            return Ok(());
        }
        // The rest is for the heap: the tables of applications, queues and connections.
        Some("") => free / 2,
        Some(size) => {
            let mib = size.strip_prefix(':').and_then(|mib| mib.parse::<u64>().ok());
            let bytes = mib.filter(|mib| *mib >= 2).and_then(|mib| mib.checked_mul(MIB));
            bytes.ok_or_else(|| format!("remote={text}: want arena:MIB, from 2 on"))?
        }
        None => return Err(format!("remote={text}: want all, physical, arena or arena:MIB")),
    };
    let missing = || format!("remote={text}: no {} MiB in one run; {} MiB are free", len / MIB, free / MIB);
    let arena = Arena::take(len).ok_or_else(missing)?;
    let (base, len) = arena.range();
    log::info!("peers reach {} MiB from {:#x} on", len / MIB, base.0);
    machine::set_remote_access(RemoteAccess::Arena(Arc::new(arena)));
    Ok(())
}
