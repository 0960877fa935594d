//! QEMU's fw_cfg, accessed by ports: named blobs that the launcher passes in addition to the command line
//! (the cluster key).

use alloc::vec;
use alloc::vec::Vec;
use x86_64::instructions::port::Port;

use crate::arch::cpu;
use crate::sync::IrqMutex;

/// Keys of the selector (QEMU's `docs/specs/fw_cfg`).
const KEY_SIGNATURE: u16 = 0;
const KEY_DIRECTORY: u16 = 0x19;
/// The longest accepted blob, in bytes.
const MAX_BLOB: u32 = 64 << 20;

struct Ports {
    selector: Port<u16>,
    data: Port<u8>,
}

static PORTS: IrqMutex<Ports> = IrqMutex::new(Ports { selector: Port::new(0x510), data: Port::new(0x511) });

impl Ports {
    fn select(&mut self, key: u16) {
        // SAFETY: this is the selector port of fw_cfg; on a machine without fw_cfg nothing listens there.
        unsafe { self.selector.write(key) };
    }

    fn read(&mut self, buf: &mut [u8]) {
        for byte in buf {
            // SAFETY: reading the data port only advances fw_cfg's own offset.
            *byte = unsafe { self.data.read() };
        }
    }

    fn word(&mut self) -> u32 {
        let mut word = [0; 4];
        self.read(&mut word);
        u32::from_be_bytes(word)
    }

    fn find(&mut self, name: &str) -> Option<(u16, u32)> {
        self.select(KEY_SIGNATURE);
        let mut signature = [0; 4];
        self.read(&mut signature);
        if &signature != b"QEMU" {
            return None;
        }
        self.select(KEY_DIRECTORY);
        let count = self.word().min(4096);
        for _ in 0..count {
            let mut entry = [0u8; 64];
            self.read(&mut entry);
            let (head, file) = entry.split_at(8);
            let end = file.iter().position(|b| *b == 0).unwrap_or(file.len());
            if file.get(..end) == Some(name.as_bytes()) {
                let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
                return Some((u16::from_be_bytes([head[4], head[5]]), size));
            }
        }
        None
    }
}

/// Writes the file `name` by fw_cfg's DMA. `access` is a page of RAM at the physical address `at`.
/// Returns false if there is no such file.
#[cfg(feature = "selftest")]
pub(crate) fn write(name: &str, bytes: &[u8], access: *mut u8, at: x86_64::PhysAddr) -> bool {
    let Some((key, _)) = PORTS.lock().find(name).filter(|_| cpu::is_virtual()) else { return false };
    // The control word, the length and the address, then the bytes themselves.
    let (select, write) = (1 << 3, 1 << 4);
    let head = [u32::from(key) << 16 | select | write, bytes.len() as u32].map(u32::to_be_bytes);
    let data = (at.as_u64() + 16).to_be_bytes();
    let whole = head.as_flattened().iter().chain(&data).chain(bytes).take(4096);
    for (n, byte) in whole.enumerate() {
        // SAFETY: the caller passes a page that nothing else uses.
        unsafe { access.add(n).write_volatile(*byte) };
    }
    // SAFETY: the device reads the page, and writes its control word only.
    unsafe {
        Port::new(0x514).write(((at.as_u64() >> 32) as u32).to_be());
        Port::new(0x518).write((at.as_u64() as u32).to_be());
        access.cast::<u32>().read_volatile() == 0
    }
}

/// Returns the blob `name` (such as `opt/ferrolite/key`), or `None` if there is no such blob or no fw_cfg.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    if !cpu::is_virtual() {
        return None;
    }
    let (key, size) = PORTS.lock().find(name)?;
    if size > MAX_BLOB {
        log::error!("fw_cfg: {name} has {size} bytes, more than {MAX_BLOB}");
        return None;
    }
    let mut blob = vec![0; size as usize];
    let mut ports = PORTS.lock();
    ports.select(key);
    ports.read(&mut blob);
    Some(blob)
}
