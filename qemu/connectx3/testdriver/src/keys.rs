//! Regions and windows as a driver creates them.

use super::driver::{Node, PD, Queue};

/// Rights of an entry.
pub const LOCAL_READ: u32 = 1 << 10;
pub const LOCAL_WRITE: u32 = 1 << 11;
pub const REMOTE_READ: u32 = 1 << 12;
pub const REMOTE_WRITE: u32 = 1 << 13;
pub const ATOMIC: u32 = 1 << 14;
pub const BIND: u32 = 1 << 15;
pub const ALL: u32 = 0x1f << 10;
pub const PAGE: u64 = 4096;

/// Opcodes of work requests.
pub const SEND_INVALIDATE: u32 = 0x01;
pub const WRITE: u32 = 0x08;
pub const WRITE_IMM: u32 = 0x09;
pub const SEND: u32 = 0x0a;
pub const READ: u32 = 0x10;
pub const COMPARE_SWAP: u32 = 0x11;
pub const FETCH_ADD: u32 = 0x12;
pub const BIND_WINDOW: u32 = 0x18;
pub const FAST_REGISTER: u32 = 0x19;
pub const LOCAL_INVALIDATE: u32 = 0x1b;

const REGION: u32 = 0xf002_0100;
const FREE_REGION: u32 = 0x3002_0100;
const INVALIDATE: u32 = 3 << 24;
const FAST: u32 = 1 << 27;

/// The parameters of a region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub index: u32,
    /// The variable bits of the key.
    pub variable: u8,
    pub pd: u32,
    pub rights: u32,
    /// The first address, as peers and work requests use it.
    pub start: u64,
    pub len: u64,
}

impl Region {
    pub fn key(&self) -> u32 {
        self.index << 8 | u32::from(self.variable)
    }
}

impl Node {
    /// Registers a region whose pages begin at `at`. Returns its key.
    pub fn register(&mut self, region: Region, at: u64) -> u32 {
        let Region { index, pd, rights, start, len, .. } = region;
        let mtt = self.map_pages(at & !(PAGE - 1), start % PAGE + len);
        let mailbox = [
            (0x00, REGION | rights),
            (0x08, region.key().rotate_right(8)),
            (0x0c, pd | INVALIDATE),
            (0x10, (start >> 32) as u32),
            (0x14, start as u32),
            (0x18, (len >> 32) as u32),
            (0x1c, len as u32),
            (0x30, mtt),
            (0x38, 12),
        ];
        self.command(0x00d, 0, index & 0x3ff, &mailbox);
        region.key()
    }

    /// Takes an entry back and returns the status.
    pub fn deregister(&mut self, key: u32) -> u8 {
        self.try_command(0x00f, 1, key >> 8 & 0x3ff, &[])
    }

    /// Hands over a free region for FAST_REG of up to `pages` pages.
    pub fn fast_region(&mut self, index: u32, pd: u32, pages: u32) -> u32 {
        let mtt = self.map_pages(0, u64::from(pages) * PAGE);
        for page in 0..pages {
            let entry = self.page_entry(mtt + 8 * page);
            self.machine.put(entry, &[0; 8]);
        }
        let mailbox =
            [(0x00, FREE_REGION), (0x08, index), (0x0c, pd | INVALIDATE | FAST), (0x30, mtt), (0x34, pages)];
        self.command(0x00d, 0, index, &mailbox);
        index << 8
    }

    /// Hands over an unbound window.
    pub fn window(&mut self, index: u32, pd: u32, type2: bool) -> u32 {
        let mailbox: &[_] = if type2 {
            &[(0x00, 0x3000_0000), (0x04, 1 << 7), (0x08, index), (0x0c, pd | INVALIDATE)]
        } else {
            &[(0x08, index), (0x0c, pd)]
        };
        self.command(0x00d, 0, index, mailbox);
        index << 8
    }

    /// Posts FAST_REG of the pages listed at `list`.
    pub fn fast_register(
        &mut self,
        queue: &mut Queue,
        key: u32,
        rights: u32,
        list: u64,
        start: u64,
        len: u64,
    ) {
        let words = [
            rights << 17,
            key,
            (list >> 32) as u32,
            list as u32,
            (start >> 32) as u32,
            start as u32,
            (len >> 32) as u32,
            len as u32,
            0,
            12,
            0,
            0,
        ];
        self.post_send(queue, FAST_REGISTER, 0, &words);
    }

    /// Posts LOCAL_INV.
    pub fn local_invalidate(&mut self, queue: &mut Queue, key: u32) {
        self.post_send(queue, LOCAL_INVALIDATE, 0, &[0, 0, key, 0, 0, 0, 0, 0]);
    }

    /// Posts a bind.
    pub fn bind(&mut self, queue: &mut Queue, bind: &WindowBind) {
        let WindowBind { key, lkey, rights, start, len, type2, zero_based } = *bind;
        let words = [
            rights << 17,
            u32::from(type2) << 31 | u32::from(zero_based) << 30,
            key,
            lkey,
            (start >> 32) as u32,
            start as u32,
            (len >> 32) as u32,
            len as u32,
        ];
        self.post_send(queue, BIND_WINDOW, 0, &words);
    }
}

/// The parameters of a window's bind.
#[derive(Clone, Copy, Debug)]
pub struct WindowBind {
    pub key: u32,
    pub lkey: u32,
    pub rights: u32,
    pub start: u64,
    pub len: u64,
    pub type2: bool,
    pub zero_based: bool,
}

/// Returns a region of the usual domain with all rights over `len` bytes at `start`, with variable bits 0.
pub fn region(index: u32, start: u64, len: u64) -> Region {
    Region { index, variable: 0, pd: PD, rights: ALL, start, len }
}
