//! Interrupts and exceptions: 256 entry stubs, an interrupt stack for each vector, and the handlers.
//!
//! The prebuilt `core` and `alloc` use the red zone, so no vector may run on the interrupted stack. Handlers
//! use SSE, so the stubs save SSE state (with AVX: all extended state).

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use spin::Once;

use super::cpu::{self, XSAVE_ON};
use super::descriptors::{CODE_SELECTOR, Ist};
use super::stacks::Stack;
use super::{apic, percpu};

/// The registers of the interrupted code, in the order in which the stub stores them on the stack.
#[repr(C)]
pub(crate) struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    pub rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    pub rax: u64,
    vector: u64,
    /// The error code that the processor pushed, or 0.
    pub error: u64,
    /// The address of the interrupted instruction.
    pub rip: u64,
    cs: u64,
    rflags: u64,
    /// The stack pointer of the interrupted code.
    pub rsp: u64,
    ss: u64,
}

/// The first vector for devices. Lower vectors are exceptions and the (masked) legacy interrupt controllers.
pub(crate) const FIRST_DEVICE: u8 = 0x30;
/// One past the last vector for devices.
const END_DEVICE: u8 = 0xf0;
/// The vector of the local timer.
pub(crate) const TIMER: u8 = 0xf0;
/// The vector by which another processor announces a woken task.
pub(crate) const WAKE: u8 = 0xf1;
/// A vector for self-tests, which is only counted.
pub(crate) const TEST: u8 = 0xf2;
/// The vector of local APIC errors.
pub(crate) const ERROR: u8 = 0xfe;
/// The vector of spurious local APIC interrupts, which need no end-of-interrupt.
pub(crate) const SPURIOUS: u8 = 0xff;

const NMI: u8 = 2;
const DOUBLE_FAULT: u8 = 8;
const PAGE_FAULT: u8 = 14;
const MACHINE_CHECK: u8 = 18;

/// The distance between two stubs, in bytes.
const STUB_BYTES: u64 = 16;

/// The 256 stubs, [`STUB_BYTES`] apart. Each pushes its vector, and an error code where the processor pushes
/// none.
#[unsafe(naked)]
unsafe extern "C" fn stubs() {
    naked_asm!(
        ".set vector, 0",
        ".rept 256",
        ".balign {size}",
        // The processor pushes an error code on vectors 8, 10 to 14, 17, 21, 29 and 30.
        ".if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30",
        ".else",
        "push 0",
        ".endif",
        "push vector",
        "jmp {common}",
        ".set vector, vector + 1",
        ".endr",
        size = const STUB_BYTES,
        common = sym common,
    );
}

/// Saves all registers, including SSE or extended state, calls [`dispatch`], and restores them.
///
/// XSAVE does not write most of its header, and XRSTOR requires it to be zero.
#[unsafe(naked)]
unsafe extern "C" fn common() {
    naked_asm!(
        "push rax", "push rcx", "push rdx", "push rbx", "push rbp", "push rsi", "push rdi",
        "push r8", "push r9", "push r10", "push r11", "push r12", "push r13", "push r14", "push r15",
        "cld",
        "mov rdi, rsp",
        "mov rbx, rsp",
        "sub rsp, {area}",
        "and rsp, -64",
        "cmp byte ptr [rip + {xsave_on}], 0",
        "je 2f",
        "xor eax, eax",
        "mov [rsp + 512], rax", "mov [rsp + 520], rax", "mov [rsp + 528], rax", "mov [rsp + 536], rax",
        "mov [rsp + 544], rax", "mov [rsp + 552], rax", "mov [rsp + 560], rax", "mov [rsp + 568], rax",
        "mov eax, 7",
        "xor edx, edx",
        "xsave64 [rsp]",
        "vzeroupper",
        "ldmxcsr [rip + {mxcsr}]",
        "call {dispatch}",
        "mov eax, 7",
        "xor edx, edx",
        "xrstor64 [rsp]",
        "jmp 3f",
        "2:",
        "fxsave64 [rsp]",
        "ldmxcsr [rip + {mxcsr}]",
        "call {dispatch}",
        "fxrstor64 [rsp]",
        "3:",
        "mov rsp, rbx",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rdi", "pop rsi", "pop rbp", "pop rbx", "pop rdx", "pop rcx", "pop rax",
        "add rsp, 16",
        "iretq",
        area = const cpu::XSAVE_BYTES,
        xsave_on = sym XSAVE_ON,
        mxcsr = sym DEFAULT_MXCSR,
        dispatch = sym dispatch,
    );
}

/// The SSE control word that compiled code expects: all floating-point exceptions masked, round to nearest.
static DEFAULT_MXCSR: u32 = 0x1f80;

#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    low: u64,
    high: u64,
}

#[repr(C, align(16))]
struct Idt([Gate; 256]);

static IDT: Once<Idt> = Once::new();

fn ist_of(vector: u8) -> Ist {
    match vector {
        NMI | MACHINE_CHECK => Ist::Nmi,
        DOUBLE_FAULT => Ist::DoubleFault,
        0..32 => Ist::Exception,
        32.. => Ist::Interrupt,
    }
}

/// The functions of upper layers that interrupts and exceptions call, on the stack of the vector and with
/// interrupts off.
pub(crate) struct Hooks {
    /// Ends the machine for an exception: cause, registers, address of the instruction, frame pointer.
    pub fault: fn(fmt::Arguments<'_>, fmt::Arguments<'_>, u64, u64) -> !,
    /// Reports an NMI at the address of an instruction. It must not wait: the interrupted code may hold any
    /// lock.
    pub nmi: fn(u64),
    /// Runs at the end of each interrupt. The argument is true for an interrupt of the local timer.
    pub interrupt: fn(bool),
}

static HOOKS: Once<Hooks> = Once::new();

/// Sets the functions that interrupts call, and loads the interrupt descriptor table on the boot processor.
/// Every other processor calls [`load`].
pub(crate) fn init(hooks: Hooks) {
    HOOKS.call_once(|| hooks);
    load();
}

fn hooks() -> &'static Hooks {
    HOOKS.get().expect("`init` sets the hooks before it loads the table")
}

/// Loads the interrupt descriptor table on this processor.
pub(crate) fn load() {
    let idt = IDT.call_once(|| {
        let mut idt = Idt([Gate { low: 0, high: 0 }; 256]);
        for (vector, gate) in (0u8..=255).zip(idt.0.iter_mut()) {
            let at =
                (stubs as *const () as u64).next_multiple_of(STUB_BYTES) + u64::from(vector) * STUB_BYTES;
            let interrupt_gate = 0x8e;
            gate.low = at & 0xffff
                | u64::from(CODE_SELECTOR) << 16
                | (ist_of(vector) as u64) << 32
                | interrupt_gate << 40
                | (at >> 16 & 0xffff) << 48;
            gate.high = at >> 32;
        }
        idt
    });
    #[repr(C, packed(2))]
    struct Pointer {
        limit: u16,
        base: u64,
    }
    let pointer = Pointer { limit: 4095, base: (&raw const *idt) as u64 };
    // SAFETY: the table is complete and is never freed.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
}

/// The number of NMIs that did not stop this machine.
pub(crate) static NMIS: AtomicU64 = AtomicU64::new(0);

/// True once the machine is about to end: an NMI then halts.
pub(crate) static STOPPING: AtomicBool = AtomicBool::new(false);

extern "C" fn dispatch(frame: &mut Frame) {
    let vector = frame.vector as u8;
    match vector {
        0..32 => exception(vector, frame),
        SPURIOUS => {}
        _ if DRAINING.load(Ordering::Relaxed) => {
            DRAINED.fetch_add(1, Ordering::Relaxed);
            end_if_in_service(vector);
        }
        // The legacy controllers are masked: any interrupt here is spurious, or was sent by a device that a
        // former kernel has set up.
        0x20..FIRST_DEVICE => end_if_in_service(vector),
        _ => interrupt(vector),
    }
}

/// True while interrupts of a former kernel are discarded.
static DRAINING: AtomicBool = AtomicBool::new(false);
/// The number of interrupts that were discarded.
static DRAINED: AtomicUsize = AtomicUsize::new(0);

/// The legacy controllers' interrupts do not pass through the local APIC.
fn end_if_in_service(vector: u8) {
    if apic::is_in_service(vector) {
        apic::end_of_interrupt();
    }
}

/// Discards the interrupts that devices have sent to a former kernel: of a loader, or before a warm
/// boot. Returns their number. Call on the boot processor with interrupts off, after its local APIC
/// is on and before any vector has a handler.
pub(crate) fn drain() -> usize {
    let before = DRAINED.load(Ordering::Relaxed);
    DRAINING.store(true, Ordering::Relaxed);
    // An interrupt that is taken may uncover one of lower priority. There are 256 vectors.
    for _ in 0..256 {
        if !apic::end_stale() {
            break;
        }
        cpu::interrupts_on();
        core::hint::spin_loop();
        cpu::interrupts_off();
    }
    DRAINING.store(false, Ordering::Relaxed);
    DRAINED.load(Ordering::Relaxed) - before
}

fn interrupt(vector: u8) {
    percpu::this_cpu().interrupts.fetch_add(1, Ordering::Relaxed);
    match vector {
        TIMER => {}
        WAKE | TEST => {}
        ERROR => log::error!("local APIC error {:#x}", apic::error_status()),
        _ => match HANDLERS.get(usize::from(vector - FIRST_DEVICE)).and_then(Once::get) {
            Some(handler) => handler(),
            None => log::warn!("interrupt on vector {vector:#x}, which no driver has allocated"),
        },
    }
    apic::end_of_interrupt();
    (hooks().interrupt)(vector == TIMER);
    #[cfg(feature = "selftest")]
    if let Some(hook) = TEST_HOOK.get() {
        hook(vector);
    }
}

/// A function that self-tests run at the end of every interrupt, with the vector as its argument.
#[cfg(feature = "selftest")]
pub(crate) static TEST_HOOK: Once<fn(u8)> = Once::new();

const NAMES: [&str; 22] = [
    "divide error",
    "debug",
    "NMI",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid opcode",
    "no FPU",
    "double fault",
    "coprocessor overrun",
    "invalid TSS",
    "segment not present",
    "stack segment fault",
    "general protection fault",
    "page fault",
    "vector 15",
    "x87 error",
    "alignment check",
    "machine check",
    "SIMD error",
    "virtualization exception",
    "control protection",
];

fn exception(vector: u8, frame: &mut Frame) {
    if vector == NMI {
        if STOPPING.load(Ordering::Acquire) {
            cpu::halt_for_ever();
        }
        NMIS.fetch_add(1, Ordering::Relaxed);
        (hooks().nmi)(frame.rip);
        return;
    }
    #[cfg(feature = "selftest")]
    if super::probe::recover(vector, frame) {
        return;
    }
    let cr2: u64;
    // SAFETY: the instruction only reads a register.
    unsafe { core::arch::asm!("mov {}, cr2", out(reg) cr2, options(nomem, nostack, preserves_flags)) };
    let name = NAMES.get(usize::from(vector)).copied().unwrap_or("exception");
    let details = Details { frame, cr2 };
    let stack = Stack::around(cr2).filter(|s| s.guards(cr2));
    let end = |cause: fmt::Arguments<'_>| -> ! {
        (hooks().fault)(cause, format_args!("{details}"), frame.rip, frame.rbp)
    };
    match (vector, stack) {
        (PAGE_FAULT, Some(stack)) => {
            end(format_args!("stack overflow: {stack}, access to {cr2:#x} at {:#x}", frame.rip))
        }
        (PAGE_FAULT, None) => {
            let access = match frame.error {
                e if e & 16 != 0 => "execution of",
                e if e & 2 != 0 => "write to",
                _ => "read of",
            };
            let why = if frame.error & 1 != 0 { "protected" } else { "unmapped" };
            end(format_args!("page fault: {access} {why} {cr2:#x} at {:#x}", frame.rip))
        }
        _ => end(format_args!("{name}: error {:#x} at {:#x}", frame.error, frame.rip)),
    }
}

struct Details<'a> {
    frame: &'a Frame,
    cr2: u64,
}

impl fmt::Display for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.frame;
        writeln!(f, "rip {:016x} rsp {:016x} rbp {:016x} rflags {:08x}", r.rip, r.rsp, r.rbp, r.rflags)?;
        writeln!(f, "rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}", r.rax, r.rbx, r.rcx, r.rdx)?;
        writeln!(f, "rsi {:016x} rdi {:016x} r8  {:016x} r9  {:016x}", r.rsi, r.rdi, r.r8, r.r9)?;
        writeln!(f, "r10 {:016x} r11 {:016x} r12 {:016x} r13 {:016x}", r.r10, r.r11, r.r12, r.r13)?;
        writeln!(
            f,
            "r14 {:016x} r15 {:016x} cr2 {:016x} error {:x} cs {:x} ss {:x}",
            r.r14, r.r15, self.cr2, r.error, r.cs, r.ss
        )
    }
}

/// The handler of a device's vector. It runs with interrupts off, on the interrupt stack. It must not wait;
/// it may wake tasks.
pub(crate) type Handler = Box<dyn Fn() + Send + Sync>;

const DEVICES: usize = (END_DEVICE - FIRST_DEVICE) as usize;
static HANDLERS: [Once<Handler>; DEVICES] = [const { Once::new() }; DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A vector that a device can signal by MSI or MSI-X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Irq {
    pub vector: u8,
    /// Message address for the device.
    pub msi_address: u64,
    /// Message data for the device.
    pub msi_data: u32,
}

/// The error when all vectors are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoVector;

/// Allocates a vector for device `name`, delivered to core 0, where `handler` runs on each interrupt.
pub(crate) fn allocate(name: &'static str, handler: Handler) -> Result<Irq, NoVector> {
    allocate_on(0, name, handler)
}

/// Allocates a vector as [`allocate`] does, but delivered to the processor with index `cpu`. If a
/// device cannot address that processor, another one takes the interrupt, runs the handler, and
/// wakes the processor.
pub(crate) fn allocate_on(cpu: usize, name: &'static str, handler: Handler) -> Result<Irq, NoVector> {
    let wanted = percpu::cpu(cpu).ok_or(NoVector)?;
    let apic_id = |cpu: &percpu::PerCpu| cpu.apic_id.load(Ordering::Relaxed);
    let is_short = |cpu: &&percpu::PerCpu| apic_id(cpu) <= apic::LAST_SHORT_ID;
    let (cpu, handler) = if is_short(&wanted) {
        (wanted, handler)
    } else {
        let other = (0..percpu::limit()).filter_map(percpu::cpu).find(is_short).ok_or(NoVector)?;
        let relay = move || {
            handler();
            apic::send(apic_id(wanted), WAKE);
        };
        (other, Box::new(relay) as Handler)
    };
    let slot = NEXT.fetch_add(1, Ordering::Relaxed);
    let vector =
        u8::try_from(slot).ok().and_then(|s| s.checked_add(FIRST_DEVICE)).filter(|v| *v < END_DEVICE);
    let vector = vector.ok_or(NoVector)?;
    HANDLERS.get(slot).ok_or(NoVector)?.call_once(|| handler);
    log::debug!("vector {vector:#x} on cpu {} for {name}", cpu.index);
    let msi_address = 0xfee0_0000 | u64::from(apic_id(cpu)) << 12;
    Ok(Irq { vector, msi_address, msi_data: u32::from(vector) })
}
