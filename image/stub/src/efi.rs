//! The entries of EFI: the application, and Linux's handover (UEFI specification 2.10, chapters 4 and 7).

use crate::payload::{self, Image};
use crate::serial::Part::{self, Hex, Text};
use crate::workspace::{self, CMDLINE, Workspace};
use crate::{leave, serial};
use core::ffi::c_void;
use core::ptr::null_mut;
use handover::{BootParams, Kernel, Module, PARAMS_LEN, Place, Span, from_efi};
use r_efi::efi::protocols::{device_path, load_file2, loaded_image};
use r_efi::efi::{self, BootServices, Guid, Handle, Status, SystemTable};

/// The length of a page, in bytes.
const PAGE: u64 = 4096;
/// The tries to end the boot services: the memory map may change between two calls.
const TRIES: usize = 8;
/// The memory below the stack pointer that the stub may use, in bytes.
const STACK: u64 = 64 << 10;
/// The vendor of the device path under which loaders offer an initial RAM disk (Linux,
/// drivers/firmware/efi/libstub: `LINUX_EFI_INITRD_MEDIA_GUID`).
const INITRD: Guid =
    Guid::from_fields(0x5568_e427, 0x68fc, 0x4f3d, 0xac, 0x74, &[0xca, 0x55, 0x52, 0x31, 0xcc, 0x68]);

/// The device path of the initial RAM disk: a vendor's media, and the end.
#[repr(C)]
struct InitrdPath {
    media: device_path::Protocol,
    vendor: Guid,
    end: device_path::Protocol,
}

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

impl Firmware {
    fn boot(&self, params: Option<BootParams<'_>>) -> Result<core::convert::Infallible, Status> {
        let image = Image::own();
        serial::line(&[Text("EFI at "), Hex(image.start)]);
        // SAFETY: a call of the firmware. It must not reset the machine while a loader is slow.
        let _ = unsafe { (self.services.set_watchdog_timer)(0, 0, 0, null_mut()) };
        let memory = self
            .pages(efi::ALLOCATE_MAX_ADDRESS, efi::LOADER_CODE, u64::from(u32::MAX), workspace::LEN)
            .inspect_err(|_| self.say(&[Text("no free memory below 4 GiB")]))?;
        // SAFETY: the memory has just been allocated.
        let workspace = unsafe { workspace::at(memory) };
        match &params {
            // SAFETY: the boot parameters name the loader's command line.
            Some(params) => workspace.set_cmdline(image.cmdline, unsafe { workspace::cmdline_of(params) }),
            None => self.read_options(&image, workspace),
        }
        // SAFETY: the firmware maps everything one to one.
        let rsdp = unsafe { root_pointer(core::ptr::from_ref(self.table) as u64, u64::MAX) };
        let of_loader = params.and_then(|params| params.ramdisk()).map(|(at, len)| Module::new(at, len));
        let module = of_loader.or_else(|| self.initrd());
        let kernel = image.kernel();
        let span = kernel.span();
        // If the firmware itself uses the place, it is free once the boot services have ended.
        let _ = self.pages(efi::ALLOCATE_ADDRESS, efi::LOADER_DATA, span.start, span.end - span.start);
        self.map(workspace)?;
        self.check_place(
            &kernel,
            &[
                image.span(),
                Span::new(memory, workspace::LEN),
                module.map_or(Span::default(), |module| Span::new(module.start, module.len)),
                stack(),
            ],
            workspace,
        )?;
        self.end_services(workspace)?;
        // SAFETY: the place is RAM that nothing uses any more.
        unsafe {
            core::arch::asm!("cli", options(nomem, nostack));
            payload::load(&kernel);
            leave::enter(workspace, &kernel, rsdp, [module, image.module()])
        }
    }

    /// Fails unless the kernel's place is RAM and overlaps none of `taken`.
    fn check_place(&self, kernel: &Kernel<'_>, taken: &[Span], workspace: &Workspace) -> Result<(), Status> {
        let span = kernel.span();
        let is_free = !taken.iter().any(|taken| taken.overlaps(&span));
        if is_free && Place::is_ram(&span, workspace.map.entries()) {
            return Ok(());
        }
        self.say(&[
            Text("the firmware uses the memory from "),
            Hex(span.start),
            Text(" to "),
            Hex(span.end),
            Text(", where the kernel must lie"),
        ]);
        Err(Status::OUT_OF_RESOURCES)
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

    /// Reads the command line that the firmware passes: UTF-16.
    fn read_options(&self, image: &Image, workspace: &mut Workspace) {
        let mut line = [0; CMDLINE];
        if let Some(own) = self.protocol::<loaded_image::Protocol>(self.handle, loaded_image::PROTOCOL_GUID) {
            let (at, len) = (own.load_options.cast::<u16>(), own.load_options_size as usize / 2);
            for (index, byte) in line.iter_mut().enumerate().take(len.min(CMDLINE - 1)) {
                // SAFETY: the firmware passes `len` characters.
                let character = unsafe { at.add(index).read_unaligned() };
                // A character that is not ASCII is in no key and no value.
                *byte = u8::try_from(character).unwrap_or(b'?');
            }
        }
        workspace.set_cmdline(image.cmdline, &line);
    }

    /// Loads the initial RAM disk that the loader offers.
    fn initrd(&self) -> Option<Module> {
        let node =
            |r#type, sub_type, length: u8| device_path::Protocol { r#type, sub_type, length: [length, 0] };
        let path = InitrdPath {
            media: node(device_path::TYPE_MEDIA, device_path::Media::SUBTYPE_VENDOR, 20),
            vendor: INITRD,
            end: node(device_path::TYPE_END, device_path::End::SUBTYPE_ENTIRE, 4),
        };
        let mut guid = load_file2::PROTOCOL_GUID;
        let (mut at, mut device) = ((&raw const path).cast_mut().cast(), null_mut());
        // SAFETY: a call of the firmware; the path ends with its end.
        check(unsafe { (self.services.locate_device_path)(&raw mut guid, &raw mut at, &raw mut device) })
            .ok()?;
        let file = self.protocol::<load_file2::Protocol>(device, load_file2::PROTOCOL_GUID)?;
        let file = core::ptr::from_ref(file).cast_mut();
        let mut len = 0_usize;
        // SAFETY: a call of the loader. Without a buffer it tells the length.
        let _ = unsafe { ((*file).load_file)(file, at, efi::Boolean::FALSE, &raw mut len, null_mut()) };
        if len == 0 {
            return None;
        }
        let memory = self.pages(efi::ALLOCATE_ANY_PAGES, efi::LOADER_DATA, 0, len as u64).ok()?;
        let into = memory as *mut c_void;
        // SAFETY: as above; the buffer has been allocated with this length.
        let loaded = unsafe { ((*file).load_file)(file, at, efi::Boolean::FALSE, &raw mut len, into) };
        match check(loaded) {
            Ok(()) => Some(Module::new(memory, len as u64)),
            Err(status) => {
                self.say(&[
                    Text("the initial RAM disk cannot be read: status "),
                    Hex(status.as_usize() as u64),
                ]);
                None
            }
        }
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
        serial::write(&[Text("ferrolite: ")], &mut print);
        serial::write(parts, &mut print);
        serial::write(&[Text("\r\n")], &mut print);
    }
}

/// Returns the part of the firmware's stack that the stub uses.
fn stack() -> Span {
    let here: u8 = 0;
    let at = &raw const here as u64;
    Span { start: at.saturating_sub(STACK), end: at + STACK }
}
