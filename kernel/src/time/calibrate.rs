//! The frequency of the time stamp counter: reported by the processor or hypervisor, or measured against
//! HPET, ACPI's power management timer or the PIT while the boot continues.

use firmware::Register;
use x86_64::PhysAddr;
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use crate::arch::cpu;
use crate::boot::acpi::Tables;
use crate::mm;

/// The least length of the measured window, in nanoseconds.
const WINDOW_NS: u64 = 3_000_000;
/// The number of consecutive windows without a tick after which the reference counts as stopped.
const STILL_WINDOWS: u32 = 3;
/// The number of readings, of which the tightest is used.
const READINGS: usize = 5;

/// A free-running counter of known frequency.
#[derive(Clone, Copy)]
enum Reference {
    /// HPET main counter: registers, femtoseconds per tick.
    Hpet(*mut u8, u64),
    /// ACPI power management timer (at least 24 bits).
    PmTimer(u16),
    /// PIT channel 2 counting down from 65536.
    Pit,
}

impl Reference {
    /// Returns the best reference of this machine.
    fn find(acpi: &Tables) -> Self {
        if let Some(at) = acpi.hpet
            && let Some(hpet) = hpet(at)
        {
            return hpet;
        }
        if let Some((Register::Port(port), _)) = acpi.power.fadt.pm_timer {
            return Self::PmTimer(port);
        }
        start_pit();
        Self::Pit
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hpet(..) => "HPET",
            Self::PmTimer(_) => "PM timer",
            Self::Pit => "PIT",
        }
    }

    fn read(self) -> u64 {
        match self {
            // SAFETY: reads the main counter of the HPET that `hpet` mapped.
            Self::Hpet(base, _) => u64::from(unsafe { base.add(0xf0).cast::<u32>().read_volatile() }),
            // SAFETY: a read of the timer has no side effect.
            Self::PmTimer(port) => u64::from(unsafe { Port::<u32>::new(port).read() } & 0xff_ffff),
            Self::Pit => read_pit(),
        }
    }

    /// Returns the nanoseconds from reading `a` to reading `b`, which must be less than a wrap apart.
    fn nanos(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Hpet(_, femtos) => (b.wrapping_sub(a) & 0xffff_ffff) * femtos / 1_000_000,
            Self::PmTimer(_) => (b.wrapping_sub(a) & 0xff_ffff) * 1_000_000_000 / 3_579_545,
            Self::Pit => (a.wrapping_sub(b) & 0xffff) * 1_000_000_000 / 1_193_182,
        }
    }

    /// Returns the ticks of a processor of at least 1 GHz within which the reference cannot wrap.
    fn longest_window(self) -> u64 {
        match self {
            Self::Pit => 50_000_000,
            Self::Hpet(..) | Self::PmTimer(_) => 300_000_000,
        }
    }

    /// Reads both counters as nearly at the same time as possible: (reference, time stamp counter).
    fn sample(self) -> (u64, u64) {
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..READINGS {
            let before = cpu::tsc_ordered();
            let value = self.read();
            let took = cpu::tsc_ordered().wrapping_sub(before);
            if took < best.0 {
                best = (took, value, before + took / 2);
            }
        }
        (best.1, best.2)
    }
}

fn hpet(at: PhysAddr) -> Option<Reference> {
    let base = mm::map_device(at, 1024).ok()?;
    // SAFETY: these are HPET registers, mapped uncached: reads the capabilities (period in the upper half),
    // then enables the main counter.
    unsafe {
        let period = u64::from(base.add(4).cast::<u32>().read_volatile());
        if period == 0 || period > 100_000_000 {
            return None;
        }
        let config = base.add(0x10).cast::<u32>();
        config.write_volatile(config.read_volatile() | 1);
        Some(Reference::Hpet(base, period))
    }
}

fn start_pit() {
    // SAFETY: PIT channel 2 drives only the speaker; its gate is opened, and the speaker stays off.
    unsafe {
        let mut gate = Port::<u8>::new(0x61);
        let value: u8 = gate.read();
        gate.write(value & !2 | 1);
        Port::<u8>::new(0x43).write(0xb4); // channel 2, both bytes, mode 2 (rate generator)
        Port::<u8>::new(0x42).write(0);
        Port::<u8>::new(0x42).write(0);
    }
}

fn read_pit() -> u64 {
    // SAFETY: latches and reads channel 2.
    unsafe {
        Port::<u8>::new(0x43).write(0x80);
        let low: u8 = Port::new(0x42).read();
        let high: u8 = Port::new(0x42).read();
        u64::from(low) | u64::from(high) << 8
    }
}

/// Returns the frequency that CPUID or the hypervisor reports.
fn reported() -> Option<(u64, &'static str)> {
    let tsc = cpu::cpuid(0x15, 0);
    if tsc.eax != 0 && tsc.ebx != 0 && tsc.ecx != 0 {
        let hertz = u64::from(tsc.ecx) * u64::from(tsc.ebx) / u64::from(tsc.eax);
        return Some((hertz, "CPUID 0x15"));
    }
    let hypervisor = cpu::bit(cpu::cpuid(1, 0).ecx, 31);
    let khz = if hypervisor { cpu::cpuid(0x4000_0010, 0).eax } else { 0 };
    if khz != 0 {
        return Some((u64::from(khz) * 1000, "hypervisor"));
    }
    kvm_clock().map(|hertz| (hertz, "KVM clock"))
}

/// Returns the frequency by the scale of KVM's paravirtual clock: nanoseconds are
/// `((ticks << shift) * mul) >> 32`.
fn kvm_clock() -> Option<u64> {
    #[repr(C, align(64))]
    struct TimeInfo {
        version: u32,
        reserved: u32,
        tsc_timestamp: u64,
        system_time: u64,
        mul: u32,
        shift: i8,
        flags: u8,
        reserved1: [u8; 2],
    }
    const SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
    let signature = cpu::cpuid(0x4000_0000, 0);
    let is_kvm =
        signature.ebx == u32::from_le_bytes(*b"KVMK") && signature.ecx == u32::from_le_bytes(*b"VMKV");
    if !is_kvm || !cpu::bit(cpu::cpuid(0x4000_0001, 0).eax, 3) {
        return None;
    }
    let frame = mm::frames::alloc_zeroed(mm::PAGE)?;
    let at = mm::phys_to_virt(frame).cast::<TimeInfo>();
    // SAFETY: CPUID lists the MSR. The frame belongs to this function, and KVM fills it in before the write
    // returns. It is read after the clock is off again.
    let (mul, shift) = unsafe {
        let mut msr = Msr::new(SYSTEM_TIME_NEW);
        msr.write(frame.as_u64() | 1);
        let info = at.read_volatile();
        msr.write(0);
        (info.mul, info.shift)
    };
    mm::frames::free(frame, mm::PAGE);
    if mul == 0 {
        return None;
    }
    let hertz = ((1_000_000_000u128 << 32) >> shift.clamp(0, 31)) << (-shift).clamp(0, 31);
    u64::try_from(hertz / u128::from(mul)).ok()
}

/// A running calibration.
pub(crate) struct Calibration {
    source: Source,
}

enum Source {
    Told(u64, &'static str),
    Measured(Reference, (u64, u64)),
}

impl Calibration {
    /// Takes the first reading. Call after the page tables are final.
    pub(crate) fn begin(acpi: &Tables) -> Self {
        let source = match reported() {
            Some((hertz, name)) => Source::Told(hertz, name),
            None => {
                let reference = Reference::find(acpi);
                Source::Measured(reference, reference.sample())
            }
        };
        Self { source }
    }

    /// Waits for the rest of the window. Returns the ticks per second and their source.
    ///
    /// A window in which the reference may have wrapped, because the host ran other work meanwhile, is
    /// repeated. If the reference does not advance, 2.5 GHz is assumed.
    pub(crate) fn finish(self) -> (u64, &'static str) {
        let (reference, mut start) = match self.source {
            Source::Told(hertz, name) => return (hertz, name),
            Source::Measured(reference, start) => (reference, start),
        };
        let mut still = 0;
        while still < STILL_WINDOWS {
            let sample = reference.sample();
            let nanos = reference.nanos(start.0, sample.0);
            let ticks = sample.1.wrapping_sub(start.1);
            if ticks > reference.longest_window() {
                still = if sample.0 == start.0 { still + 1 } else { 0 };
                start = sample;
            } else if nanos >= WINDOW_NS {
                let hertz = u128::from(ticks) * 1_000_000_000 / u128::from(nanos);
                return (hertz as u64, reference.name());
            }
        }
        (2_500_000_000, "assumed: no timer counts")
    }
}
