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
const MAX_BLOB: u32 = 1 << 20;

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
