//! The last words: a panic, a processor fault or an exhausted heap prints its cause and a backtrace, tells
//! the manager through a hook, and ends the machine.
//!
//! Lines of a backtrace have the form `backtrace: 0x<address>`, which the launcher symbolises with the
//! kernel's ELF file.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use x86_64::VirtAddr;

use crate::arch::{self, cpu};
use crate::console;
use crate::former;
use crate::mm::{self, heap};
use crate::power::{self, Code};

/// The most frames of a backtrace.
const MAX_FRAMES: usize = 48;
/// The value of [`DYING`] while no processor is dying.
const NO_PROCESSOR: usize = usize::MAX;

/// Index of the processor that is dying.
static DYING: AtomicUsize = AtomicUsize::new(NO_PROCESSOR);
/// True once the hook was entered. A second failure then ends the machine at once.
static IN_HOOK: AtomicBool = AtomicBool::new(false);
static LAST_WORDS: spin::Once<fn(&str)> = spin::Once::new();
static CURRENT_TASK: spin::Once<fn() -> Option<&'static str>> = spin::Once::new();

/// Sets the hook that is called with the cause (one line) before the machine ends. The hook runs on the dying
/// processor with interrupts off. It must neither wait without limit nor allocate, and should take locks by
/// `try_lock`: the failed code may hold them. If it waits for such a lock all the same, the machine ends.
pub(crate) fn set_last_words(hook: fn(&str)) {
    LAST_WORDS.call_once(|| hook);
}

/// Sets the function that returns the name of the task that this processor runs, if any.
pub(crate) fn set_current_task(hook: fn() -> Option<&'static str>) {
    CURRENT_TASK.call_once(|| hook);
}

/// Ends the machine if this processor is dying: it must not wait for a lock, which the failed code may hold.
/// See [`sync::set_wait_hook`](crate::sync::set_wait_hook).
pub(crate) fn end_if_dying() {
    let dying = DYING.load(Ordering::Relaxed);
    if dying != NO_PROCESSOR && dying == arch::this_cpu_index() {
        console::print_dying(format_args!("a lock is held by the code that failed; giving up\n"));
        power::exit(Code::Panic);
    }
}

/// A line of text that needs no heap.
struct Line {
    bytes: [u8; 240],
    len: usize,
}

impl Line {
    fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.len];
        match core::str::from_utf8(bytes) {
            Ok(s) => s,
            Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let n = s.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Prints the return addresses on the stack whose frame pointer is `frame`, with `first` before them.
///
/// Each step is checked: the frame must be aligned, mapped, and above the one before. Code without frame
/// pointers ends the backtrace early, and never causes a fault.
fn backtrace(first: Option<u64>, mut frame: u64) {
    if let Some(rip) = first {
        console::print_dying(format_args!("backtrace: {rip:#x}\n"));
    }
    for _ in 0..MAX_FRAMES {
        let readable = |a: u64| VirtAddr::try_new(a).is_ok_and(|v| mm::paging::translate(v).is_some());
        if frame == 0 || !frame.is_multiple_of(8) || !readable(frame) || !readable(frame + 8) {
            break;
        }
        // SAFETY: both words are mapped.
        let (next, rip) = unsafe { ((frame as *const u64).read(), (frame as *const u64).add(1).read()) };
        let image = mm::image();
        if !(image.start..image.text_end).contains(&rip) {
            break;
        }
        console::print_dying(format_args!("backtrace: {rip:#x}\n"));
        // A handler's frame points into the interrupted stack, which may lie below. Frames of one stack only
        // go up.
        if next == frame {
            break;
        }
        frame = next;
    }
}

/// Ends the machine for an exception at `rip`; see [`interrupts::Hooks`](crate::arch::interrupts::Hooks).
pub(crate) fn fault(cause: fmt::Arguments<'_>, details: fmt::Arguments<'_>, rip: u64, rbp: u64) -> ! {
    die(Code::Fault, cause, details, Some(rip), rbp)
}

/// Ends the machine for `cause`: prints it, `details` and a backtrace from (`rip`, `rbp`).
fn die(code: Code, cause: fmt::Arguments<'_>, details: fmt::Arguments<'_>, rip: Option<u64>, rbp: u64) -> ! {
    cpu::interrupts_off();
    let me = arch::this_cpu_index();
    if let Err(dying) = DYING.compare_exchange(NO_PROCESSOR, me, Ordering::AcqRel, Ordering::Acquire) {
        if dying != me {
            cpu::halt_for_ever();
        }
        // The processor has failed while dying.
        console::print_dying(format_args!("again, while ending: {cause}\n"));
        power::exit(code);
    }
    let mut line = Line { bytes: [0; 240], len: 0 };
    let _ = line.write_fmt(cause);
    former::keep(line.as_str());
    console::print_dying(format_args!("\nFATAL on cpu {me}: {cause}\n"));
    if let Some(task) = CURRENT_TASK.get().and_then(|hook| hook()) {
        console::print_dying(format_args!("in task `{task}`\n"));
    }
    console::print_dying(details);
    backtrace(rip, rbp);
    let heap = heap::stats();
    let (total, free) = mm::frames::totals();
    console::print_dying(format_args!(
        "memory: heap {} KiB of {} KiB in use, frames {} KiB of {} KiB free\n",
        heap.in_use >> 10,
        heap.claimed >> 10,
        free >> 10,
        total >> 10
    ));
    arch::stop_others();
    if let Some(hook) = LAST_WORDS.get()
        && !IN_HOOK.swap(true, Ordering::Relaxed)
    {
        hook(line.as_str());
    }
    power::exit(code)
}

/// Returns the frame pointer of the caller.
#[inline(always)]
fn frame_pointer() -> u64 {
    let rbp: u64;
    // SAFETY: the instruction only reads a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Line { bytes: [0; 240], len: 0 };
    let _ = write!(text, "{}", info.message());
    // `alloc`'s handler of failed allocations panics with this message.
    if let Some(size) = heap::last_failure().filter(|_| text.as_str().starts_with("memory allocation of ")) {
        let cause = format_args!("heap exhausted: no {size} bytes left");
        die(Code::HeapExhausted, cause, format_args!(""), None, frame_pointer());
    }
    let (file, row) = info.location().map_or(("?", 0), |l| (l.file(), l.line()));
    die(
        Code::Panic,
        format_args!("panic: {} at {file}:{row}", info.message()),
        format_args!(""),
        None,
        frame_pointer(),
    );
}
