//! A virtio network device over PCI: rings of fixed buffers, frames handed out where they lie.
//!
//! `virtio-drivers` does the set-up (feature negotiation, queue addresses); MTU, MSI-X vectors, rings and kicks are
//! ours. After set-up nothing allocates, and nothing waits.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use verbs::MacAddr;
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PciRoot};
use virtio_drivers::transport::{DeviceStatus, Transport};
use virtqueue::{Broken, Layout, Queue};

use crate::mm::{self, frames};
use crate::pci::{Bar, Function, Message, MsixError, MsixTable, capability};

const VENDOR: u16 = 0x1af4;
/// Transitional and modern device ids of a network device.
const IDS: [u16; 2] = [0x1000, 0x1041];

// Feature bits (virtio 1.2, sections 5.1.3 and 6).
const F_MTU: u64 = 1 << 3;
const F_MAC: u64 = 1 << 5;
const F_STATUS: u64 = 1 << 16;
const F_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;
const WANTED: u64 = F_MTU | F_MAC | F_STATUS | F_EVENT_IDX | F_VERSION_1;

/// `struct virtio_net_hdr` with `num_buffers`, before every frame. All zero: no offload.
const HEADER: usize = 12;
const ETHERNET_HEADER: usize = 14;
const STANDARD_MTU: u16 = 1500;
const RX: u16 = 0;
const TX: u16 = 1;
/// The one MSI-X entry used, for both queues.
const ENTRY: u16 = 0;
const NO_VECTOR: u16 = 0xffff;

// Offsets in the common configuration structure (4.1.4.3).
const COMMON_MSIX_CONFIG: usize = 0x10;
const COMMON_QUEUE_SELECT: usize = 0x16;
const COMMON_QUEUE_VECTOR: usize = 0x1a;
const COMMON_QUEUE_NOTIFY_OFF: usize = 0x1e;
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;

/// Whether `function` is a network device that this driver drives.
pub fn is_network(function: &Function) -> bool {
    function.id.0 == VENDOR && IDS.contains(&function.id.1)
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// The transport does not follow the specification.
    Transport,
    /// A feature that is needed is not offered or not accepted.
    Features(u64),
    /// The device's queues are too small, or there are fewer than two.
    Queues,
    /// No memory for rings and buffers: this many bytes.
    Memory(u64),
    /// It cannot interrupt.
    Msix(MsixError),
    /// No interrupt vector is left.
    Vectors,
    /// The device has no address, or a group's.
    Address,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport => f.write_str("does not follow the virtio specification"),
            Self::Features(bits) => write!(f, "lacks features {bits:#x}"),
            Self::Queues => f.write_str("has too small queues"),
            Self::Memory(bytes) => write!(f, "{bytes} bytes for its rings are not to be had"),
            Self::Msix(e) => e.fmt(f),
            Self::Vectors => f.write_str("finds no interrupt vector left"),
            Self::Address => f.write_str("has no Ethernet address"),
        }
    }
}

/// How many buffers a device gets; each holds one frame.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Receive buffers, a power of two.
    pub rx: u16,
    /// Transmit buffers, a power of two.
    pub tx: u16,
}

/// A run of equal buffers in physically contiguous memory.
struct Buffers {
    virt: NonNull<u8>,
    phys: u64,
    stride: usize,
}

// SAFETY: memory of the buffers' owner, tied to no processor.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(count: u16, stride: usize) -> Result<Self, SetupError> {
        let bytes = u64::from(count) * stride as u64;
        let (virt, phys) = memory(bytes)?;
        Ok(Self { virt, phys, stride })
    }

    fn bus_address(&self, id: u16) -> u64 {
        self.phys + u64::from(id) * self.stride as u64
    }

    /// # Safety
    /// `id` is below the count, and the buffer is the driver's now.
    unsafe fn get(&self, id: u16) -> &[u8] {
        // SAFETY: inside the run; the device does not write to a buffer that is the driver's.
        unsafe {
            core::slice::from_raw_parts(self.virt.as_ptr().add(usize::from(id) * self.stride), self.stride)
        }
    }

    /// # Safety
    /// As [`get`](Self::get).
    unsafe fn get_mut(&mut self, id: u16) -> &mut [u8] {
        // SAFETY: as in `get`, and `&mut self` makes it the only reference.
        unsafe {
            core::slice::from_raw_parts_mut(self.virt.as_ptr().add(usize::from(id) * self.stride), self.stride)
        }
    }
}

fn memory(bytes: u64) -> Result<(NonNull<u8>, u64), SetupError> {
    let run = frames::alloc_zeroed(bytes).ok_or(SetupError::Memory(bytes))?;
    let virt = NonNull::new(mm::phys_to_virt(run)).ok_or(SetupError::Memory(bytes))?;
    Ok((virt, run.as_u64()))
}

/// A queue's doorbell: a 16-bit register that takes the queue's number.
struct Doorbell {
    register: *mut u16,
    queue: u16,
}

// SAFETY: a device register, written by whoever owns the ring.
unsafe impl Send for Doorbell {}

impl Doorbell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        // SAFETY: the register is in the mapped notification area, checked in `Registers::doorbell`.
        unsafe { self.register.write_volatile(self.queue) };
    }
}

/// Frames from the device.
pub struct Receiver {
    queue: Queue,
    buffers: Buffers,
    doorbell: Doorbell,
    broken: bool,
    /// Frames received.
    pub frames: u64,
}

impl Receiver {
    /// The oldest frame received that was not taken yet.
    pub fn peek(&self) -> Option<&[u8]> {
        if self.broken {
            return None;
        }
        let used = self.queue.peek().ok()??;
        let len = (used.len as usize).clamp(HEADER, self.buffers.stride);
        // SAFETY: the device has given the buffer back, and `peek` has checked its number.
        Some(&unsafe { self.buffers.get(used.id) }[HEADER..len])
    }

    /// Takes the frame that [`peek`](Self::peek) shows: its buffer goes back to the device.
    pub fn pop(&mut self) {
        // `arm` notices and says that the device is broken.
        if let Ok(Some(used)) = self.queue.take() {
            self.queue.give(used.id);
            self.frames += 1;
        }
    }

    /// Shows the device the buffers that were handed back.
    pub fn flush(&mut self) {
        if self.queue.publish() {
            self.doorbell.ring();
        }
    }
}

/// Frames to the device.
pub struct Transmitter {
    queue: Queue,
    buffers: Buffers,
    doorbell: Doorbell,
    /// Buffers that are free, a stack.
    free: [u16; virtqueue::MAX_SIZE as usize],
    free_len: usize,
    /// Room for a frame, header and payload.
    frame_max: usize,
    broken: bool,
    /// A frame found no room since the last `arm`.
    starved: bool,
    /// Frames sent.
    pub frames: u64,
}

impl Transmitter {
    fn reclaim(&mut self) {
        loop {
            match self.queue.take() {
                Ok(Some(used)) => {
                    self.free[self.free_len] = used.id;
                    self.free_len += 1;
                }
                Ok(None) => return,
                Err(Broken) => {
                    if !core::mem::replace(&mut self.broken, true) {
                        log::error!("network: the device gave back a buffer it did not have; sending no more");
                    }
                    return;
                }
            }
        }
    }

    /// Whether there is room for a frame.
    pub fn has_room(&mut self) -> bool {
        if self.free_len == 0 && !self.broken {
            self.reclaim();
        }
        let room = self.free_len > 0 && !self.broken;
        self.starved |= !room;
        room
    }

    /// Room for a frame of `len` bytes, where the device will read it. `None` while there is none, and for a frame
    /// longer than the device's. What is written goes out with [`send`](Self::send), or not at all.
    pub fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.frame_max || !self.has_room() {
            return None;
        }
        let id = *self.free.get(self.free_len.checked_sub(1)?)?;
        // SAFETY: `id` is free, so below the count and the driver's.
        unsafe { self.buffers.get_mut(id) }.get_mut(HEADER..HEADER + len)
    }

    /// Queues the first `len` bytes of the last [`buffer`](Self::buffer) as a frame.
    ///
    /// # Panics
    /// If there was no such buffer.
    pub fn send(&mut self, len: usize) {
        assert!(len <= self.frame_max && self.free_len > 0, "no buffer to send");
        self.free_len -= 1;
        let id = self.free[self.free_len];
        self.queue.set_len(id, (HEADER + len) as u32);
        self.queue.give(id);
        self.frames += 1;
    }

    /// Tells the device about the frames since the last time.
    pub fn flush(&mut self) {
        if self.queue.publish() {
            self.doorbell.ring();
        }
    }
}

/// A network device that is up.
pub struct VirtioNet {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The largest payload of a frame.
    pub mtu: usize,
    /// Frames in.
    pub rx: Receiver,
    /// Frames out.
    pub tx: Transmitter,
    /// Keeps the device running: dropped, it resets the device.
    _transport: PciTransport,
    _msix: MsixTable,
}

impl VirtioNet {
    /// Starts the device. It interrupts with `message`, once armed.
    pub fn start(function: &Function, sizes: Sizes, message: Message) -> Result<Self, SetupError> {
        function.enable();
        let mut root = PciRoot::new(Access { function: function.clone(), sizing: [false; 6] });
        let place = DeviceFunction {
            bus: function.address.bus,
            device: function.address.device,
            function: function.address.function,
        };
        // First of all: it maps every window that the transport is going to use, and can say if that fails.
        let registers = Registers::find(function).ok_or(SetupError::Transport)?;
        let mut transport = PciTransport::new::<Hal, _>(&mut root, place).map_err(|e| {
            log::error!("pci {}: {e}", function.address);
            SetupError::Transport
        })?;

        // Virtio 1.2, 3.1.1.
        let mut status = DeviceStatus::empty();
        transport.set_status(status);
        for step in [DeviceStatus::ACKNOWLEDGE, DeviceStatus::DRIVER] {
            status |= step;
            transport.set_status(status);
        }
        let features = transport.read_device_features() & WANTED;
        let needed = F_VERSION_1 | F_MAC;
        if features & needed != needed {
            return Err(SetupError::Features(needed & !features));
        }
        transport.write_driver_features(features);
        status |= DeviceStatus::FEATURES_OK;
        transport.set_status(status);
        if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
            return Err(SetupError::Features(features));
        }

        let read_u16 = |offset| transport.read_config_space::<u16>(offset).map_err(|_| SetupError::Transport);
        let words = [read_u16(0)?, read_u16(2)?, read_u16(4)?].map(u16::to_le_bytes);
        let mac = MacAddr([words[0][0], words[0][1], words[1][0], words[1][1], words[2][0], words[2][1]]);
        if mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
            return Err(SetupError::Address);
        }
        let mtu = if features & F_MTU != 0 { read_u16(10)? } else { STANDARD_MTU };
        let mtu = usize::from(mtu.clamp(68, 9216));

        let mut msix = MsixTable::enable(function).map_err(SetupError::Msix)?;
        msix.set(ENTRY, message);
        registers.set_u16(COMMON_MSIX_CONFIG, NO_VECTOR);

        let frame_max = ETHERNET_HEADER + mtu;
        // A multiple of a cache line; a VLAN tag more than the frame needs, so that a longer one is seen to be.
        let stride = (HEADER + frame_max + 4).next_multiple_of(64);
        let event_idx = features & F_EVENT_IDX != 0;
        let start = |transport: &mut PciTransport, index: u16, size: u16| {
            let (queue, doorbell) = start_queue(transport, &registers, index, size, event_idx)?;
            Ok((queue, doorbell, Buffers::new(size, stride)?))
        };
        let (mut queue, doorbell, buffers) = start(&mut transport, RX, sizes.rx)?;
        for id in 0..sizes.rx {
            queue.set_buffer(id, buffers.bus_address(id), stride as u32, true);
            queue.give(id);
        }
        let mut rx = Receiver { queue, buffers, doorbell, broken: false, frames: 0 };
        let (mut queue, doorbell, buffers) = start(&mut transport, TX, sizes.tx)?;
        let mut free = [0; virtqueue::MAX_SIZE as usize];
        for id in 0..sizes.tx {
            queue.set_buffer(id, buffers.bus_address(id), 0, false);
            free[usize::from(id)] = id;
        }
        let tx = Transmitter {
            queue,
            buffers,
            doorbell,
            free,
            free_len: usize::from(sizes.tx),
            frame_max,
            broken: false,
            starved: false,
            frames: 0,
        };
        status |= DeviceStatus::DRIVER_OK;
        transport.set_status(status);
        rx.flush();
        Ok(Self { mac, mtu, rx, tx, _transport: transport, _msix: msix })
    }

    /// Asks for an interrupt at the next frame, or at the next free transmit buffer if one was missing. `true`: such
    /// wait already, and no interrupt may come.
    pub fn arm(&mut self) -> bool {
        if !self.rx.broken && self.rx.queue.peek().is_err() {
            log::error!("network: the device gave back a buffer it did not have; receiving no more");
            self.rx.broken = true;
        }
        let mut waits = !self.rx.broken && self.rx.queue.arm();
        if core::mem::take(&mut self.tx.starved) {
            waits |= self.tx.queue.arm();
        }
        waits
    }

    /// Asks for no interrupts: the device is polled.
    pub fn disarm(&mut self) {
        self.rx.queue.disarm();
        self.tx.queue.disarm();
    }
}

fn start_queue(
    transport: &mut PciTransport,
    registers: &Registers,
    index: u16,
    size: u16,
    event_idx: bool,
) -> Result<(Queue, Doorbell), SetupError> {
    if transport.queue_used(index) || transport.max_queue_size(index) < u32::from(size) {
        return Err(SetupError::Queues);
    }
    let layout = Layout::of(size);
    let (virt, phys) = memory(layout.total as u64)?;
    // The vector first: a queue must not be on with none.
    registers.set_u16(COMMON_QUEUE_SELECT, index);
    registers.set_u16(COMMON_QUEUE_VECTOR, ENTRY);
    if registers.u16(COMMON_QUEUE_VECTOR) != ENTRY {
        return Err(SetupError::Msix(MsixError::Absent));
    }
    let doorbell = registers.doorbell(index).ok_or(SetupError::Transport)?;
    // SAFETY: `memory` gave a zeroed run of frames, which is never given back.
    let queue = unsafe { Queue::new(virt, size, event_idx) };
    transport.queue_set(index, size.into(), phys, phys + layout.avail as u64, phys + layout.used as u64);
    Ok((queue, doorbell))
}

/// The structures that `virtio-drivers` keeps to itself: vectors and doorbells.
struct Registers {
    common: *mut u8,
    notify: *mut u8,
    notify_len: usize,
    notify_multiplier: usize,
}

impl Registers {
    fn find(function: &Function) -> Option<Self> {
        let find = |kind: u8, least: u32| {
            let at = function.capabilities(capability::VENDOR).find(|at| (function.read(*at) >> 24) as u8 == kind)?;
            let (bar, offset, len) = (function.read(at + 4) as u8, function.read(at + 8), function.read(at + 12));
            let (base, size) = function.map_bar(usize::from(bar)).ok()?;
            let fits = u64::from(offset) + u64::from(len) <= size && len >= least;
            // SAFETY: inside the window just mapped.
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

    fn doorbell(&self, queue: u16) -> Option<Doorbell> {
        self.set_u16(COMMON_QUEUE_SELECT, queue);
        let offset = usize::from(self.u16(COMMON_QUEUE_NOTIFY_OFF)).checked_mul(self.notify_multiplier)?;
        if offset + 2 > self.notify_len || !offset.is_multiple_of(2) {
            return None;
        }
        // SAFETY: inside the mapped notification area.
        let register = unsafe { self.notify.add(offset) }.cast();
        Some(Doorbell { register, queue })
    }
}

/// One function's configuration space, as `virtio-drivers` wants it.
///
/// The crate sizes a window anew for each structure in it, with decoding off meanwhile. A hypervisor rebuilds its memory
/// map every time, which takes milliseconds; so the base address registers are played from what is known of them.
struct Access {
    function: Function,
    /// By register: it was last written with all ones, so that it shows its size.
    sizing: [bool; 6],
}

impl Access {
    const COMMAND: u8 = 0x04;

    fn register(offset: u8) -> Option<usize> {
        (0x10..0x28).contains(&offset).then(|| usize::from(offset - 0x10) / 4)
    }

    /// What sizing register `n` gives.
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
            // Only to turn decoding off and on around the sizing.
            None if register_offset == Self::COMMAND => {}
            None => self.function.write(u16::from(register_offset), data),
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self { function: self.function.clone(), sizing: self.sizing }
    }
}

/// The kernel as `virtio-drivers` wants it. Only registers are mapped through it: queues are ours.
struct Hal;

// SAFETY: memory comes from the frame allocator, page-aligned and zeroed, and everything is mapped one to one.
unsafe impl virtio_drivers::Hal for Hal {
    fn dma_alloc(pages: usize, _: virtio_drivers::BufferDirection) -> (u64, NonNull<u8>) {
        match memory(pages as u64 * mm::PAGE) {
            Ok((virt, phys)) => (phys, virt),
            // An address of 0 is the crate's word for failure.
            Err(_) => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(paddr: u64, _: NonNull<u8>, pages: usize) -> i32 {
        frames::free(x86_64::PhysAddr::new_truncate(paddr), pages as u64 * mm::PAGE);
        0
    }

    unsafe fn mmio_phys_to_virt(paddr: u64, size: usize) -> NonNull<u8> {
        let at = mm::map_device(x86_64::PhysAddr::new_truncate(paddr), size as u64);
        // The crate has no way to hear of a failure; the window was mapped whole by `Registers` or will be refused there.
        at.ok().and_then(NonNull::new).expect("a virtio device's registers cannot be mapped")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: virtio_drivers::BufferDirection) -> u64 {
        mm::virt_to_phys(buffer.as_ptr().cast::<u8>()).map_or(0, x86_64::PhysAddr::as_u64)
    }

    unsafe fn unshare(_: u64, _: NonNull<[u8]>, _: virtio_drivers::BufferDirection) {}
}
