//! The entries of Linux's boot protocol.

use crate::payload::{self, Image};
use crate::serial::Part::{Hex, Text};
use crate::workspace::{self, CMDLINE};
use crate::{efi, halt, leave, serial};
use handover::{BootParams, Kernel, Map, Module, PARAMS_LEN, Place, Span};

/// The first address that 32 bits do not reach.
const FOUR_GIB: u64 = 1 << 32;
/// The alignment of the image when it moves.
const ALIGN: u64 = 2 << 20;
/// The end of the memory that BIOSes, and the real-mode part, use.
const LOW_MEMORY: u64 = 1 << 20;

/// Called by entry.s: `params` are Linux's boot parameters, `memory` is the free memory behind the image,
/// `width` is 32 if this program has made the page tables, and otherwise 64.
#[unsafe(no_mangle)]
unsafe extern "C" fn linux_main(params: u64, memory: u64, width: u32) -> ! {
    let params_at = params;
    // SAFETY: the loader has put the boot parameters there.
    let params = BootParams::new(unsafe { &*(params as *const [u8; PARAMS_LEN]) });
    // SAFETY: the loader leaves the memory behind the image free (`init_size`).
    let workspace = unsafe { workspace::at(memory) };
    let (image, version) = (Image::own(), params.loader());
    params.read_map(&mut workspace.map);
    let kernel = image.kernel();
    let with_memory = Span::new(image.start, image.len + workspace::LEN);
    if width == 64 || with_memory.end > FOUR_GIB || with_memory.overlaps(&kernel.span()) {
        serial::line(&[
            Hex(u64::from(width)),
            Text("-bit entry of Linux at "),
            Hex(image.start),
            Text(", loader "),
            Hex(u64::from(version)),
        ]);
        let taken = taken(&params, params_at, &kernel, with_memory);
        // SAFETY: the boot parameters describe the machine.
        unsafe { start_anew(&workspace.map, &image, &taken, params_at) }
    }
    serial::line(&[Text("at "), Hex(image.start), Text(", loader "), Hex(u64::from(version))]);
    if !Place::is_ram(&kernel.span(), workspace.map.entries()) {
        refuse(&kernel);
    }
    // SAFETY: the boot parameters name the loader's command line.
    workspace.set_cmdline(image.cmdline, unsafe { workspace::cmdline_of(&params) });
    let module =
        params.ramdisk().map(|(at, len)| clear_of(&kernel, Span::new(at, len), with_memory, &workspace.map));
    // SAFETY: a loader that EFI has loaded passes EFI's system table, which stays where it is.
    let rsdp = params.rsdp().or_else(|| unsafe { efi::root_pointer(params.efi_system_table()?, FOUR_GIB) });
    // SAFETY: the kernel's place is RAM, and neither the image nor the RAM disk lies there. Everything else
    // that the loader has passed has been copied.
    unsafe {
        payload::load(&kernel);
        leave::enter(workspace, &kernel, rsdp, [module, image.module()])
    }
}

/// Returns the memory that the stub must not move to.
fn taken(params: &BootParams<'_>, params_at: u64, kernel: &Kernel<'_>, image: Span) -> [Span; 6] {
    let ramdisk = params.ramdisk().map(|(at, len)| Span::new(at, len));
    let cmdline = params.cmdline().map(|at| Span::new(at, CMDLINE as u64));
    [
        Span::new(0, LOW_MEMORY),
        kernel.span(),
        image,
        Span::new(params_at, PARAMS_LEN as u64),
        ramdisk.unwrap_or_default(),
        cmdline.unwrap_or_default(),
    ]
}

/// Starts the stub again by its 32-bit entry: with page tables of its own, below 4 GiB, and apart from the
/// kernel's place. It moves there if it must.
///
/// # Safety
/// `params` must be the address of the boot parameters.
unsafe fn start_anew(map: &Map, image: &Image, taken: &[Span], params: u64) -> ! {
    let place = Place { len: image.len + workspace::LEN, align: ALIGN, from: LOW_MEMORY, below: FOUR_GIB };
    let Some(to) = place.find(map.entries(), taken) else {
        serial::line(&[Text("no "), Hex(place.len), Text(" free bytes of RAM below 4 GiB")]);
        halt()
    };
    // SAFETY: the new place is free RAM, and the loader's page tables map RAM one to one. The memory behind
    // the new image is the new workspace, whose code runs below 4 GiB. The boot parameters and the command
    // line move along, because they may lie above.
    unsafe {
        core::ptr::copy_nonoverlapping(image.start as *const u8, to.start as *mut u8, image.len as usize);
        let memory = to.start + image.len;
        let copy = &mut *((memory + workspace::PARAMS) as *mut [u8; PARAMS_LEN]);
        *copy = *(params as *const [u8; PARAMS_LEN]);
        if let Some(line) = BootParams::new(copy).cmdline() {
            let at = memory + workspace::PARAMS_CMDLINE;
            core::ptr::copy_nonoverlapping(line as *const u8, at as *mut u8, CMDLINE);
            BootParams::set_cmdline(copy, at as u32);
        }
        leave::jump(workspace::at(memory), to.start as u32, (memory + workspace::PARAMS) as u32)
    }
}

fn refuse(kernel: &Kernel<'_>) -> ! {
    let span = kernel.span();
    serial::line(&[
        Text("no free RAM from "),
        Hex(span.start),
        Text(" to "),
        Hex(span.end),
        Text(", where the kernel must lie"),
    ]);
    halt()
}

/// Returns the module at `at`. Moves it if the kernel is to lie there.
fn clear_of(kernel: &Kernel<'_>, at: Span, image: Span, map: &Map) -> Module {
    let len = at.end - at.start;
    if !at.overlaps(&kernel.span()) {
        return Module::new(at.start, len);
    }
    let place = Place { len, align: 4096, from: LOW_MEMORY, below: FOUR_GIB };
    let Some(to) = place.find(map.entries(), &[kernel.span(), image, at]) else {
        serial::line(&[Text("no free RAM for "), Hex(len), Text(" bytes of the initial RAM disk")]);
        halt()
    };
    // SAFETY: the new place is free RAM, below 4 GiB, which the stub has mapped.
    unsafe { core::ptr::copy_nonoverlapping(at.start as *const u8, to.start as *mut u8, len as usize) };
    Module::new(to.start, len)
}
