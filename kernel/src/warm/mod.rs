//! Warm boot: this kernel enters another kernel, without firmware. The other kernel is put into
//! free memory, since a kernel runs at any multiple of 2 MiB below 4 GiB; so no byte of this kernel
//! is overwritten before the jump.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::Ordering;
use core::time::Duration;
use handover::{Entry, Kernel, RAM, StartInfo};
use x86_64::{PhysAddr, VirtAddr};

use crate::arch::{apic, cpu, percpu};
use crate::boot::BootInfo;
use crate::mm::paging::{self, Rights};
use crate::mm::{self, frames};
use crate::{console, pci, time, virtio};

core::arch::global_asm!(include_str!("leave.s"), options(att_syntax));

unsafe extern "C" {
    static leave_start: u8;
    static leave_end: u8;
}

/// The end of the memory in which a kernel and its start info lie.
const END: u64 = 4 << 30;
/// The alignment of a kernel.
const ALIGN: u64 = 2 << 20;
/// The time for a processor to take an INIT.
const INIT: Duration = Duration::from_micros(200);

/// A kernel in memory, ready to be entered.
pub(crate) struct Next {
    entry: u32,
    start_info: u32,
    /// The page from which the other kernel is entered.
    page: PhysAddr,
}

impl Next {
    /// Puts the kernel of the ELF file `file` into memory, with the command line `cmdline`, and
    /// with the memory map and ACPI's root pointer of `boot`.
    ///
    /// # Errors
    /// A line for the user: the file is no kernel, or there is no memory for it.
    pub(crate) fn load(file: &[u8], cmdline: &str, boot: &BootInfo) -> Result<Self, String> {
        let kernel = Kernel::parse(file).map_err(|e| format!("this is not a kernel: {}", e.text()))?;
        let span = kernel.span();
        let len = span.end - span.start;
        let place = frames::alloc_within(len, ALIGN, END).ok_or("there is no memory for the other kernel")?;
        for segment in kernel.segments() {
            let at = mm::phys_to_virt(place + (segment.at - span.start));
            let bytes = segment.bytes;
            // SAFETY: the parser has checked that each segment lies in the span, for which the run
            // has room. It is mapped, and used by nothing else.
            unsafe {
                at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                at.add(bytes.len()).write_bytes(0, segment.zeros as usize);
            }
        }
        let distance = place.as_u64().wrapping_sub(span.start);
        let start_info = describe(cmdline, boot)?;
        let page = boot.ram.start_page(&boot.modules).ok_or("there is no page of RAM below 640 KiB")?;
        let (first, last) = (&raw const leave_start, &raw const leave_end);
        // SAFETY: the page is RAM that only the start of processors uses, which is over.
        unsafe { mm::phys_to_virt(page).copy_from_nonoverlapping(first, last as usize - first as usize) };
        let low = VirtAddr::new_truncate(page.as_u64());
        paging::map(low, page, mm::PAGE, Rights::Text).map_err(|e| format!("the page for the jump: {e}"))?;
        Ok(Self { entry: (u64::from(kernel.entry()).wrapping_add(distance)) as u32, start_info, page })
    }

    /// Stops all devices and all other processors, and enters the other kernel.
    pub(crate) fn enter(self) -> ! {
        console::flush();
        cpu::interrupts_off();
        apic::set_timer(None);
        for function in pci::functions() {
            virtio::reset(&function);
            function.stop();
        }
        let me = apic::id();
        let ids = (0..percpu::limit()).filter_map(percpu::cpu).map(|cpu| cpu.apic_id.load(Ordering::Relaxed));
        ids.filter(|id| *id != me).for_each(apic::send_init);
        time::spin_for(INIT);
        // SAFETY: the page is mapped one to one and holds the code, which never returns. Devices and other
        // processors are stopped, so nothing uses the memory of this kernel any more.
        unsafe {
            asm!(
                "jmp {page}",
                page = in(reg) self.page.as_u64(),
                in("rdi") u64::from(self.entry),
                in("rsi") u64::from(self.start_info),
                options(noreturn)
            )
        }
    }
}

/// Writes a start info, whose address is returned.
fn describe(cmdline: &str, boot: &BootInfo) -> Result<u32, String> {
    let map: Vec<_> = boot.ram.iter().map(|r| Entry::new(r.start.as_u64(), r.len(), RAM)).collect();
    let (info_len, map_len) = (size_of::<StartInfo>(), size_of_val(&*map));
    let len = info_len + map_len + cmdline.len() + 1;
    let at =
        frames::alloc_within(len as u64, mm::PAGE, END).ok_or("there is no memory for the start info")?;
    let (map_at, cmdline_at) = (at.as_u64() + info_len as u64, at.as_u64() + (info_len + map_len) as u64);
    let rsdp = boot.rsdp.map_or(0, PhysAddr::as_u64);
    let info = StartInfo::new(cmdline_at, rsdp).with_map(map_at, map.len() as u32);
    let to = mm::phys_to_virt(at);
    // SAFETY: the run has room for all three, is mapped, and is used by nothing else.
    unsafe {
        to.cast::<StartInfo>().write_unaligned(info);
        to.add(info_len).copy_from_nonoverlapping(map.as_ptr().cast(), map_len);
        to.add(info_len + map_len).copy_from_nonoverlapping(cmdline.as_ptr(), cmdline.len());
        to.add(len - 1).write(0);
    }
    u32::try_from(at.as_u64()).map_err(|_| "the start info lies above 4 GiB".into())
}
