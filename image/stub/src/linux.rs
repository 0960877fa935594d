//! The entries of Linux's boot protocol.

use crate::payload::{self, Image};
use crate::serial::Part::{Hex, Text};
use crate::workspace::{self, CMDLINE, FURTHER_LEN, Settings, Workspace};
use crate::{efi, halt, leave, mem, serial};
use handover::{
    BootParams, Map, Module, PARAMS_LEN, Place, SetupData, Span, Tables, WORKSPACE_LEN, name_of_loader,
};

/// The first address that 32 bits do not reach.
const FOUR_GIB: u64 = 1 << 32;
/// The alignment of the image when it moves.
const ALIGN: u64 = 2 << 20;
/// The end of the memory that BIOSes, and the real-mode part, use.
const LOW_MEMORY: u64 = 1 << 20;
/// The most setup data that are looked at. Loaders pass some five.
const MOST_SETUP_DATA: usize = 64;
/// The most ranges that the stub must not move to, tables of the loader included.
const MOST_TAKEN: usize = 64;

/// Called by entry.s: `params` are Linux's boot parameters, `memory` is the free memory behind the image,
/// `width` is 32 if this program has made the page tables, and otherwise 64.
#[unsafe(no_mangle)]
unsafe extern "C" fn linux_main(params: u64, memory: u64, width: u32) -> ! {
    let params_at = params;
    // SAFETY: the loader has put the boot parameters there.
    let params = BootParams::new(unsafe { &*(params as *const [u8; PARAMS_LEN]) });
    // SAFETY: the loader leaves the memory behind the image free (`init_size`).
    let workspace = unsafe { workspace::at(memory) };
    let image = Image::own();
    params.read_map(&mut workspace.map);
    // SAFETY: the loader has put the setup data there, and the page tables map them.
    unsafe {
        for_each_further(&params, if width == 64 { u64::MAX } else { FOUR_GIB }, |data| {
            SetupData::read_map(data, &mut workspace.map);
        });
    }
    let with_memory = Span::new(image.start, image.len + WORKSPACE_LEN);
    if width == 64 || with_memory.end > FOUR_GIB {
        serial::line(&[Text("entered at "), Hex(image.start)]);
        let taken = taken(&params, params_at, with_memory);
        // SAFETY: the boot parameters describe the machine.
        unsafe { start_anew(&workspace.map, &image, &taken, params_at) }
    }
    describe(&params, width, workspace);
    workspace.describe_file(&image);
    workspace.screen = params.screen().unwrap_or_default();
    // SAFETY: the boot parameters name the loader's command line.
    workspace.set_cmdline(image.cmdline, unsafe { workspace::cmdline_of(&params) });
    let kernel = image.kernel();
    let ramdisk = params.ramdisk().map(|(at, len)| Span::new(at, len));
    let taken = [with_memory, ramdisk.unwrap_or_default()];
    let Some(distance) = kernel.distance(workspace.map.entries(), &taken) else {
        refuse("the kernel", kernel.place().len);
    };
    let initrd = ramdisk.map(|span| Module::new(span.start, span.end - span.start));
    let settings = Settings { initrd, built_in: image.module(), ..Settings::default() };
    // SAFETY: a loader that EFI has loaded passes EFI's system table, which stays where it is.
    let rsdp = params.rsdp().or_else(|| unsafe { efi::root_pointer(params.efi_system_table()?, FOUR_GIB) });
    // SAFETY: the kernel's place is RAM, and neither the image nor the RAM disk lies there. Everything else
    // that the loader has passed has been copied.
    unsafe {
        payload::load(&kernel, distance);
        leave::enter(workspace, &kernel, distance, rsdp, &settings)
    }
}

/// Describes the loader, and the entry that it has used.
fn describe(params: &BootParams<'_>, width: u32, workspace: &mut Workspace) {
    let entry = params.entry().map_or(width, u32::from);
    let entry = match entry {
        16 => "16",
        64 => "64",
        _ => "32",
    };
    workspace.describe_loader(&[
        Text(name_of_loader(params.loader())),
        Text(" ("),
        Hex(u64::from(params.loader())),
        Text("), "),
        Text(entry),
        Text("-bit entry"),
        Text(if params.efi_system_table().is_some() { " under UEFI" } else { "" }),
    ]);
}

/// Calls `each` with the further entries of the memory map, which lie in setup data below `limit`.
///
/// # Safety
/// Memory below `limit` that the loader has used must be mapped one to one.
unsafe fn for_each_further(params: &BootParams<'_>, limit: u64, mut each: impl FnMut(&[u8])) {
    let mut next = params.setup_data();
    for _ in 0..MOST_SETUP_DATA {
        let Some(at) = next.filter(|at| *at < limit) else { return };
        // SAFETY: the caller's promise.
        let header = SetupData::read(unsafe { &*(at as *const [u8; SetupData::HEADER]) });
        let data = at + SetupData::HEADER as u64;
        if header.has_entries() && data.saturating_add(header.len.into()) <= limit {
            // SAFETY: as above; the header tells the length.
            each(unsafe { core::slice::from_raw_parts(data as *const u8, header.len as usize) });
        }
        next = Some(header.next).filter(|next| *next != 0);
    }
}

/// Returns the memory that the stub must not move to.
fn taken(params: &BootParams<'_>, params_at: u64, image: Span) -> [Span; 5] {
    let ramdisk = params.ramdisk().map(|(at, len)| Span::new(at, len));
    let cmdline = params.cmdline().map(|at| Span::new(at, CMDLINE as u64));
    [
        Span::new(0, LOW_MEMORY),
        image,
        Span::new(params_at, PARAMS_LEN as u64),
        ramdisk.unwrap_or_default(),
        cmdline.unwrap_or_default(),
    ]
}

/// Returns the address of `len` free bytes below 4 GiB. The page tables of the loader, which are in no memory
/// map and are in use until the stub has moved, are elsewhere.
///
/// # Safety
/// The processor must be in long mode, and its page tables must map RAM one to one.
unsafe fn place_below(map: &Map, taken: &[Span], len: u64) -> Option<u64> {
    let place = Place { len, align: ALIGN, from: LOW_MEMORY, below: FOUR_GIB };
    // SAFETY: the caller's promise.
    let tables = unsafe { own_tables() };
    // An empty range is in nobody's way.
    let mut all = [Span::default(); MOST_TAKEN];
    all.iter_mut().zip(taken).for_each(|(place, span)| *place = *span);
    let mut rest = all.len().min(taken.len());
    loop {
        let to = place.find(map.entries(), &all)?;
        // SAFETY: the caller's promise; page tables are in RAM.
        let Some(table) = tables.within(&to, |at| unsafe { (at as *const u64).read() }) else {
            return Some(to.start);
        };
        *all.get_mut(rest)? = table;
        rest += 1;
    }
}

/// Returns the page tables that the processor uses.
///
/// # Safety
/// The processor must be in long mode.
unsafe fn own_tables() -> Tables {
    /// The bit of CR4 that says that there are five levels.
    const LA57: u64 = 1 << 12;
    let (root, cr4): (u64, u64);
    // SAFETY: the caller's promise; reading the registers changes nothing.
    unsafe {
        core::arch::asm!("mov {}, cr3", "mov {}, cr4", out(reg) root, out(reg) cr4,
            options(nomem, nostack, preserves_flags));
    }
    Tables { root, levels: if cr4 & LA57 == 0 { 4 } else { 5 } }
}

/// Starts the stub again by its 32-bit entry, with page tables of its own: at its place if that is below
/// 4 GiB, and otherwise at another one, to which it moves.
///
/// # Safety
/// `params` must be the address of the boot parameters.
unsafe fn start_anew(map: &Map, image: &Image, taken: &[Span], params: u64) -> ! {
    let len = image.len + WORKSPACE_LEN;
    let to = if image.start + len <= FOUR_GIB {
        image.start
    } else {
        // SAFETY: the processor is in long mode, and the loader's page tables map RAM one to one.
        let Some(to) = (unsafe { place_below(map, taken, len) }) else { refuse("the boot file", len) };
        // SAFETY: the new place is free RAM, and the loader's page tables map RAM one to one.
        unsafe { mem::copy(image.start as *const u8, to as *mut u8, image.len as usize) };
        to
    };
    // SAFETY: the memory behind the image is the workspace, whose code runs below 4 GiB. The boot parameters,
    // the command line and the further entries of the memory map move along, because they may lie above.
    unsafe {
        let memory = to + image.len;
        let copy = &mut *((memory + workspace::PARAMS) as *mut [u8; PARAMS_LEN]);
        mem::copy(params as *const u8, copy.as_mut_ptr(), PARAMS_LEN);
        if let Some(line) = BootParams::new(copy).cmdline() {
            let at = memory + workspace::PARAMS_CMDLINE;
            mem::copy(line as *const u8, at as *mut u8, CMDLINE);
            BootParams::set_cmdline(copy, at as u32);
        }
        copy_further(copy, memory + workspace::FURTHER);
        BootParams::set_entry(copy, 64);
        leave::jump(workspace::at(memory), to as u32, (memory + workspace::PARAMS) as u32)
    }
}

/// Copies the further entries of the memory map to `to`, and makes them the only setup data of a copy of the
/// boot parameters.
///
/// # Safety
/// There must be [`FURTHER_LEN`] free bytes; the loader's page tables must map RAM one to one.
unsafe fn copy_further(params: &mut [u8; PARAMS_LEN], to: u64) {
    let (at, mut len) = (to as usize + SetupData::HEADER, 0);
    // SAFETY: the caller's promise. What does not fit is left out.
    unsafe {
        for_each_further(&BootParams::new(params), u64::MAX, |data| {
            let more = data.len().min(FURTHER_LEN - SetupData::HEADER - len);
            mem::copy(data.as_ptr(), (at + len) as *mut u8, more);
            len += more;
        });
        *(to as *mut [u8; SetupData::HEADER]) = SetupData::further_entries(len as u32);
    }
    BootParams::set_setup_data(params, to as u32);
}

/// Says that there is no memory for `what`, and halts.
fn refuse(what: &str, len: u64) -> ! {
    serial::line(&[Text("no "), Hex(len), Text(" free bytes of RAM below 4 GiB for "), Text(what)]);
    halt()
}
