//! Finds functions: from each root bus through bridges, with the size of every memory window.

use alloc::vec::Vec;
use x86_64::PhysAddr;

use super::address::Address;
use super::config::COMMAND;
use super::{Bar, Config, Function};
use crate::arch::cpu;
use crate::boot::acpi::EcamWindow;

/// The greatest depth of bridges. A deeper one indicates a loop.
const MAX_DEPTH: usize = 16;
/// Decode bits of the command register: ports and memory.
const DECODE: u32 = 3;

struct Scan {
    config: Config,
    segment: u16,
    seen: [bool; 256],
    /// The bus number for the next bridge that the firmware has not numbered.
    next_bus: u8,
    found: Vec<Function>,
}

/// Returns all functions, and true if firmware has assigned no addresses to their memory windows.
pub(super) fn all(windows: &[EcamWindow]) -> (Vec<Function>, bool) {
    let mut configs: Vec<Config> = windows.iter().filter_map(Config::memory).collect();
    if configs.is_empty() {
        configs.extend(Config::ports());
    }
    let mut found = Vec::new();
    for config in configs {
        let (segment, buses) = config.buses();
        let first = *buses.start();
        let next_bus = first.saturating_add(1);
        let mut scan = Scan { config, segment, seen: [false; 256], next_bus, found: Vec::new() };
        scan.bus(first, 0);
        // Servers have more root buses, which only AML names. A virtual machine has one here, and probing the
        // others would cost it milliseconds.
        if !cpu::is_virtual() {
            for bus in buses {
                if !scan.seen[usize::from(bus)] {
                    scan.bus(bus, 0);
                }
            }
        }
        found.append(&mut scan.found);
    }
    let windows = || found.iter().flat_map(|f| f.bars.iter().flatten());
    let has_address = |bar: &Bar| matches!(bar, Bar::Memory { address: Some(_), .. });
    let unassigned = !windows().any(has_address) && windows().any(|b| matches!(b, Bar::Memory { .. }));
    found.sort_by_key(|f| f.address);
    (found, unassigned)
}

impl Scan {
    fn bus(&mut self, bus: u8, depth: usize) {
        let (_, buses) = self.config.buses();
        if depth > MAX_DEPTH
            || !buses.contains(&bus)
            || core::mem::replace(&mut self.seen[usize::from(bus)], true)
        {
            return;
        }
        for device in 0..32 {
            let at = |function| Address { segment: self.segment, bus, device, function };
            let head = self.config.read(at(0), 0x0c);
            if self.config.read(at(0), 0) as u16 == 0xffff {
                continue;
            }
            let functions = if head & 1 << 23 != 0 { 8 } else { 1 };
            for function in 0..functions {
                let address = Address { segment: self.segment, bus, device, function };
                self.function(address, depth);
            }
        }
    }

    fn function(&mut self, address: Address, depth: usize) {
        let read = |offset| self.config.read(address, offset);
        let id = read(0);
        if id as u16 == 0xffff {
            return;
        }
        let (class, head) = (read(8), read(0x0c));
        let bridge = head >> 16 & 0x7f == 1;
        let subsystem = if bridge { 0 } else { read(0x2c) };
        let halves = |word: u32| (word as u16, (word >> 16) as u16);
        self.config.stop(address);
        let bars = self.bars(
            address,
            match head >> 16 & 0x7f {
                0 => 6,
                1 => 2,
                _ => 0,
            },
        );
        self.found.push(Function {
            address,
            id: halves(id),
            subsystem: halves(subsystem),
            class: ((class >> 24) as u8, (class >> 16) as u8, (class >> 8) as u8),
            revision: class as u8,
            bars,
            driver: None,
            config: self.config,
        });
        if bridge {
            self.bridge(address, depth);
        }
    }

    /// Scans behind a bridge, and numbers its buses if firmware has not.
    fn bridge(&mut self, address: Address, depth: usize) {
        let numbers = self.config.read(address, 0x18);
        let secondary = (numbers >> 8) as u8;
        if secondary != 0 {
            self.next_bus = self.next_bus.max(((numbers >> 16) as u8).saturating_add(1));
            return self.bus(secondary, depth + 1);
        }
        let secondary = self.next_bus;
        if secondary == 255 {
            log::warn!("pci {address}: no bus number is left for the devices behind it");
            return;
        }
        self.next_bus += 1;
        let number = |last: u8| {
            numbers & 0xff00_0000 | u32::from(last) << 16 | u32::from(secondary) << 8 | u32::from(address.bus)
        };
        self.config.write(address, 0x18, number(255));
        self.bus(secondary, depth + 1);
        self.config.write(address, 0x18, number(self.next_bus - 1));
    }

    /// Reads and sizes the first `count` base address registers, with decoding off meanwhile.
    fn bars(&self, address: Address, count: u16) -> [Option<Bar>; 6] {
        let read = |offset| self.config.read(address, offset);
        let write = |offset, value| self.config.write(address, offset, value);
        let command = read(COMMAND) & 0xffff;
        // Under a hypervisor each change of these bits rebuilds the memory map, so they are changed only if
        // necessary.
        let decodes = command & DECODE != 0;
        if decodes {
            write(COMMAND, command & !DECODE);
        }
        let size = |offset: u16, old: u32| {
            write(offset, u32::MAX);
            let mask = read(offset);
            write(offset, old);
            mask
        };
        let mut bars = [None; 6];
        let mut n = 0;
        while n < count {
            let offset = 0x10 + 4 * n;
            let slot = usize::from(n);
            n += 1;
            let old = read(offset);
            if old & 1 != 0 {
                bars[slot] = (old >> 2 != 0).then_some(Bar::Ports { port: old as u16 & !3 });
                continue;
            }
            let wide = old & 6 == 4 && n < count;
            let mut mask = 0xffff_ffff_0000_0000 | u64::from(size(offset, old) & !0xf);
            let mut base = u64::from(old & !0xf);
            if mask == 0xffff_ffff_0000_0000 && !wide {
                continue;
            }
            if wide {
                let high = read(offset + 4);
                mask = mask & 0xffff_ffff | u64::from(size(offset + 4, high)) << 32;
                base |= u64::from(high) << 32;
                n += 1;
            }
            let size = mask.wrapping_neg() & mask;
            if size < 16 {
                continue;
            }
            let address = (base != 0).then(|| PhysAddr::new_truncate(base));
            bars[slot] = Some(Bar::Memory { address, size, wide, prefetchable: old & 8 != 0 });
        }
        if decodes {
            write(COMMAND, command);
        }
        bars
    }
}
