//! Warm boot: this kernel enters another kernel, without firmware. The other kernel is put into
//! free memory, since a kernel runs at any multiple of 2 MiB below 4 GiB; so no byte of this kernel
//! is overwritten before the jump.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::arch::asm;
use core::sync::atomic::Ordering;
use core::time::Duration;
use handover::{Entry, Kernel, Module, RAM, StartInfo};
use x86_64::{PhysAddr, VirtAddr};
use zeroize::Zeroizing;

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

/// The inputs of another kernel.
#[derive(Default)]
pub(crate) struct Passed {
    /// The command line.
    pub cmdline: String,
    /// The modules: the name by which the kernel knows it, if it has one, and the contents.
    pub modules: Vec<(Option<&'static str>, Zeroizing<Vec<u8>>)>,
}

/// A run of frames below [`END`], which is freed when dropped.
struct Run {
    at: PhysAddr,
    len: u64,
}

impl Run {
    /// Allocates a run, aligned to `align`. Returns `None` if no such run is free.
    fn new(len: u64, align: u64) -> Option<Self> {
        frames::alloc_within(len, align, END).map(|at| Self { at, len })
    }

    /// Leaves the run allocated.
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: the run is mapped, and nothing else uses it. It may contain a key.
        unsafe { mm::phys_to_virt(self.at).write_bytes(0, self.len as usize) };
        frames::free(self.at, self.len);
    }
}

/// A kernel in memory, ready to be entered.
pub(crate) struct Next {
    entry: u32,
    start_info: u32,
    /// The page from which the other kernel is entered.
    page: PhysAddr,
}

impl Next {
    /// Puts the kernel of the ELF file `file` into memory, with what is `passed` to it, and with the memory
    /// map and ACPI's root pointer of `boot`.
    ///
    /// # Errors
    /// A line for the user: the file is no kernel, or there is no memory for it.
    pub(crate) fn load(file: &[u8], passed: &Passed, boot: &BootInfo) -> Result<Self, String> {
        let kernel = Kernel::parse(file).map_err(|e| format!("this is not a kernel: {}", e.text()))?;
        let span = kernel.span();
        let len = span.end - span.start;
        let room = Run::new(len, ALIGN).ok_or("there is no memory for the other kernel")?;
        let place = room.at;
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
        let (info_room, start_info) = describe(passed, boot)?;
        let page = boot.ram.start_page(&boot.modules).ok_or("there is no page of RAM below 640 KiB")?;
        let (first, last) = (&raw const leave_start, &raw const leave_end);
        // SAFETY: the page is RAM that only the start of processors uses, which is over.
        unsafe { mm::phys_to_virt(page).copy_from_nonoverlapping(first, last as usize - first as usize) };
        let low = VirtAddr::new_truncate(page.as_u64());
        paging::map(low, page, mm::PAGE, Rights::Text).map_err(|e| format!("the page for the jump: {e}"))?;
        // The other kernel has them.
        room.keep();
        info_room.keep();
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
        let image = mm::image();
        // SAFETY: the page is mapped one to one and holds the code, which never returns. Devices and other
        // processors are stopped, so nothing uses the memory of this kernel any more. The code writes zeros
        // to the image, in which neither the page nor the memory of the other kernel lies.
        unsafe {
            asm!(
                "jmp {page}",
                page = in(reg) self.page.as_u64(),
                in("rdi") u64::from(self.entry),
                in("rsi") u64::from(self.start_info),
                in("r8") image.phys,
                in("r9") (image.end - image.start) / 4,
                options(noreturn)
            )
        }
    }
}

/// The structures that the other kernel reads at its start, in one run of memory whose first bytes have a
/// fixed address only once all others are known.
#[derive(Default)]
struct Blob {
    /// The bytes, which may contain a key.
    bytes: Zeroizing<Vec<u8>>,
}

impl Blob {
    /// Appends bytes, and returns their place in the blob. A zero follows.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len().next_multiple_of(size_of::<u64>());
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(bytes);
        self.bytes.push(0);
        at as u64
    }
}

/// Writes a start info with the modules that `passed` names. Returns its memory and its address.
fn describe(passed: &Passed, boot: &BootInfo) -> Result<(Run, u32), String> {
    let mut blob = Blob::default();
    let info_at = blob.push(&[0; size_of::<StartInfo>()]);
    let map: Vec<_> = boot.ram.iter().map(|r| Entry::new(r.start.as_u64(), r.len(), RAM)).collect();
    let map_at = blob.push(&vec![0; size_of_val(&*map)]);
    let cmdline_at = blob.push(passed.cmdline.as_bytes());
    let modules: Vec<_> = passed
        .modules
        .iter()
        .map(|(name, bytes)| {
            let name = name.map(|name| blob.push(name.as_bytes()));
            (name, blob.push(bytes), bytes.len() as u64)
        })
        .collect();
    let table_at = blob.push(&vec![0; modules.len() * size_of::<Module>()]);
    let len = blob.bytes.len() as u64;
    let room = Run::new(len, mm::PAGE).ok_or("there is no memory for the start info")?;
    let at = room.at;
    let base = at.as_u64();
    let rsdp = boot.rsdp.map_or(0, PhysAddr::as_u64);
    let info = StartInfo::new(base + cmdline_at, rsdp)
        .with_map(base + map_at, map.len() as u32)
        .with_modules(base + table_at, modules.len() as u32);
    let to = mm::phys_to_virt(at);
    // SAFETY: the run has room for the blob, in which the info, the map and the table of modules have their
    // places. It is mapped, and used by nothing else.
    unsafe {
        to.copy_from_nonoverlapping(blob.bytes.as_ptr(), blob.bytes.len());
        to.add(info_at as usize).cast::<StartInfo>().write_unaligned(info);
        to.add(map_at as usize).copy_from_nonoverlapping(map.as_ptr().cast(), size_of_val(&*map));
        for (index, (name, start, len)) in modules.into_iter().enumerate() {
            let module = Module::new(base + start, len).named(name.map_or(0, |name| base + name));
            let at = table_at as usize + index * size_of::<Module>();
            to.add(at).cast::<Module>().write_unaligned(module);
        }
    }
    let start_info = u32::try_from(base + info_at).map_err(|_| "the start info lies above 4 GiB")?;
    Ok((room, start_info))
}
