//! virtio-rng: entropy from the host, once at boot, for processors without RDRAND.

use core::time::Duration;
use virtqueue::Queue;
use x86_64::PhysAddr;

use super::{Device, Running, SetupError, VENDOR, memory};
use crate::pci::{self, Function};
use crate::{exec, mm, random, time};

/// Transitional and modern device ids.
const IDS: [u16; 2] = [0x1005, 0x1044];
const QUEUE: u16 = 0;
const BYTES: usize = 64;
/// After the boot's own work.
const LATER: Duration = Duration::from_millis(300);
/// The host's own source may be slow, but this is long.
const DEADLINE: Duration = Duration::from_millis(500);

/// Feeds the random generator from the entropy devices: before anything else where the processor has no source of its
/// own, otherwise later, in a task.
pub async fn init() {
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

/// Reads every entropy device. One that does not answer is said and left out.
async fn seed() {
    for function in devices() {
        match read(&function).await {
            Ok(()) => log::debug!("pci {}: entropy taken", function.address),
            Err(e) => log::error!("pci {}: entropy device {e}", function.address),
        }
    }
}

/// Starts the device on one buffer; gives also the buffer's address.
fn begin(function: &Function) -> Result<(Queue, Running, PhysAddr), SetupError> {
    let mut device = Device::negotiate(function, 0, 0, None)?;
    let (mut queue, doorbell) = device.queue(QUEUE, 1)?;
    let (_, phys) = memory(BYTES as u64)?;
    let running = device.start();
    queue.set_buffer(0, phys, BYTES as u32, true);
    queue.give(0);
    if queue.publish() {
        doorbell.ring();
    }
    Ok((queue, running, PhysAddr::new_truncate(phys)))
}

async fn read(function: &Function) -> Result<(), SetupError> {
    let (mut queue, _running, at) = begin(function)?;
    let until = time::now() + DEADLINE;
    while !queue.has_used() {
        if time::now() >= until {
            return Err(SetupError::Silent);
        }
        exec::sleep(Duration::from_micros(50)).await;
    }
    let used = queue.take().map_err(|_| SetupError::Transport)?.ok_or(SetupError::Silent)?;
    // SAFETY: the device has given the buffer back, and it is zeroed memory of this length.
    let bytes = unsafe { core::slice::from_raw_parts(mm::phys_to_virt(at), BYTES.min(used.len as usize)) };
    random::add_entropy(bytes);
    Ok(())
}
