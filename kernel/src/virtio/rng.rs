//! virtio-rng: entropy from the host, once at boot, for processors without RDRAND.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use virtqueue::Queue;
use x86_64::PhysAddr;

use super::{Device, Doorbell, Running, SetupError, VENDOR, memory};
use crate::pci::{self, Function, Message};
use crate::{exec, mm, random, time};

/// Transitional and modern device ids.
const IDS: [u16; 2] = [0x1005, 0x1044];
const QUEUE: u16 = 0;
const BYTES: u32 = 64;
/// The delay of the reading, so that the boot's own work comes first.
const LATER: Duration = Duration::from_millis(300);
/// The longest wait for an answer. The host's own source may be slow.
const DEADLINE: Duration = Duration::from_millis(500);
/// The longest wait for another user of the device to end.
const FREE: Duration = Duration::from_secs(2);

/// Feeds the random generator from the entropy devices: before anything else if the processor has no source
/// of its own, otherwise later, in a task.
pub(crate) async fn init() {
    devices().for_each(|f| pci::claim(f.address, "virtio-rng"));
    if random::is_seeded() {
        exec::spawn_on(0, "virtio-rng", async {
            exec::sleep(LATER).await;
            seed().await;
        })
        .detach();
    } else {
        seed().await;
    }
}

fn devices() -> impl Iterator<Item = Function> {
    pci::functions().into_iter().filter(|f| f.id.0 == VENDOR && IDS.contains(&f.id.1))
}

/// Reads every entropy device. Reports a device that does not answer, and skips it.
async fn seed() {
    for function in devices() {
        match read(&function).await {
            Ok(()) => log::debug!("pci {}: entropy taken", function.address),
            Err(e) => log::error!("pci {}: entropy device {e}", function.address),
        }
    }
}

async fn read(function: &Function) -> Result<(), SetupError> {
    let mut source = match Source::start(function, BYTES, None) {
        // The other user of the device reads it.
        Err(SetupError::InUse) => return Ok(()),
        source => source?,
    };
    source.ask();
    let until = time::now() + DEADLINE;
    while !source.answered() {
        if time::now() >= until {
            return Err(SetupError::Silent);
        }
        exec::sleep(Duration::from_micros(50)).await;
    }
    random::add_entropy(source.take()?);
    Ok(())
}

/// True while an entropy device is in use: a second user would reset the device under the first.
static STARTED: AtomicBool = AtomicBool::new(false);

/// A running entropy device with one buffer.
pub(crate) struct Source {
    queue: Queue,
    doorbell: Doorbell,
    _running: Running,
    buffer: PhysAddr,
    len: u32,
}

impl Source {
    /// Starts the first entropy device with a buffer of `len` bytes and interrupts by `message`. Waits until
    /// no other user has it. Returns `None` if there is no such device.
    ///
    /// # Errors
    /// [`SetupError::InUse`] if another user has it for longer than [`FREE`]; otherwise a fault of the
    /// device.
    pub(crate) async fn start_first(len: u32, message: Message) -> Result<Option<Self>, SetupError> {
        let Some(function) = devices().next() else { return Ok(None) };
        let until = time::now() + FREE;
        loop {
            match Self::start(&function, len, Some(message)) {
                Err(SetupError::InUse) if time::now() < until => exec::sleep(Duration::from_millis(1)).await,
                started => return started.map(Some),
            }
        }
    }

    fn start(function: &Function, len: u32, message: Option<Message>) -> Result<Self, SetupError> {
        if STARTED.swap(true, Ordering::Acquire) {
            return Err(SetupError::InUse);
        }
        let started = Self::start_alone(function, len, message);
        if started.is_err() {
            STARTED.store(false, Ordering::Release);
        }
        started
    }

    fn start_alone(function: &Function, len: u32, message: Option<Message>) -> Result<Self, SetupError> {
        let mut device = Device::negotiate(function, 0, 0, message)?;
        let (mut queue, doorbell) = device.queue(QUEUE, 1)?;
        let (_, phys) = memory(len.into())?;
        let running = device.start(1)?;
        queue.set_buffer(0, phys, len, true);
        Ok(Self { queue, doorbell, _running: running, buffer: PhysAddr::new_truncate(phys), len })
    }

    /// Passes the buffer to the device to fill. The device must not have it already.
    pub(crate) fn ask(&mut self) {
        // The device has no buffer yet, so nothing can be waiting.
        let _ = self.queue.arm();
        self.queue.give(0);
        if self.queue.publish() {
            self.doorbell.ring();
        }
    }

    /// Returns true if the device has returned the buffer.
    pub(crate) fn answered(&self) -> bool {
        self.queue.has_used()
    }

    /// Returns the bytes that the device has written.
    pub(crate) fn take(&mut self) -> Result<&[u8], SetupError> {
        let used = self.queue.take().map_err(|_| SetupError::Transport)?.ok_or(SetupError::Silent)?;
        let len = self.len.min(used.len) as usize;
        // SAFETY: the device has returned the buffer, which is zeroed memory of at least this length.
        Ok(unsafe { core::slice::from_raw_parts(mm::phys_to_virt(self.buffer), len) })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        STARTED.store(false, Ordering::Release);
    }
}
