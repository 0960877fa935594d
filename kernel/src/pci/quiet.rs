//! Takes the bus away from devices that firmware or a former kernel has set up: such a device may still write
//! to memory that this kernel uses for something else.

use super::address::Address;
use super::config::Config;
use crate::arch::cpu;

/// Stops all functions that the configuration ports reach: on a virtual machine those behind
/// bridges that are numbered; on a real one, which may have further root buses, all. Call before
/// memory is allocated. A machine without these ports has its functions stopped by the scan.
pub(crate) fn early() {
    let Some(config) = Config::ports() else { return };
    let mut due = [!cpu::is_virtual(); 256];
    due[0] = true;
    let mut done = [false; 256];
    while let Some(bus) = (0..=255u8).find(|bus| due[usize::from(*bus)] && !done[usize::from(*bus)]) {
        done[usize::from(bus)] = true;
        for device in 0..32 {
            let head = config.read(Address { segment: 0, bus, device, function: 0 }, 0x0c);
            let functions = if head != u32::MAX && head & 1 << 23 != 0 { 8 } else { 1 };
            for function in 0..functions {
                let address = Address { segment: 0, bus, device, function };
                if config.read(address, 0) as u16 == 0xffff {
                    continue;
                }
                if config.read(address, 0x0c) >> 16 & 0x7f == 1 {
                    due[usize::from((config.read(address, 0x18) >> 8) as u8)] = true;
                } else {
                    config.stop(address);
                }
            }
        }
    }
}
