//! Assigns addresses to memory windows where firmware has not: on QEMU's microvm.
//!
//! ACPI lists the windows that the host bridge decodes. Real firmware always assigns addresses itself.

use alloc::vec::Vec;
use x86_64::PhysAddr;

use super::address::Address;
use super::{Bar, Function};
use crate::boot::Region;

/// Each window lies entirely above or entirely below this address.
const FOUR_GIB: u64 = 4 << 30;
/// Larger windows are placed above 4 GiB if possible.
const LOW_MAX: u64 = 64 << 20;
/// Bridges forward memory in units of 1 MiB.
const BRIDGE_UNIT: u64 = 1 << 20;

/// Allocates addresses from a window, in ascending order.
struct Window {
    next: u64,
    end: u64,
}

impl Window {
    fn take(&mut self, size: u64) -> Option<u64> {
        let at = self.next.checked_next_multiple_of(size)?;
        let end = at.checked_add(size).filter(|e| *e <= self.end)?;
        self.next = end;
        Some(at)
    }

    fn align(&mut self) -> u64 {
        self.next = self.next.next_multiple_of(BRIDGE_UNIT).min(self.end);
        self.next
    }
}

struct Assign<'a> {
    functions: &'a mut [Function],
    low: Window,
    high: Window,
}

/// Assigns an address to every memory window, bridges included.
pub(super) fn all(functions: &mut [Function], windows: &[Region]) {
    if windows.is_empty() {
        log::error!("pci: firmware has assigned no addresses to devices, and ACPI lists no windows for them");
        return;
    }
    let mut roots: Vec<(u16, u8)> = Vec::new();
    let behind = |f: &Function, bus: u8| bridge_bus(f) == Some(bus);
    for f in functions.iter() {
        let bus = (f.address.segment, f.address.bus);
        let is_root = !functions.iter().any(|b| b.address.segment == bus.0 && behind(b, bus.1));
        if is_root && !roots.contains(&bus) {
            roots.push(bus);
        }
    }
    let window = |low: bool| {
        let range = |r: &Region| (r.start.as_u64(), r.end.as_u64());
        let (next, end) = windows.iter().map(range).find(|r| (r.0 < FOUR_GIB) == low).unwrap_or((0, 0));
        Window { next, end }
    };
    let (low, high) = (window(true), window(false));
    let mut assign = Assign { functions, low, high };
    for (segment, bus) in roots {
        assign.bus(segment, bus, true);
    }
}

/// Returns the bus behind a bridge.
fn bridge_bus(f: &Function) -> Option<u8> {
    (f.class.0 == 6 && f.class.1 == 4).then(|| (f.read(0x18) >> 8) as u8)
}

impl Assign<'_> {
    fn bus(&mut self, segment: u16, bus: u8, root: bool) {
        for i in 0..self.functions.len() {
            let Address { segment: s, bus: b, .. } = self.functions[i].address;
            if (s, b) != (segment, bus) {
                continue;
            }
            self.function(i, root);
            if let Some(secondary) = bridge_bus(&self.functions[i]).filter(|s| *s > bus) {
                self.bridge(i, secondary);
            }
        }
    }

    fn function(&mut self, i: usize, root: bool) {
        let f = &mut self.functions[i];
        for n in 0..f.bars.len() {
            let Some(Bar::Memory { size, wide, prefetchable, .. }) = f.bars[n] else { continue };
            // Behind a bridge only prefetchable memory may lie above 4 GiB.
            let may_high = wide && (root || prefetchable);
            let at = if may_high && size > LOW_MAX { self.high.take(size) } else { self.low.take(size) };
            let at = at.or_else(|| if may_high { self.high.take(size) } else { None });
            let Some(at) = at else { continue };
            let offset = 0x10 + 4 * n as u16;
            f.write(offset, at as u32);
            if wide {
                f.write(offset + 4, (at >> 32) as u32);
            }
            let address = Some(PhysAddr::new_truncate(at));
            f.bars[n] = Some(Bar::Memory { address, size, wide, prefetchable });
        }
    }

    /// Assigns addresses behind bridge `i`, and makes the bridge forward exactly these.
    fn bridge(&mut self, i: usize, secondary: u8) {
        let segment = self.functions[i].address.segment;
        let (low, high) = (self.low.align(), self.high.align());
        self.bus(segment, secondary, false);
        let (low_end, high_end) = (self.low.align(), self.high.align());
        let f = &self.functions[i];
        // A base above the limit forwards nothing.
        let window = |start: u64, end: u64| {
            let (base, limit) = if start < end { (start, end - 1) } else { (BRIDGE_UNIT, 0) };
            (base >> 16) as u32 & 0xfff0 | (limit as u32) & 0xfff0_0000
        };
        f.write(0x20, window(low, low_end));
        f.write(0x24, window(high, high_end));
        f.write(0x28, (high >> 32) as u32);
        f.write(0x2c, if high < high_end { ((high_end - 1) >> 32) as u32 } else { 0 });
        f.enable();
    }
}
