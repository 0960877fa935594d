//! A virtio network device over PCI: rings of fixed buffers, with frames processed in place.
//!
//! Nothing allocates after set-up, and nothing waits.

use alloc::boxed::Box;
use core::ptr::NonNull;
use verbs::MacAddr;
use virtio_drivers::transport::Transport;
use virtqueue::{Broken, Queue};

use super::nic::{ETHERNET_HEADER, Nic, Receive, Transmit};
use crate::mm::{self, frames};
use crate::pci::{Function, Message};
use crate::virtio::{self, Device, Doorbell, Running, SetupError, VENDOR};

/// Transitional and modern device ids of a network device.
const IDS: [u16; 2] = [0x1000, 0x1041];

// Feature bits (virtio 1.2, sections 5.1.3 and 6).
const F_MTU: u64 = 1 << 3;
const F_MAC: u64 = 1 << 5;
const F_STATUS: u64 = 1 << 16;
const WANTED: u64 = F_MTU | F_MAC | F_STATUS;

/// The length of `struct virtio_net_hdr` with `num_buffers`, before every frame. All zero: no offload.
const HEADER: usize = 12;
const STANDARD_MTU: u16 = 1500;
const RX: u16 = 0;
const TX: u16 = 1;

/// Returns true if `function` is a network device that this driver supports.
pub(super) fn is_network(function: &Function) -> bool {
    function.id.0 == VENDOR && IDS.contains(&function.id.1)
}

/// The numbers of a device's buffers; each buffer holds one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Receive buffers, a power of two.
    pub rx: u16,
    /// Transmit buffers, a power of two.
    pub tx: u16,
}

/// Equal buffers in physically contiguous memory.
struct Buffers {
    virt: NonNull<u8>,
    phys: u64,
    stride: usize,
}

// SAFETY: the memory belongs to the buffers' owner and is not tied to a processor.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(count: u16, stride: usize) -> Result<Self, SetupError> {
        // The memory is not zeroed: under a hypervisor, touching a megabyte for the first time takes
        // milliseconds.
        let bytes = u64::from(count) * stride as u64;
        let run = frames::alloc(bytes).ok_or(SetupError::Memory(bytes))?;
        let virt = NonNull::new(mm::phys_to_virt(run)).ok_or(SetupError::Memory(bytes))?;
        Ok(Self { virt, phys: run.as_u64(), stride })
    }

    fn bus_address(&self, id: u16) -> u64 {
        self.phys + u64::from(id) * self.stride as u64
    }

    /// # Safety
    /// `id` must be below the count, and the driver must own the buffer.
    unsafe fn get(&self, id: u16) -> &[u8] {
        // SAFETY: the buffer is inside the allocation, and the device does not write to a buffer that the
        // driver owns.
        unsafe {
            core::slice::from_raw_parts(self.virt.as_ptr().add(usize::from(id) * self.stride), self.stride)
        }
    }

    /// # Safety
    /// The requirements of [`get`](Self::get) apply.
    unsafe fn get_mut(&mut self, id: u16) -> &mut [u8] {
        // SAFETY: as in `get`; `&mut self` makes it the only reference.
        unsafe {
            core::slice::from_raw_parts_mut(
                self.virt.as_ptr().add(usize::from(id) * self.stride),
                self.stride,
            )
        }
    }
}

/// Receives frames from the device.
struct Receiver {
    queue: Queue,
    buffers: Buffers,
    doorbell: Doorbell,
    broken: bool,
    frames: u64,
}

impl Receive for Receiver {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.broken {
            return None;
        }
        let used = self.queue.peek().ok()??;
        let len = (used.len as usize).clamp(HEADER, self.buffers.stride);
        // SAFETY: the device has returned the buffer, and `peek` has checked its number.
        Some(&unsafe { self.buffers.get(used.id) }[HEADER..len])
    }

    fn pop(&mut self) {
        // `arm` notices and reports a broken device.
        if let Ok(Some(used)) = self.queue.take() {
            self.queue.give(used.id);
            self.frames += 1;
        }
    }

    fn flush(&mut self) {
        if self.queue.publish() {
            self.doorbell.ring();
        }
    }

    fn arm(&mut self) -> bool {
        if !self.broken && self.queue.peek().is_err() {
            log::error!("network: the device returned a buffer that it did not have; receiving has stopped");
            self.broken = true;
        }
        !self.broken && virtio::arm(&mut self.queue)
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn frames(&self) -> u64 {
        self.frames
    }
}

/// Sends frames to the device.
struct Transmitter {
    queue: Queue,
    buffers: Buffers,
    doorbell: Doorbell,
    /// A stack of free buffers.
    free: [u16; virtqueue::MAX_SIZE as usize],
    free_len: usize,
    /// The greatest length of a frame, header and payload, in bytes.
    frame_max: usize,
    broken: bool,
    /// True if there was no room for a frame since the last `arm`.
    starved: bool,
    frames: u64,
    _running: Running,
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
                        log::error!(
                            "network: the device returned a buffer that it did not have; sending has stopped"
                        );
                    }
                    return;
                }
            }
        }
    }
}

impl Transmit for Transmitter {
    fn has_room(&mut self) -> bool {
        if self.free_len == 0 && !self.broken {
            self.reclaim();
        }
        let room = self.free_len > 0 && !self.broken;
        self.starved |= !room;
        room
    }

    fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.frame_max || !self.has_room() {
            return None;
        }
        let id = *self.free.get(self.free_len.checked_sub(1)?)?;
        // SAFETY: `id` is free, so it is below the count, and the driver owns the buffer.
        unsafe { self.buffers.get_mut(id) }.get_mut(HEADER..HEADER + len)
    }

    fn send(&mut self, len: usize) {
        assert!(len <= self.frame_max && self.free_len > 0, "no buffer to send");
        self.free_len -= 1;
        let id = self.free[self.free_len];
        // SAFETY: `id` was free until now, so it is below the count, and the driver owns the buffer.
        if let Some(header) = unsafe { self.buffers.get_mut(id) }.first_chunk_mut::<HEADER>() {
            *header = [0; HEADER];
        }
        self.queue.set_len(id, (HEADER + len) as u32);
        self.queue.give(id);
        self.queue.expose();
        self.frames += 1;
    }

    fn flush(&mut self) {
        if self.queue.publish() {
            self.doorbell.ring();
        }
    }

    fn arm(&mut self) -> bool {
        core::mem::take(&mut self.starved) && virtio::arm(&mut self.queue)
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn frames(&self) -> u64 {
        self.frames
    }
}

/// Starts the device, which interrupts with `message` once it is armed.
pub(super) fn start(function: &Function, sizes: Sizes, message: Message) -> Result<Nic, SetupError> {
    let mut virtio = Device::negotiate(function, F_MAC, WANTED, Some(message))?;
    let (transport, features) = (&virtio.transport, virtio.features);
    let read_u16 = |offset| transport.read_config_space::<u16>(offset).map_err(|_| SetupError::Transport);
    let words = [read_u16(0)?, read_u16(2)?, read_u16(4)?].map(u16::to_le_bytes);
    let mac = MacAddr([words[0][0], words[0][1], words[1][0], words[1][1], words[2][0], words[2][1]]);
    if mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
        return Err(SetupError::Address);
    }
    let mtu = if features & F_MTU != 0 { read_u16(10)? } else { STANDARD_MTU };
    let mtu = usize::from(mtu.clamp(68, 9216));

    let frame_max = ETHERNET_HEADER + mtu;
    // The stride is a multiple of a cache line. It has room for a VLAN tag more than the frame needs, so that
    // longer frames are recognised.
    let stride = (HEADER + frame_max + 4).next_multiple_of(64);
    let mut start = |index: u16, size: u16| {
        let (queue, doorbell) = virtio.queue(index, size)?;
        Ok::<_, SetupError>((queue, doorbell, Buffers::new(size, stride)?))
    };
    let (mut queue, doorbell, buffers) = start(RX, sizes.rx)?;
    for id in 0..sizes.rx {
        queue.set_buffer(id, buffers.bus_address(id), stride as u32, true);
        queue.give(id);
    }
    let mut rx = Receiver { queue, buffers, doorbell, broken: false, frames: 0 };
    let (mut queue, doorbell, buffers) = start(TX, sizes.tx)?;
    let mut free = [0; virtqueue::MAX_SIZE as usize];
    for id in 0..sizes.tx {
        queue.set_buffer(id, buffers.bus_address(id), 0, false);
        free[usize::from(id)] = id;
    }
    let running = virtio.start(2)?;
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
        _running: running,
    };
    rx.flush();
    Ok(Nic { mac, mtu, rx: Box::new(rx), tx: Box::new(tx) })
}
