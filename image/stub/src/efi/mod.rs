//! The entries of EFI: the application, and Linux's handover (UEFI specification 2.10, chapters 4 and 7).

mod describe;
mod files;
mod initrd;

use crate::payload::{self, Image};
use crate::serial::Part::{self, Hex, Text};
use crate::workspace::{self, CMDLINE, Settings, Workspace};
use crate::{leave, serial};
use core::ptr::null_mut;
use handover::{BootParams, Kernel, Module, PARAMS_LEN, Screen, WORKSPACE_LEN, from_efi};
use r_efi::efi::protocols::{graphics_output, loaded_image};
use r_efi::efi::{self, BootServices, Guid, Handle, Status, SystemTable};

/// The length of a page, in bytes.
const PAGE: u64 = 4096;
/// The tries to end the boot services: the memory map may change between two calls.
const TRIES: usize = 8;
/// The greatest address that 32 bits reach.
const MAX_ADDRESS: u64 = u32::MAX as u64;

/// The environment of the application.
struct Firmware {
    handle: Handle,
    table: &'static SystemTable,
    services: &'static BootServices,
}

/// Called by entry.s. `params` are boot parameters of Linux if a loader hands over, and otherwise 0. Returns
/// only if the kernel cannot be entered.
#[unsafe(no_mangle)]
unsafe extern "efiapi" fn efi_main(handle: Handle, table: *mut SystemTable, params: u64) -> Status {
    // SAFETY: the firmware passes its system table, which stays valid until the boot services end.
    let firmware = unsafe { Firmware { handle, table: &*table, services: &*(*table).boot_services } };
    // SAFETY: as above; a loader that hands over passes boot parameters.
    let params = (params != 0).then(|| BootParams::new(unsafe { &*(params as *const [u8; PARAMS_LEN]) }));
    let Err(status) = firmware.boot(params);
    status
}

/// Returns the address of ACPI's root pointer, of version 2 if there is one, if all tables of EFI are below
/// `limit`.
///
/// # Safety
/// `table` must be the address of EFI's system table, and memory below `limit` be mapped one to one.
pub(crate) unsafe fn root_pointer(table: u64, limit: u64) -> Option<u64> {
    let is_mapped = |at: u64, len: u64| at != 0 && at.saturating_add(len) <= limit;
    if !is_mapped(table, size_of::<SystemTable>() as u64) {
        return None;
    }
    // SAFETY: the caller's promise.
    let table = unsafe { &*(table as *const SystemTable) };
    let (at, count) = (table.configuration_table, table.number_of_table_entries);
    if !is_mapped(at as u64, (count * size_of::<efi::ConfigurationTable>()) as u64) {
        return None;
    }
    // SAFETY: the system table tells where they are, and how many.
    let tables = unsafe { core::slice::from_raw_parts(at, count) };
    let find = |guid| tables.iter().find(|t| t.vendor_guid == guid).map(|t| t.vendor_table as u64);
    find(efi::ACPI_20_TABLE_GUID).or_else(|| find(efi::ACPI_10_TABLE_GUID))
}

/// Returns the status as an error, unless it is success.
fn check(status: Status) -> Result<(), Status> {
    if status.is_error() { Err(status) } else { Ok(()) }
}

/// Reads the command line that the firmware passes, which is UTF-16.
fn read_options<'a>(own: Option<&loaded_image::Protocol>, line: &'a mut [u8; CMDLINE]) -> &'a [u8] {
    if let Some(own) = own {
        let (at, len) = (own.load_options.cast::<u16>(), own.load_options_size as usize / 2);
        for (index, byte) in line.iter_mut().enumerate().take(len.min(CMDLINE - 1)) {
            // SAFETY: the firmware passes `len` characters.
            let character = unsafe { at.add(index).read_unaligned() };
            // A character that is not ASCII is in no key and no value.
            *byte = u8::try_from(character).unwrap_or(b'?');
        }
    }
    line
}

impl Firmware {
    fn boot(&self, params: Option<BootParams<'_>>) -> Result<core::convert::Infallible, Status> {
        let image = Image::own();
        // SAFETY: a call of the firmware. It must not reset the machine while a loader is slow.
        let _ = unsafe { (self.services.set_watchdog_timer)(0, 0, 0, null_mut()) };
        let memory = self
            .pages(efi::ALLOCATE_MAX_ADDRESS, efi::LOADER_CODE, MAX_ADDRESS, WORKSPACE_LEN)
            .inspect_err(|_| self.refuse(WORKSPACE_LEN))?;
        // SAFETY: the memory has just been allocated.
        let workspace = unsafe { workspace::at(memory) };
        let own = self.protocol::<loaded_image::Protocol>(self.handle, loaded_image::PROTOCOL_GUID);
        let mut options = [0; CMDLINE];
        let line = match &params {
            // SAFETY: the boot parameters name the loader's command line.
            Some(params) => unsafe { workspace::cmdline_of(params) },
            None => read_options(own, &mut options),
        };
        workspace.set_cmdline(image.cmdline, line);
        self.describe(own, params.is_some(), workspace);
        workspace.describe_file(&image);
        workspace.screen = self.screen().unwrap_or_default();
        // SAFETY: the firmware maps everything one to one.
        let rsdp = unsafe { root_pointer(core::ptr::from_ref(self.table) as u64, u64::MAX) };
        let of_loader = params.and_then(|params| params.ramdisk()).map(|(at, len)| Module::new(at, len));
        let settings = Settings {
            initrd: of_loader.or_else(|| self.offered_initrd()).or_else(|| self.named_initrd(own, line)),
            partition: self.partition(own),
            built_in: image.module(),
        };
        let kernel = image.kernel();
        let distance = self.place(&kernel)?;
        self.end_services(workspace)?;
        // SAFETY: the place has been allocated, and nothing else is done any more.
        unsafe {
            core::arch::asm!("cli", options(nomem, nostack));
            payload::load(&kernel, distance);
            leave::enter(workspace, &kernel, distance, rsdp, &settings)
        }
    }

    /// Returns the screen of pixels, if the firmware has one whose pixels have 32 bits in memory.
    fn screen(&self) -> Option<Screen> {
        let (mut guid, mut at) = (graphics_output::PROTOCOL_GUID, null_mut());
        // SAFETY: a call of the firmware.
        check(unsafe { (self.services.locate_protocol)(&raw mut guid, null_mut(), &raw mut at) }).ok()?;
        // SAFETY: the firmware returns the interface of that protocol, with its present mode.
        let (mode, info) = unsafe {
            let mode = &*(*at.cast::<graphics_output::Protocol>()).mode;
            (mode, &*mode.info)
        };
        // The two formats with bytes of red, green and blue, in whichever order.
        (info.pixel_format <= graphics_output::PIXEL_BLUE_GREEN_RED_RESERVED_8_BIT_PER_COLOR).then(|| {
            Screen {
                address: mode.frame_buffer_base,
                width: info.horizontal_resolution,
                height: info.vertical_resolution,
                pitch: info.pixels_per_scan_line * 4,
                bits: 32,
            }
        })
    }

    /// Allocates memory for the kernel: where it is linked for, or elsewhere below 4 GiB. Returns the
    /// distance between the two.
    fn place(&self, kernel: &Kernel<'_>) -> Result<u32, Status> {
        let (linked, place) = (kernel.span().start, kernel.place());
        if self.pages(efi::ALLOCATE_ADDRESS, efi::LOADER_DATA, linked, place.len).is_ok() {
            return Ok(0);
        }
        let len = place.len + place.align - PAGE;
        let at = self
            .pages(efi::ALLOCATE_MAX_ADDRESS, efi::LOADER_DATA, MAX_ADDRESS, len)
            .inspect_err(|_| self.refuse(len))?;
        // Firmware that has no memory above the place for which the kernel is linked has none for it.
        let distance = at.next_multiple_of(place.align).checked_sub(linked);
        distance.map(|distance| distance as u32).ok_or_else(|| {
            self.refuse(len);
            Status::OUT_OF_RESOURCES
        })
    }

    /// Says that there is no memory.
    #[inline(never)]
    fn refuse(&self, len: u64) {
        self.say(&[Text("no "), Hex(len), Text(" free bytes of RAM below 4 GiB")]);
    }

    /// Allocates memory, and returns its address.
    fn pages(
        &self,
        how: efi::AllocateType,
        kind: efi::MemoryType,
        mut at: u64,
        len: u64,
    ) -> Result<u64, Status> {
        // SAFETY: a call of the firmware.
        check(unsafe {
            (self.services.allocate_pages)(how, kind, len.div_ceil(PAGE) as usize, &raw mut at)
        })?;
        Ok(at)
    }

    /// Returns a protocol of a handle.
    fn protocol<T>(&self, handle: Handle, mut guid: Guid) -> Option<&'static T> {
        let mut at = null_mut();
        // SAFETY: a call of the firmware, which returns the interface of that protocol.
        check(unsafe { (self.services.handle_protocol)(handle, &raw mut guid, &raw mut at) }).ok()?;
        // SAFETY: as above; the firmware keeps it.
        unsafe { at.cast::<T>().as_ref() }
    }

    /// Reads the memory map, and returns its key.
    fn map(&self, workspace: &mut Workspace) -> Result<usize, Status> {
        let (mut len, mut key, mut stride, mut version) = (workspace.efi_map.len(), 0, 0, 0);
        let into = workspace.efi_map.as_mut_ptr().cast();
        // SAFETY: a call of the firmware; the buffer has that length.
        check(unsafe {
            (self.services.get_memory_map)(
                &raw mut len,
                into,
                &raw mut key,
                &raw mut stride,
                &raw mut version,
            )
        })?;
        workspace.map.clear();
        from_efi(workspace.efi_map.get(..len).unwrap_or_default(), stride, &mut workspace.map);
        Ok(key)
    }

    /// Ends the boot services; the last memory map is in the workspace then.
    fn end_services(&self, workspace: &mut Workspace) -> Result<(), Status> {
        let mut result = Err(Status::ABORTED);
        for _ in 0..TRIES {
            let key = self.map(workspace)?;
            // SAFETY: a call of the firmware. If it succeeds, none follows.
            result = check(unsafe { (self.services.exit_boot_services)(self.handle, key) });
            if result.is_ok() {
                break;
            }
        }
        if let Some(dropped) = Some(workspace.map.dropped()).filter(|dropped| *dropped > 0) {
            serial::line(&[Hex(dropped as u64), Text(" entries of the memory map are left out")]);
        }
        result
    }

    /// Prints a line on the firmware's console and on the serial port.
    fn say(&self, parts: &[Part<'_>]) {
        serial::line(parts);
        let console = self.table.con_out;
        if console.is_null() {
            return;
        }
        let mut print = |byte: u8| {
            let mut one = [u16::from(byte), 0];
            // SAFETY: the firmware's console takes a string that ends with a zero.
            let _ = unsafe { ((*console).output_string)(console, one.as_mut_ptr()) };
        };
        "ferrolite: ".bytes().for_each(&mut print);
        serial::write(parts, &mut print);
        "\r\n".bytes().for_each(&mut print);
    }
}
