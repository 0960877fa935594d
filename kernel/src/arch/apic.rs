//! The local APIC, accessed by MSR (x2APIC) where the processor supports that, otherwise by memory (xAPIC):
//! end of interrupt, IPIs, timer.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use super::{cpu, interrupts};
/// Registers, as offsets in xAPIC's page; x2APIC's MSR is `0x800 + offset / 16`.
mod register {
    pub(super) const ID: u32 = 0x20;
    pub(super) const TASK_PRIORITY: u32 = 0x80;
    pub(super) const END_OF_INTERRUPT: u32 = 0xb0;
    pub(super) const SPURIOUS: u32 = 0xf0;
    pub(super) const IN_SERVICE: u32 = 0x100;
    pub(super) const REQUESTED: u32 = 0x200;
    pub(super) const ERROR_STATUS: u32 = 0x280;
    pub(super) const COMMAND: u32 = 0x300;
    pub(super) const COMMAND_HIGH: u32 = 0x310;
    pub(super) const TIMER: u32 = 0x320;
    pub(super) const LINT0: u32 = 0x350;
    pub(super) const LINT1: u32 = 0x360;
    pub(super) const ERROR: u32 = 0x370;
    pub(super) const INITIAL_COUNT: u32 = 0x380;
    pub(super) const CURRENT_COUNT: u32 = 0x390;
    pub(super) const DIVIDE: u32 = 0x3e0;
}

const APIC_BASE: u32 = 0x1b;
const TSC_DEADLINE: u32 = 0x6e0;
/// Bits of [`APIC_BASE`]: x2APIC mode, and the APIC is on.
const EXTENDED: u64 = 1 << 10;
const ON: u64 = 1 << 11;
const MASKED: u32 = 1 << 16;
/// The greatest id that xAPIC, and a device's message without interrupt remapping, can address; 255 is all
/// processors.
pub(crate) const LAST_SHORT_ID: u32 = 254;
const X2APIC: usize = 1;

/// The address of xAPIC's mapped registers; [`X2APIC`] for x2APIC; 0 before [`init`].
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Timer counts per tick of the time stamp counter, times 2^32; 0 if not known yet or not needed.
static TIMER_RATE: AtomicU64 = AtomicU64::new(0);
/// True if the timer supports TSC deadlines.
static DEADLINE: AtomicBool = AtomicBool::new(false);

fn read(register: u32) -> u32 {
    match BASE.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: reading this local APIC register has no side effect.
        X2APIC => unsafe { Msr::new(0x800 + (register >> 4)).read() as u32 },
        // SAFETY: as above; the page was mapped by `init`.
        base => unsafe { ((base + register as usize) as *const u32).read_volatile() },
    }
}

fn write(register: u32, value: u32) {
    match BASE.load(Ordering::Relaxed) {
        0 => {}
        // SAFETY: a local APIC register, written as the manual says; memory is not affected.
        X2APIC => unsafe { Msr::new(0x800 + (register >> 4)).write(u64::from(value)) },
        // SAFETY: as above; the page was mapped by `init`.
        base => unsafe { ((base + register as usize) as *mut u32).write_volatile(value) },
    }
}

/// Finds the local APIC. Call once, on the boot processor; each processor then calls [`enable`].
///
/// `map` maps the page of registers and returns its address. It is called only if x2APIC is not used: the
/// processor does not have it, or `keep_xapic` is set and firmware has not turned it on.
pub(crate) fn init(keep_xapic: bool, map: impl FnOnce() -> *mut u8) {
    mask_legacy();
    // TSC deadlines need a counter with one rate in all power states.
    let invariant = cpu::bit(cpu::cpuid(0x8000_0007, 0).edx, 8);
    DEADLINE.store(invariant && cpu::bit(cpu::cpuid(1, 0).ecx, 24), Ordering::Relaxed);
    // SAFETY: reading the register has no side effect.
    let is_on = unsafe { Msr::new(APIC_BASE).read() } & EXTENDED != 0;
    if is_on || cpu::bit(cpu::cpuid(1, 0).ecx, 21) && !keep_xapic {
        BASE.store(X2APIC, Ordering::Relaxed);
        return;
    }
    BASE.store(map() as usize, Ordering::Relaxed);
}

/// Moves the legacy interrupt controllers away from the exception vectors and masks them.
fn mask_legacy() {
    for (port, value) in [
        (0x20, 0x11),
        (0xa0, 0x11),
        (0x21, 0x20),
        (0xa1, 0x28),
        (0x21, 4),
        (0xa1, 2),
        (0x21, 1),
        (0xa1, 1),
        (0x21, 0xff),
        (0xa1, 0xff),
    ] {
        // SAFETY: this is the initialisation sequence of the 8259s; absent ones ignore it.
        unsafe { Port::<u8>::new(port).write(value) };
    }
}

/// Enables this processor's local APIC, with its timer and pins masked.
pub(crate) fn enable() {
    // SAFETY: enables the APIC in the mode that `init` chose, at the address that firmware set.
    unsafe {
        let mut msr = Msr::new(APIC_BASE);
        // An APIC that is off must be turned on before it enters x2APIC mode.
        msr.write(msr.read() | ON);
        if BASE.load(Ordering::Relaxed) == X2APIC {
            msr.write(msr.read() | EXTENDED);
        }
    }
    write(register::SPURIOUS, 1 << 8 | u32::from(interrupts::SPURIOUS));
    write(register::TASK_PRIORITY, 0);
    write(register::LINT0, MASKED);
    // LINT1 is NMI on every PC.
    write(register::LINT1, 4 << 8);
    write(register::ERROR, u32::from(interrupts::ERROR));
    write(register::DIVIDE, 0b1011); // divide by 1
    let deadline = if has_deadline() { 2 << 17 } else { 0 };
    write(register::TIMER, deadline | u32::from(interrupts::TIMER));
}

/// Returns true if an interrupt can be sent to the processor with local APIC id `id`.
pub(crate) fn reaches(id: u32) -> bool {
    BASE.load(Ordering::Relaxed) == X2APIC || id <= LAST_SHORT_ID
}

/// Returns the highest vector whose bit is set in the eight registers from `register` on.
fn highest(register: u32) -> Option<u8> {
    (0..8).rev().find_map(|n| {
        let bits = read(register + 0x10 * n);
        (bits != 0).then(|| (32 * n + 31 - bits.leading_zeros()) as u8)
    })
}

/// Ends all interrupts that a former kernel has left in service. Returns true if some are requested, which
/// come as soon as interrupts are on. Call with interrupts off, after [`enable`].
pub(crate) fn end_stale() -> bool {
    // There are 256 vectors, each at most once in service.
    for _ in 0..256 {
        if highest(register::IN_SERVICE).is_none() {
            break;
        }
        end_of_interrupt();
    }
    highest(register::REQUESTED).is_some()
}

/// Returns true if `vector` is in service.
pub(crate) fn is_in_service(vector: u8) -> bool {
    let (word, bit) = (u32::from(vector / 32), u32::from(vector % 32));
    cpu::bit(read(register::IN_SERVICE + 0x10 * word), bit)
}

fn has_deadline() -> bool {
    DEADLINE.load(Ordering::Relaxed)
}

/// Returns names of the timer and of its time base, for the console.
pub(crate) fn describe() -> (&'static str, &'static str) {
    let mode = if BASE.load(Ordering::Relaxed) == X2APIC { "x2APIC" } else { "xAPIC" };
    (mode, if has_deadline() { "TSC deadline" } else { "one-shot" })
}

/// A running measurement of the timer's rate: the first reading of the timer and of the time stamp counter.
pub(crate) struct TimerCalibration((u32, u64));

/// Reads the timer and the time stamp counter at the same time. Of a few pairs of readings the tightest is
/// used, because the host may suspend this processor between the two readings.
fn sample() -> (u32, u64) {
    let pairs = (0..5).map(|_| {
        let before = cpu::tsc_ordered();
        let count = read(register::CURRENT_COUNT);
        let took = cpu::tsc_ordered() - before;
        (took, (count, before + took / 2))
    });
    pairs.min_by_key(|(took, _)| *took).map_or((0, 0), |(_, pair)| pair)
}

/// Starts the timer, masked, while the clock is being calibrated. A timer with deadlines stays idle. Call on
/// the boot processor, after [`enable`].
pub(crate) fn calibrate_begin() -> TimerCalibration {
    write(register::TIMER, MASKED | u32::from(interrupts::TIMER));
    write(register::INITIAL_COUNT, u32::MAX);
    TimerCalibration(sample())
}

/// Computes the timer's rate. `hertz` is the frequency of the time stamp counter.
pub(crate) fn calibrate_finish(begun: TimerCalibration, hertz: u64) {
    if has_deadline() {
        enable();
        return;
    }
    let TimerCalibration((first, first_tsc)) = begun;
    // One millisecond measures the rate within a thousandth.
    while cpu::tsc().saturating_sub(first_tsc) < hertz / 1000 {
        core::hint::spin_loop();
    }
    let (last, last_tsc) = sample();
    let ticks = u128::from(last_tsc.saturating_sub(first_tsc));
    write(register::INITIAL_COUNT, 0);
    let rate = (u128::from(first.wrapping_sub(last)) << 32) / ticks.max(1);
    TIMER_RATE.store((rate as u64).max(1), Ordering::Relaxed);
    enable();
}

/// Interrupts this processor when the time stamp counter reaches `deadline`, or at once if that has passed;
/// `None` stops the timer. Nothing interrupts while the timer is not calibrated.
pub(crate) fn set_timer(deadline: Option<u64>) {
    if has_deadline() {
        // SAFETY: the write only arms the timer, or disarms it (0).
        unsafe { Msr::new(TSC_DEADLINE).write(deadline.map_or(0, |tsc| tsc.max(1))) };
        return;
    }
    let rate = TIMER_RATE.load(Ordering::Relaxed);
    if rate == 0 {
        return;
    }
    let count = deadline.map_or(0, |tsc| {
        let ticks = tsc.saturating_sub(cpu::tsc());
        let count = (u128::from(ticks) * u128::from(rate)) >> 32;
        // A deadline beyond the counter's range fires early; the waiting code checks the clock.
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    });
    write(register::INITIAL_COUNT, count);
}

/// Tells the local APIC that the handler is done.
#[inline]
pub(crate) fn end_of_interrupt() {
    write(register::END_OF_INTERRUPT, 0);
}

/// Returns this processor's local APIC id.
pub(crate) fn id() -> u32 {
    let id = read(register::ID);
    if BASE.load(Ordering::Relaxed) == X2APIC { id } else { id >> 24 }
}

/// Returns the error bits since the last call.
pub(crate) fn error_status() -> u32 {
    write(register::ERROR_STATUS, 0);
    read(register::ERROR_STATUS)
}

fn command(destination: u32, low: u32) {
    if BASE.load(Ordering::Relaxed) == X2APIC {
        // The MSR write is not serialising: data for the receiver must be stored before.
        core::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: sends an interprocessor interrupt.
        unsafe { Msr::new(0x830).write(u64::from(destination) << 32 | u64::from(low)) };
        return;
    }
    // An interrupt must not come between the two writes.
    let on = cpu::interrupts_off();
    let mut tries = 1_000_000;
    while read(register::COMMAND) & 1 << 12 != 0 && tries > 0 {
        tries -= 1;
        core::hint::spin_loop();
    }
    write(register::COMMAND_HIGH, destination << 24);
    write(register::COMMAND, low);
    cpu::interrupts_restore(on);
}

/// Interrupts the processor with local APIC id `apic_id` on `vector`.
pub(crate) fn send(apic_id: u32, vector: u8) {
    command(apic_id, 1 << 14 | u32::from(vector));
}

/// Resets the processor `apic_id` so that it waits for [`send_startup`].
pub(crate) fn send_init(apic_id: u32) {
    command(apic_id, 1 << 14 | 5 << 8);
}

/// Starts the processor `apic_id` in real mode at `page << 12`.
pub(crate) fn send_startup(apic_id: u32, page: u8) {
    command(apic_id, 1 << 14 | 6 << 8 | u32::from(page));
}

/// Sends all other processors an NMI.
pub(crate) fn send_nmi_to_others() {
    command(0, 3 << 18 | 1 << 14 | 4 << 8);
}

/// Sends this processor an NMI.
#[cfg(feature = "selftest")]
pub(crate) fn send_nmi_to_self() {
    command(id(), 1 << 14 | 4 << 8);
}
