//! The way out of long mode: into the kernel, or into the stub at another place.

use crate::mem::{self, address_of};
use crate::workspace::{Settings, Workspace};
use handover::{Kernel, StartInfo};

/// Jumps to a 32-bit address with paging off. `value` is in ebx and esi there.
///
/// # Safety
/// The workspace must lie below 4 GiB, be executable and mapped one to one; `address` must be 32-bit code
/// that expects `value`.
pub(crate) unsafe fn jump(workspace: &mut Workspace, address: u32, value: u32) -> ! {
    let (from, end) = (address_of!("leave_start"), address_of!("leave_end"));
    let len = (end as usize - from as usize).min(workspace.leave.len());
    // SAFETY: the code lies between the two symbols, and works at any address.
    unsafe { mem::copy(from, workspace.leave.as_mut_ptr(), len) };
    let code = workspace.leave.as_ptr();
    // SAFETY: the copied code takes these registers, and does not return.
    unsafe {
        core::arch::asm!("jmp {code}", code = in(reg) code, in("edi") address, in("esi") value, options(noreturn))
    }
}

/// Enters the kernel, whose segments are loaded `distance` bytes above the addresses for which it is linked,
/// with the map and the command line in the workspace.
///
/// # Safety
/// As for [`jump`]; the map must be that of the machine, and nothing else may use its RAM any more.
pub(crate) unsafe fn enter(
    workspace: &mut Workspace,
    kernel: &Kernel<'_>,
    distance: u32,
    rsdp: Option<u64>,
    settings: &Settings,
) -> ! {
    let count = workspace.set_modules(settings);
    let cmdline = workspace.cmdline.as_ptr() as u64;
    let (map, modules) = (workspace.map.entries(), workspace.modules.as_ptr() as u64);
    workspace.start_info = StartInfo::new(cmdline, rsdp.unwrap_or(0))
        .with_map(map.as_ptr() as u64, map.len() as u32)
        .with_modules(modules, count);
    let info = &raw const workspace.start_info as u32;
    // SAFETY: the caller's promise; the entry of PVH expects the start info in ebx.
    unsafe { jump(workspace, kernel.entry().wrapping_add(distance), info) }
}
