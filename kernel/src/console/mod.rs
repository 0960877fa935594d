//! The console: a 16550 at COM1 behind a ring, and the `log` backend.
//!
//! Until the main loop runs, every line is on the wire when the call returns. Afterwards lines go to the
//! ring, and core 0 drains it between polls, so that no task waits for a serial line. A full ring makes the
//! writer wait for a bounded time.

mod ring;
mod uart;

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sync::IrqMutex;
use crate::time;
use ring::Ring;
use uart::Uart;

struct Console {
    uart: Uart,
    ring: Ring,
}

static CONSOLE: IrqMutex<Console> = IrqMutex::new(Console { uart: Uart::new(), ring: Ring::new() });
/// True if the main loop drains the ring.
static DEFERRED: AtomicBool = AtomicBool::new(false);

impl Console {
    /// Sends bytes while the UART accepts them; with `wait`, until the ring is empty or the UART is stuck.
    fn drain(&mut self, wait: bool) {
        while !self.ring.is_empty() && self.uart.ready(wait) {
            for _ in 0..uart::FIFO_BYTES {
                match self.ring.pop() {
                    Some(byte) => self.uart.put(byte),
                    None => break,
                }
            }
        }
    }
}

impl Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            if byte == b'\n' {
                self.push(b'\r');
            }
            self.push(byte);
        }
        Ok(())
    }
}

impl Console {
    /// Writes the line about an NMI that has not been reported yet.
    fn print_nmi(&mut self) {
        if NMI_AT.load(Ordering::Relaxed) != 0 {
            let rip = NMI_AT.swap(0, Ordering::Relaxed);
            let _ = writeln!(self, "NMI at {rip:#x}");
        }
    }

    fn push(&mut self, byte: u8) {
        if self.ring.is_full() {
            self.drain(true);
        }
        self.ring.push(byte);
    }
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                log::Level::Error => "ERROR",
                log::Level::Warn => "WARN ",
                log::Level::Info => "info ",
                log::Level::Debug => "debug",
                log::Level::Trace => "trace",
            };
            let us = time::now().as_nanos() / 1000;
            let target = record.target();
            let target = target.strip_prefix("ferrolite::").unwrap_or(target);
            print(format_args!(
                "[{:>5}.{:06}] {level} {target}: {}\n",
                us / 1_000_000,
                us % 1_000_000,
                record.args()
            ));
        }
    }

    fn flush(&self) {
        flush();
    }
}

/// Prepares the UART and makes this the `log` backend, at level `info`.
pub(crate) fn init() {
    CONSOLE.lock().uart.init();
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// Sets the least severe level shown, from the command line's `log=`.
pub(crate) fn set_level(name: &str) {
    match name.parse() {
        Ok(level) => log::set_max_level(level),
        Err(_) => log::error!("command line: `log={name}` is not off, error, warn, info, debug or trace"),
    }
}

/// Prints; see [`crate::println`].
pub(crate) fn print(args: fmt::Arguments<'_>) {
    let mut console = CONSOLE.lock();
    let _ = console.write_fmt(args);
    if !DEFERRED.load(Ordering::Relaxed) {
        console.drain(true);
    }
}

/// Prints from a panic or fault: immediately, and without the lock if its holder does not release it.
pub(crate) fn print_dying(args: fmt::Arguments<'_>) {
    for _ in 0..1_000_000 {
        if let Some(mut console) = CONSOLE.try_lock() {
            let _ = console.write_fmt(args);
            console.drain(true);
            return;
        }
        core::hint::spin_loop();
    }
    // SAFETY: the holder is this processor, which never resumes the interrupted code, or a processor that
    // does not release the lock. The worst effect of two writers on a ring of bytes is garbled text.
    let console = unsafe { &mut *CONSOLE.data_ptr() };
    let _ = console.write_fmt(args);
    console.drain(true);
}

/// The address of the instruction at which an unreported NMI came; 0 if there is none.
static NMI_AT: AtomicU64 = AtomicU64::new(0);

/// Reports an NMI that came at `rip`: at once if the console is free, otherwise with the next [`poll`]. It
/// never waits, because the interrupted code may hold the console.
pub(crate) fn report_nmi(rip: u64) {
    NMI_AT.store(rip, Ordering::Relaxed);
    if let Some(mut console) = CONSOLE.try_lock() {
        console.print_nmi();
        if !DEFERRED.load(Ordering::Relaxed) {
            console.drain(true);
        }
    }
}

/// Runs `f` while the console's lock is held.
#[cfg(feature = "selftest")]
pub(crate) fn while_locked<R>(f: impl FnOnce() -> R) -> R {
    let _console = CONSOLE.lock();
    f()
}

/// Makes the main loop drain the ring from now on; see [`poll`].
pub(crate) fn defer() {
    DEFERRED.store(true, Ordering::Relaxed);
}

/// Sends bytes while the UART accepts them. Returns true if some are left.
pub(crate) fn poll() -> bool {
    let Some(mut console) = CONSOLE.try_lock() else { return true };
    console.print_nmi();
    console.drain(false);
    !console.ring.is_empty()
}

/// Sends all bytes of the ring.
pub(crate) fn flush() {
    CONSOLE.lock().drain(true);
}

/// Prints a line to the console, whatever the log level.
#[macro_export]
macro_rules! println {
    () => { $crate::console::print(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($arg)*))) };
}
