//! The set-up of a machine's rings by its hypervisor over the vhost-user socket.
//!
//! The `vhost` crate reads and checks the messages. Rings run in the switching thread. Before anything about
//! a ring changes, it is taken back from that thread; when it is complete again, it is handed over.

use super::Side;
use super::ring::{LONGEST_HEADER, Ring, Signals};
use crate::{ANSWER_WITHIN, Command, Commands};
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl};
use rustix::net::{RecvFlags, recv};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

// Feature bits (virtio 1.2, sections 5.1.3 and 6). No offloads: every frame is one packet with its checksums.
const F_MTU: u64 = 1 << 3;
const F_MRG_RXBUF: u64 = 1 << 15;
const F_INDIRECT_DESC: u64 = 1 << 28;
const F_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;
const OFFERED: u64 = F_MTU | F_MRG_RXBUF | F_INDIRECT_DESC | F_EVENT_IDX | F_VERSION_1;
const F_PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// The length of the header before a frame without `num_buffers`, in bytes.
const SHORT_HEADER: usize = 10;
const UNSUPPORTED: Error = Error::InvalidOperation("not offered");

/// Starts the thread that answers the hypervisor on `connection`, which is connection number `generation` of
/// the fabric.
pub(crate) fn spawn(
    port: usize,
    generation: u64,
    connection: UnixStream,
    commands: Commands,
) -> io::Result<()> {
    let device = Device {
        port,
        generation,
        commands: commands.clone(),
        features: None,
        table: Vec::new(),
        memory: None,
        rings: Default::default(),
    };
    let device = Arc::new(Mutex::new(device));
    let mut early = connection.try_clone()?;
    let serve = move || {
        let mut handler = BackendReqHandler::from_stream(connection, Arc::clone(&device));
        let negotiated = || device.lock().is_ok_and(|device| device.features.is_some());
        while (negotiated() || answer_early(&device, &mut early).is_ok()) && handler.handle_request().is_ok()
        {
        }
        // If the fabric has stopped, the request is unnecessary.
        let _ = commands.send(Command::Closed { port, generation });
    };
    std::thread::Builder::new().name(format!("fabric-port{port}")).spawn(serve).map(drop)
}

/// Answers the `SET_VRING_ENABLE` messages that come before `SET_FEATURES`, which the crate refuses. QEMU's
/// network device sends them when it is created, and from 9.0 on waits for the answer.
fn answer_early(device: &Mutex<Device>, connection: &mut UnixStream) -> io::Result<()> {
    // Request, flags, size of the rest; number of the ring, whether it is enabled: 32 bits each, in native
    // order.
    const SET_VRING_ENABLE: u32 = 18;
    const NEED_REPLY: u32 = 8;
    /// The flags of a reply, with version 1.
    const REPLY: u32 = 1 | 4;
    loop {
        let mut message = [0; 20];
        let (got, _) = recv(&*connection, &mut message[..12], RecvFlags::PEEK | RecvFlags::WAITALL)?;
        if got < 12 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |message: &[u8; 20], n: usize| {
            message[4 * n..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
        };
        if word(&message, 0) != SET_VRING_ENABLE {
            return Ok(());
        }
        connection.read_exact(&mut message)?;
        let [index, on] = [3, 4].map(|n| word(&message, n));
        let mut device = device.lock().map_err(|_| io::ErrorKind::Other)?;
        device.set_vring_enable(index, on != 0).map_err(io::Error::other)?;
        if word(&message, 1) & NEED_REPLY != 0 {
            connection.write_all(&[SET_VRING_ENABLE, REPLY, 8, 0, 0].map(u32::to_ne_bytes).concat())?;
        }
    }
}

/// The settings of a ring, which may be incomplete.
#[derive(Debug, Default)]
struct Setting {
    size: u16,
    /// The addresses of the descriptors, the available ring and the used ring in the hypervisor.
    addresses: Option<[u64; 3]>,
    /// The first index in the available ring.
    base: u16,
    kick: Option<Arc<File>>,
    call: Option<Arc<File>>,
    enabled: bool,
    /// True while the switching thread has the ring.
    running: bool,
}

/// A machine's network device.
struct Device {
    port: usize,
    generation: u64,
    commands: Commands,
    /// The features that the driver has accepted, if it has.
    features: Option<u64>,
    table: Vec<VhostUserMemoryRegion>,
    memory: Option<Arc<GuestMemoryMmap>>,
    rings: [Setting; 2],
}

impl Device {
    fn setting(&mut self, side: Side) -> &mut Setting {
        let [receive, transmit] = &mut self.rings;
        match side {
            Side::Receive => receive,
            Side::Transmit => transmit,
        }
    }

    /// Changes the settings of one ring.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Setting)) -> Result<()> {
        let side = Side::numbered(index).ok_or(Error::InvalidParam)?;
        self.withdraw(side)?;
        change(self.setting(side));
        self.hand_over(side)
    }

    /// Changes the settings of both rings.
    fn change_all(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        const BOTH: [Side; 2] = [Side::Receive, Side::Transmit];
        BOTH.into_iter().try_for_each(|side| self.withdraw(side))?;
        change(self)?;
        BOTH.into_iter().try_for_each(|side| self.hand_over(side))
    }

    /// Takes a ring back from the switching thread.
    fn withdraw(&mut self, side: Side) -> Result<()> {
        if !std::mem::take(&mut self.setting(side).running) {
            return Ok(());
        }
        let (answer, ring) = channel();
        let (port, generation) = (self.port, self.generation);
        self.send(Command::Detach { port, generation, side, answer })?;
        // `None` means that the ring had invalid contents; its machine must set it up again.
        let ring = ring.recv_timeout(ANSWER_WITHIN).map_err(|_| Error::BackendInternalError)?;
        if let Some(ring) = ring {
            self.setting(side).base = ring.next_avail();
        }
        Ok(())
    }

    /// Hands a ring over to the switching thread if its settings are complete.
    fn hand_over(&mut self, side: Side) -> Result<()> {
        let (Some(memory), Some(features)) = (self.memory.clone(), self.features) else { return Ok(()) };
        let mergeable = features & F_MRG_RXBUF != 0;
        let header = if mergeable || features & F_VERSION_1 != 0 { LONGEST_HEADER } else { SHORT_HEADER };
        let event_idx = features & F_EVENT_IDX != 0;
        let setting = self.setting(side);
        let (Some(kick), Some(addresses), true) = (&setting.kick, setting.addresses, setting.enabled) else {
            return Ok(());
        };
        let signals = Signals { kick: Arc::clone(kick), call: setting.call.clone() };
        let mut queue = Queue::new(setting.size).map_err(|_| Error::InvalidParam)?;
        queue.set_next_avail(setting.base);
        queue.set_event_idx(event_idx);
        let [descriptors, available, used] = addresses.map(|at| self.translate(at));
        let place = |at: Option<GuestAddress>| at.ok_or(Error::InvalidParam);
        queue.try_set_desc_table_address(place(descriptors)?).map_err(|_| Error::InvalidParam)?;
        queue.try_set_avail_ring_address(place(available)?).map_err(|_| Error::InvalidParam)?;
        queue.try_set_used_ring_address(place(used)?).map_err(|_| Error::InvalidParam)?;
        let ring = Ring::new(queue, memory, signals, header, mergeable).ok_or(Error::InvalidParam)?;
        let (port, generation) = (self.port, self.generation);
        self.send(Command::Attach { port, generation, side, ring: Box::new(ring) })?;
        self.setting(side).running = true;
        Ok(())
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| Error::BackendInternalError)
    }

    /// Returns the guest address of an address in the hypervisor.
    fn translate(&self, address: u64) -> Option<GuestAddress> {
        translate(&self.table, address)
    }
}

/// Returns the guest address of an address in the hypervisor, or `None` if no region contains it. The
/// hypervisor chooses all numbers: a region that extends beyond the end of the address space is cut off
/// there.
fn translate(table: &[VhostUserMemoryRegion], address: u64) -> Option<GuestAddress> {
    table.iter().find_map(|region| {
        let offset = address.checked_sub(region.user_addr).filter(|offset| *offset < region.memory_size)?;
        region.guest_phys_addr.checked_add(offset).map(GuestAddress)
    })
}

/// Maps the machine's memory.
fn map(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<GuestMemoryMmap> {
    let refused = || Error::InvalidParam;
    let mut mapped = Vec::new();
    for (region, file) in regions.iter().zip(files) {
        // If the file were truncated, the next access would kill this process.
        let seals = fcntl_get_seals(&file).map_err(|_| refused())?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::InvalidOperation("the machine's memory can shrink"));
        }
        let mapping = region.mmap_region(file)?;
        mapped.push(GuestRegionMmap::new(mapping, GuestAddress(region.guest_phys_addr)).ok_or_else(refused)?);
    }
    mapped.sort_by_key(vm_memory::GuestMemoryRegion::start_addr);
    GuestMemoryMmap::from_regions(mapped).map_err(|_| refused())
}

/// Makes an eventfd non-blocking, so that the switching thread never waits for it, whatever the descriptor
/// refers to.
fn never_blocking(file: Option<File>) -> Result<Option<Arc<File>>> {
    let Some(file) = file else { return Ok(None) };
    let flags = fcntl_getfl(&file).map_err(|e| Error::ReqHandlerError(e.into()))?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(|e| Error::ReqHandlerError(e.into()))?;
    Ok(Some(Arc::new(file)))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.change_all(|device| {
            device.rings = Default::default();
            Ok(())
        })
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(OFFERED | F_PROTOCOL)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !(OFFERED | F_PROTOCOL) != 0 {
            return Err(Error::InvalidParam);
        }
        self.change_all(|device| {
            device.features = Some(features);
            if features & F_PROTOCOL == 0 {
                device.rings.iter_mut().for_each(|ring| ring.enabled = true);
            }
            Ok(())
        })
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let memory = map(regions, files)?;
        self.change_all(|device| {
            device.table = regions.to_vec();
            device.memory = Some(Arc::new(memory));
            Ok(())
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        self.change(index, |ring| ring.size = size)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.change(index, |ring| ring.addresses = Some([descriptor, available, used]))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change(index, |ring| ring.base = base)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        // This stops the ring until it gets a new eventfd.
        self.change(index, |ring| ring.kick = None)?;
        let side = Side::numbered(index).ok_or(Error::InvalidParam)?;
        Ok(VhostUserVringState::new(index, self.setting(side).base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = never_blocking(fd)?;
        self.change(index.into(), |ring| ring.kick = fd)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        // `None` means that the queue has no vector. QEMU reports this when a device starts, but does not
        // report when the queue later gets a vector. So the eventfd is kept; writing to it has no effect
        // until there is a vector.
        match never_blocking(fd)? {
            Some(fd) => self.change(index.into(), |ring| ring.call = Some(fd)),
            None => Ok(()),
        }
    }

    fn set_vring_err(&mut self, _: u8, _: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(1)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |ring| ring.enabled = enable)
    }

    // The methods below belong to features that are not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(UNSUPPORTED)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(UNSUPPORTED)
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(UNSUPPORTED)
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(UNSUPPORTED)
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        Err(UNSUPPORTED)
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(UNSUPPORTED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(UNSUPPORTED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(UNSUPPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hypervisor chooses the addresses of regions freely.
    #[test]
    fn addresses_are_translated_without_wrapping_around() {
        let region = |user_addr, memory_size, guest_phys_addr| VhostUserMemoryRegion {
            guest_phys_addr,
            memory_size,
            user_addr,
            mmap_offset: 0,
        };
        let table = [
            region(0x1000, 0x1000, 0x10_0000),
            region(u64::MAX - 0xfff, u64::MAX, 0x20_0000),
            region(0x4000, 0x1000, u64::MAX - 0x7ff),
        ];
        for (address, guest) in [
            (0xfff, None),
            (0x1000, Some(0x10_0000)),
            (0x1fff, Some(0x10_0fff)),
            (0x2000, None),
            // There are no addresses beyond the end of the address space.
            (u64::MAX - 0x1000, None),
            (u64::MAX, Some(0x20_0fff)),
            (0, None),
            (0x4000 + 0x7ff, Some(u64::MAX)),
            (0x4000 + 0x800, None),
        ] {
            assert_eq!(translate(&table, address), guest.map(GuestAddress), "{address:#x}");
        }
    }
}
