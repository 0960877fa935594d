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
//! QEMU needs `-device isa-debug-exit,iobase=0xf4,iosize=0x04`. Without it, and on real machines, a success
//! turns the machine off, and a failure resets it (so that a server boots again), by the steps of
//! [`firmware::power`]. A machine that cannot run as configured stays as it is, so that its consoles can be
//! read: after a reset it would fail again.

use core::time::Duration;
use firmware::Register;
use firmware::power::{Power, SLEEP_BITS, Step};
use spin::Once;
use x86_64::PhysAddr;
use x86_64::instructions::port::Port;

use crate::arch::cpu;
use crate::{mm, time};

/// The time that a step gets to end the machine, before the next one is tried.
const STEP: Duration = Duration::from_millis(100);
/// The longest time for firmware to give up ACPI's registers.
const TAKE: Duration = Duration::from_secs(3);
/// `SCI_EN` of a PM1 control register.
const SCI_EN: u16 = 1;

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

static REGISTERS: Once<Power> = Once::new();

/// Stores the registers, and maps them while mappings can still be added.
pub(crate) fn init(registers: Power) {
    for at in registers.in_memory() {
        if let Err(e) = mm::map_device(PhysAddr::new_truncate(at), 2) {
            log::warn!("power register at {at:#x}: {e}");
        }
    }
    REGISTERS.call_once(|| registers);
}

/// Returns the address of a register in memory, if it is mapped.
fn mapped(at: u64) -> Option<*mut u8> {
    let at = mm::phys_to_virt(PhysAddr::new_truncate(at));
    mm::is_mapped(at).then_some(at)
}

fn write(register: Register, value: u8) {
    match register {
        // SAFETY: a register for this purpose, by ACPI or by convention; the machine ends here.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        Register::Memory(at) => {
            if let Some(at) = mapped(at) {
                // SAFETY: as above; it was mapped by `init`.
                unsafe { at.write_volatile(value) };
            }
        }
    }
}

fn read_wide(register: Register) -> u16 {
    match register {
        // SAFETY: reading a PM1 control register has no side effect.
        Register::Port(port) => unsafe { Port::new(port).read() },
        // SAFETY: as above; it was mapped by `init`.
        Register::Memory(at) => mapped(at).map_or(0, |at| unsafe { at.cast::<u16>().read_volatile() }),
    }
}

fn write_wide(register: Register, value: u16) {
    match register {
        // SAFETY: as in `write`.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        Register::Memory(at) => {
            if let Some(at) = mapped(at) {
                // SAFETY: as in `write`.
                unsafe { at.cast::<u16>().write_volatile(value) };
            }
        }
    }
}

/// Takes a step, and waits for its effect.
fn take(step: Step) {
    match step {
        Step::TakeAcpi { pm1, port, value } => {
            if read_wide(pm1) & SCI_EN != 0 {
                return;
            }
            write(Register::Port(port), value);
            let begun = time::now();
            while read_wide(pm1) & SCI_EN == 0 && time::now() < begun + TAKE {
                core::hint::spin_loop();
            }
        }
        Step::Sleep(register, bits) => {
            let kept = read_wide(register) & !SLEEP_BITS;
            // Some chipsets take the sleep type only before the enable bit.
            write_wide(register, kept | bits & !(1 << 13));
            write_wide(register, kept | bits);
            time::spin_for(STEP);
        }
        Step::Write(register, value) => {
            write(register, value);
            time::spin_for(STEP);
        }
        Step::TripleFault => cpu::triple_fault(),
    }
}

/// Turns the machine off. It halts if that is not possible.
pub(crate) fn off() -> ! {
    cpu::interrupts_off();
    REGISTERS.get().copied().unwrap_or_default().off().for_each(take);
    crate::console::print_dying(format_args!("this machine cannot be turned off: halted\n"));
    cpu::halt_for_ever()
}

/// Resets the machine.
pub(crate) fn reset() -> ! {
    cpu::interrupts_off();
    REGISTERS.get().copied().unwrap_or_default().reset().for_each(take);
    cpu::halt_for_ever()
}

/// Ends the machine. Prints nothing, and takes no lock except the console's, for which it does not wait.
pub(crate) fn exit(code: Code) -> ! {
    cpu::interrupts_off();
    crate::console::print_dying(format_args!(""));
    end_emulator(code);
    if code == Code::Success { off() } else { reset() }
}

/// Ends QEMU with the status of `code`, if it has the debug exit device. Otherwise it has no effect.
pub(crate) fn end_emulator(code: Code) {
    if cpu::is_virtual() {
        // SAFETY: this is QEMU's isa-debug-exit; on other virtual machines nothing answers at this port.
        unsafe { Port::new(0xf4).write(code as u32) };
    }
}
