//! The common part of drivers for virtio devices over PCI: negotiation by `virtio-drivers`, and the parts
//! that this crate does not provide, which are MSI-X vectors and doorbells that are looked up once. The rings
//! are [`virtqueue`]'s.

pub(crate) mod rng;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PciRoot};
use virtio_drivers::transport::{DeviceStatus, Transport};
use virtqueue::{Layout, Queue};
use x86_64::instructions::port::Port;

use crate::arch::cpu;
use crate::mm::{self, frames};
use crate::pci::{Bar, Function, Message, MsixError, MsixTable, capability};

/// PCI vendor of all virtio devices.
pub(crate) const VENDOR: u16 = 0x1af4;
/// `VIRTIO_F_EVENT_IDX`: each side names the buffer at which it wants the next notification.
const F_EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`, which every device must have.
const F_VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_ACCESS_PLATFORM`: an IOMMU can translate the addresses of the device. A device that has this
/// feature insists on it. All IOMMUs are off here, so the addresses remain physical ones.
const F_ACCESS_PLATFORM: u64 = 1 << 33;
/// The only MSI-X entry, used for all queues.
const ENTRY: u16 = 0;
const NO_VECTOR: u16 = 0xffff;

// Offsets in the common configuration structure (virtio 1.2, section 4.1.4.3).
const COMMON_MSIX_CONFIG: usize = 0x10;
const COMMON_QUEUES: usize = 0x12;
const COMMON_STATUS: usize = 0x14;
const COMMON_QUEUE_SELECT: usize = 0x16;
const COMMON_QUEUE_VECTOR: usize = 0x1a;
const COMMON_QUEUE_NOTIFY_OFF: usize = 0x1e;
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;

/// The reason for which a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// The transport does not follow the specification.
    Transport,
    /// A required feature is not offered or not accepted.
    Features(u64),
    /// The device's queues are too small, or there are fewer than two.
    Queues,
    /// There is not enough memory for rings and buffers; the value is their length in bytes.
    Memory(u64),
    /// MSI-X cannot be set up, so the device cannot interrupt.
    Msix(MsixError),
    /// No interrupt vector is left.
    Vectors,
    /// The device does not answer.
    Silent,
    /// Another driver uses the device.
    InUse,
    /// The device has no Ethernet address, or a group address.
    Address,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport => f.write_str("does not follow the virtio specification"),
            Self::Features(bits) => write!(f, "lacks features {bits:#x}"),
            Self::Queues => f.write_str("has too small queues"),
            Self::Memory(bytes) => write!(f, "gets no {bytes} bytes of memory for its rings"),
            Self::Msix(e) => e.fmt(f),
            Self::Silent => f.write_str("does not answer"),
            Self::InUse => f.write_str("is in use"),
            Self::Vectors => f.write_str("finds no interrupt vector left"),
            Self::Address => f.write_str("has no Ethernet address"),
        }
    }
}

/// Allocates `bytes` of zeroed, physically contiguous memory for a device, which are never freed. Returns the
/// mapped address and the bus address.
pub(crate) fn memory(bytes: u64) -> Result<(NonNull<u8>, u64), SetupError> {
    let run = frames::alloc_zeroed(bytes).ok_or(SetupError::Memory(bytes))?;
    let virt = NonNull::new(mm::phys_to_virt(run)).ok_or(SetupError::Memory(bytes))?;
    Ok((virt, run.as_u64()))
}

/// A queue's doorbell: a 16-bit register to which the queue's number is written.
pub(crate) struct Doorbell {
    register: *mut u16,
    queue: u16,
}

// SAFETY: this is a device register, written only by the owner of the ring.
unsafe impl Send for Doorbell {}

impl Doorbell {
    /// Rings the doorbell.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        // SAFETY: the register is in the mapped notification area, as `Registers::doorbell` has checked.
        unsafe { self.register.write_volatile(self.queue) };
    }
}

/// True under TCG, where a barrier may have no effect.
static WEAK_BARRIERS: AtomicBool = AtomicBool::new(false);

/// Requests an interrupt for the next buffer that the device returns. Returns true if buffers are already
/// waiting.
pub(crate) fn arm(queue: &mut Queue) -> bool {
    if queue.arm() {
        return true;
    }
    if WEAK_BARRIERS.load(Ordering::Relaxed) {
        // QEMU before 8.1 leaves out the barriers of a machine with one processor (its commit c914d46d). An
        // access to a port takes a lock of QEMU, so the request is visible before the index is read again.
        // SAFETY: port 0x80 shows a code of the firmware's self-test; reading it has no effect.
        let _: u8 = unsafe { Port::new(0x80).read() };
        return queue.has_used();
    }
    false
}

/// Resets a function if it is a virtio device, so that it uses no rings any more.
pub(crate) fn reset(function: &Function) {
    if function.id.0 == VENDOR
        && let Some(registers) = Registers::find(function)
    {
        if late_vectors() {
            registers.clear_vectors();
        }
        registers.set_status(0);
    }
}

/// A device between negotiation and start.
pub(crate) struct Device {
    /// The transport, for access to the configuration space.
    pub transport: PciTransport,
    /// The features that both sides support.
    pub features: u64,
    registers: Registers,
    status: DeviceStatus,
    msix: Option<MsixTable>,
}

/// Keeps a device running. Dropping it resets the device.
pub(crate) struct Running {
    _transport: PciTransport,
    _msix: Option<MsixTable>,
}

impl Device {
    /// Resets the device and negotiates features: those of `wanted` that it has, and all of `needed`. The
    /// device will interrupt with `message`, or not at all.
    pub(crate) fn negotiate(
        function: &Function,
        needed: u64,
        wanted: u64,
        message: Option<Message>,
    ) -> Result<Self, SetupError> {
        function.enable();
        let mut root = PciRoot::new(Access { function: function.clone(), sizing: [false; 6] });
        let bdf = DeviceFunction {
            bus: function.address.bus,
            device: function.address.device,
            function: function.address.function,
        };
        // This comes first: it maps every window that the transport uses, and can report a failure.
        let registers = Registers::find(function).ok_or(SetupError::Transport)?;
        let mut transport = PciTransport::new::<Hal, _>(&mut root, bdf).map_err(|e| {
            log::error!("pci {}: {e}", function.address);
            SetupError::Transport
        })?;

        // The sequence of virtio 1.2, section 3.1.1.
        WEAK_BARRIERS.store(cpu::is_tcg(), Ordering::Relaxed);
        let mut status = DeviceStatus::empty();
        transport.set_status(status);
        for step in [DeviceStatus::ACKNOWLEDGE, DeviceStatus::DRIVER] {
            status |= step;
            transport.set_status(status);
        }
        let needed = needed | F_VERSION_1;
        let wanted = wanted | F_EVENT_IDX | F_ACCESS_PLATFORM;
        let features = transport.read_device_features() & (wanted | needed);
        if features & needed != needed {
            return Err(SetupError::Features(needed & !features));
        }
        transport.write_driver_features(features);
        status |= DeviceStatus::FEATURES_OK;
        transport.set_status(status);
        if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
            return Err(SetupError::Features(features));
        }
        let msix = match message {
            None => None,
            Some(message) => {
                let mut msix = MsixTable::enable(function).map_err(SetupError::Msix)?;
                msix.set(ENTRY, message);
                registers.set_u16(COMMON_MSIX_CONFIG, NO_VECTOR);
                Some(msix)
            }
        };
        Ok(Self { transport, features, registers, status, msix })
    }

    /// Sets up queue `index` with `size` buffers.
    pub(crate) fn queue(&mut self, index: u16, size: u16) -> Result<(Queue, Doorbell), SetupError> {
        let Self { transport, registers, .. } = self;
        if transport.queue_used(index) || transport.max_queue_size(index) < u32::from(size) {
            return Err(SetupError::Queues);
        }
        let layout = Layout::of(size);
        let (virt, phys) = memory(layout.total as u64)?;
        if self.msix.is_some() && !late_vectors() {
            registers.set_vector(index)?;
        }
        let doorbell = registers.doorbell(index).ok_or(SetupError::Transport)?;
        // SAFETY: `memory` returns zeroed frames that are never freed.
        let queue = unsafe { Queue::new(virt, size, self.features & F_EVENT_IDX != 0) };
        transport.queue_set(index, size.into(), phys, phys + layout.avail as u64, phys + layout.used as u64);
        Ok((queue, doorbell))
    }

    /// Starts the device with its first `queues` queues.
    pub(crate) fn start(mut self, queues: u16) -> Result<Running, SetupError> {
        self.transport.set_status(self.status | DeviceStatus::DRIVER_OK);
        if self.msix.is_some() && late_vectors() {
            (0..queues).try_for_each(|index| self.registers.set_vector(index))?;
        }
        Ok(Running { _transport: self.transport, _msix: self.msix })
    }
}

/// Returns true if queues must get their vectors after the device has started. QEMU 7.2 under TCG crashes
/// when a device served by vhost-user starts, or is reset, while a vector of its queues is unmasked
/// (`virtio_pci_set_guest_notifiers`); a vector that is set later works. Under KVM it must be set before the
/// start. Until it is set, interrupts are suppressed in the rings.
fn late_vectors() -> bool {
    cpu::is_tcg()
}

/// The structures that `virtio-drivers` does not expose: vectors and doorbells.
struct Registers {
    common: *mut u8,
    notify: *mut u8,
    notify_len: usize,
    notify_multiplier: usize,
}

impl Registers {
    fn find(function: &Function) -> Option<Self> {
        let find = |kind: u8, least: u32| {
            let at = function
                .capabilities(capability::VENDOR)
                .find(|at| (function.read(*at) >> 24) as u8 == kind)?;
            let (bar, offset, len) =
                (function.read(at + 4) as u8, function.read(at + 8), function.read(at + 12));
            let (base, size) = function.map_bar(usize::from(bar)).ok()?;
            let fits = u64::from(offset) + u64::from(len) <= size && len >= least;
            // SAFETY: the structure is inside the window just mapped.
            fits.then(|| (unsafe { base.add(offset as usize) }, len as usize, at))
        };
        let (common, ..) = find(CFG_COMMON, 0x38)?;
        let (notify, notify_len, at) = find(CFG_NOTIFY, 2)?;
        Some(Self { common, notify, notify_len, notify_multiplier: function.read(at + 16) as usize })
    }

    fn u16(&self, offset: usize) -> u16 {
        // SAFETY: `offset` is one of the constants above, inside the structure of at least 0x38 bytes.
        unsafe { self.common.add(offset).cast::<u16>().read_volatile() }
    }

    fn set_u16(&self, offset: usize, value: u16) {
        // SAFETY: as in `u16`; these registers have no effect on memory.
        unsafe { self.common.add(offset).cast::<u16>().write_volatile(value) };
    }

    fn set_status(&self, value: u8) {
        // SAFETY: as in `u16`; a device without a status uses no memory.
        unsafe { self.common.add(COMMON_STATUS).write_volatile(value) };
    }

    /// Takes the vectors from all queues.
    fn clear_vectors(&self) {
        for queue in 0..self.u16(COMMON_QUEUES) {
            self.set_u16(COMMON_QUEUE_SELECT, queue);
            self.set_u16(COMMON_QUEUE_VECTOR, NO_VECTOR);
        }
    }

    /// Makes a queue interrupt by the only vector.
    fn set_vector(&self, queue: u16) -> Result<(), SetupError> {
        self.set_u16(COMMON_QUEUE_SELECT, queue);
        self.set_u16(COMMON_QUEUE_VECTOR, ENTRY);
        if self.u16(COMMON_QUEUE_VECTOR) == ENTRY { Ok(()) } else { Err(SetupError::Msix(MsixError::Absent)) }
    }

    fn doorbell(&self, queue: u16) -> Option<Doorbell> {
        self.set_u16(COMMON_QUEUE_SELECT, queue);
        let offset = usize::from(self.u16(COMMON_QUEUE_NOTIFY_OFF)).checked_mul(self.notify_multiplier)?;
        if offset + 2 > self.notify_len || !offset.is_multiple_of(2) {
            return None;
        }
        // SAFETY: the register is inside the mapped notification area.
        let register = unsafe { self.notify.add(offset) }.cast();
        Some(Doorbell { register, queue })
    }
}

/// The configuration space of a function, in the form that `virtio-drivers` requires.
///
/// The crate sizes a window again for each structure in it, with decoding off meanwhile. A hypervisor
/// rebuilds its memory map every time, which takes milliseconds. The base address registers are therefore
/// simulated from their known values.
struct Access {
    function: Function,
    /// For each register, true if it was last written with all ones, so that it shows its size.
    sizing: [bool; 6],
}

impl Access {
    const COMMAND: u8 = 0x04;

    fn register(offset: u8) -> Option<usize> {
        (0x10..0x28).contains(&offset).then(|| usize::from(offset - 0x10) / 4)
    }

    /// Returns the value that base address register `n` shows while its size is probed.
    fn size_mask(&self, n: usize) -> Option<u32> {
        let mask = |bar: &Option<Bar>| match bar {
            Some(Bar::Memory { size, wide, .. }) => Some((size.wrapping_neg(), *wide)),
            _ => None,
        };
        if let Some((mask, _)) = self.function.bars.get(n).and_then(mask) {
            return Some(mask as u32);
        }
        let low = self.function.bars.get(n.checked_sub(1)?).and_then(mask);
        low.filter(|(_, wide)| *wide).map(|(mask, _)| (mask >> 32) as u32)
    }
}

impl ConfigurationAccess for Access {
    fn read_word(&self, _: DeviceFunction, register_offset: u8) -> u32 {
        match Self::register(register_offset) {
            Some(n) if self.sizing[n] => self.size_mask(n).unwrap_or(0),
            _ => self.function.read(u16::from(register_offset)),
        }
    }

    fn write_word(&mut self, _: DeviceFunction, register_offset: u8, data: u32) {
        match Self::register(register_offset) {
            Some(n) => self.sizing[n] = data == u32::MAX,
            // The crate writes the command register only to turn decoding off and on around the sizing.
            None if register_offset == Self::COMMAND => {}
            None => self.function.write(u16::from(register_offset), data),
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self { function: self.function.clone(), sizing: self.sizing }
    }
}

/// The kernel, in the form that `virtio-drivers` requires. Only registers are mapped through it, because the
/// queues are not the crate's.
struct Hal;

// SAFETY: memory comes from the frame allocator, page-aligned and zeroed, and everything is mapped one to
// one.
unsafe impl virtio_drivers::Hal for Hal {
    fn dma_alloc(pages: usize, _: virtio_drivers::BufferDirection) -> (u64, NonNull<u8>) {
        match memory(pages as u64 * mm::PAGE) {
            Ok((virt, phys)) => (phys, virt),
            // In this interface an address of 0 means failure.
            Err(_) => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(paddr: u64, _: NonNull<u8>, pages: usize) -> i32 {
        frames::free(x86_64::PhysAddr::new_truncate(paddr), pages as u64 * mm::PAGE);
        0
    }

    unsafe fn mmio_phys_to_virt(paddr: u64, size: usize) -> NonNull<u8> {
        let at = mm::map_device(x86_64::PhysAddr::new_truncate(paddr), size as u64);
        // The interface cannot report a failure; `Registers` has mapped the whole window before, or refused
        // the device.
        at.ok().and_then(NonNull::new).expect("a virtio device's registers cannot be mapped")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: virtio_drivers::BufferDirection) -> u64 {
        mm::virt_to_phys(buffer.as_ptr().cast::<u8>()).map_or(0, x86_64::PhysAddr::as_u64)
    }

    unsafe fn unshare(_: u64, _: NonNull<[u8]>, _: virtio_drivers::BufferDirection) {}
}
