//! Power-off and reset of the machine, and its exit status.
//!
//! | code | value at port 0xf4 | QEMU's exit status (`value * 2 + 1`) |
//! |---|---|---|
//! | [`Code::Success`] | 0x10 | 33 |
//! | [`Code::Panic`] | 0x01 | 3 |
//! | [`Code::Fault`] | 0x02 | 5 |
//! | [`Code::HeapExhausted`] | 0x03 | 7 |
//! | [`Code::SelftestFailed`] | 0x04 | 9 |
//! | [`Code::Refused`] | 0x05 | 11 |
//!
//! QEMU needs `-device isa-debug-exit,iobase=0xf4,iosize=0x04`. Without it, a success is a soft power-off by
//! ACPI, and a failure is a reset (so that a server boots again). A machine without these registers halts.

use spin::Once;
use x86_64::instructions::port::Port;

use crate::arch::cpu;
use crate::boot::acpi::Register;
use crate::mm;

/// The reason for which the machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    /// The appliance has done its work.
    Success = 0x10,
    /// The kernel has panicked.
    Panic = 0x01,
    /// The processor faulted.
    Fault = 0x02,
    /// The heap and all memory are used up.
    HeapExhausted = 0x03,
    /// A self-test found an error.
    SelftestFailed = 0x04,
    /// The node cannot run as configured.
    Refused = 0x05,
}

/// ACPI's registers for reset and power-off.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Registers {
    /// Reset register and value.
    pub reset: Option<(Register, u8)>,
    /// Sleep control register (hardware-reduced).
    pub sleep_control: Option<Register>,
    /// PM1a control port and `SLP_TYP`.
    pub soft_off: Option<(u16, u8)>,
}

static REGISTERS: Once<Registers> = Once::new();

/// Stores the registers, and maps them while mappings can still be added.
pub(crate) fn init(registers: Registers) {
    for register in [registers.reset.map(|(r, _)| r), registers.sleep_control].into_iter().flatten() {
        if let Register::Memory(at) = register
            && let Err(e) = mm::map_device(at, 1)
        {
            log::warn!("power register at {at:?}: {e}");
        }
    }
    REGISTERS.call_once(|| registers);
}

fn write(register: Register, value: u8) {
    match register {
        // SAFETY: ACPI names this register for this purpose, and the machine ends here.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        Register::Memory(at) => {
            let at = mm::phys_to_virt(at);
            if mm::virt_to_phys(at).is_some() {
                // SAFETY: the register was mapped by `init`. ACPI names it for this purpose, and the machine
                // ends here.
                unsafe { at.write_volatile(value) };
            }
        }
    }
}

/// Ends the machine. Prints nothing, and takes no lock except the console's, for which it does not wait.
pub(crate) fn exit(code: Code) -> ! {
    cpu::interrupts_off();
    crate::console::print_dying(format_args!(""));
    // SAFETY: this is QEMU's isa-debug-exit; on other machines nothing answers at this port.
    unsafe { Port::new(0xf4).write(code as u32) };
    if let Some(registers) = REGISTERS.get() {
        if code == Code::Success {
            const SLEEP_ENABLE: u8 = 1 << 5;
            if let Some(register) = registers.sleep_control {
                write(register, 5 << 2 | SLEEP_ENABLE);
            }
            if let Some((port, slp_typ)) = registers.soft_off {
                // SAFETY: as in `write`.
                unsafe { Port::new(port).write(u16::from(slp_typ) << 10 | 1 << 13) };
            }
        } else if let Some((register, value)) = registers.reset {
            write(register, value);
        }
    }
    cpu::halt_for_ever()
}
