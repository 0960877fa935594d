//! The console: serial ports behind a ring, the screen of a VGA or of pixels, and the `log`
//! backend. All of them get the same lines.
//!
//! Until the main loop runs, every line is on the wire when the call returns. Afterwards lines go to the
//! ring, and core 0 drains it between polls, so that no task waits for a serial line. A full ring makes the
//! writer wait for a bounded time. The screen is written at once.
//!
//! The first of COM1 to COM4 that answers is used from the first line on. Once the settings are
//! known, [`choose`] adds the port that firmware names (SPCR) and the screen, or uses those that
//! `console=` names. They get all earlier lines first.

mod framebuffer;
#[cfg(feature = "selftest")]
mod ramfb;
mod ring;
mod uart;
mod vga;

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use firmware::Register;
use firmware::spcr::Spcr;
use heapless::Vec;
use platform::LogRing;
use x86_64::PhysAddr;

use crate::boot::Framebuffer;
use crate::sync::IrqMutex;
use crate::{mm, time};
use framebuffer::Pixels;
use ring::Ring;
use uart::{Registers, Uart};
use vga::Screen as Text;

/// The most serial ports: COM1 to COM4, and one in memory.
const MAX_UARTS: usize = 5;
/// The most text that is kept until the consoles are chosen. Later text is missing on those that are added.
const EARLY: usize = 8 << 10;

/// The bytes of the log that wait for the manager.
const RECENT_BYTES: usize = 16 << 10;

/// The most screens.
const MAX_SCREENS: usize = 2;

/// A screen, of cells of text or of pixels.
enum Screen {
    Text(Text),
    Pixels(Pixels),
}

impl Screen {
    fn put(&mut self, byte: u8) {
        match self {
            Self::Text(text) => text.put(byte),
            Self::Pixels(pixels) => pixels.put(byte),
        }
    }
}

struct Console {
    uarts: Vec<Uart, MAX_UARTS>,
    screens: Vec<Screen, MAX_SCREENS>,
    ring: Ring,
    /// The text so far; `None` once the consoles are chosen.
    early: Option<Vec<u8, EARLY>>,
}

static CONSOLE: IrqMutex<Console> = IrqMutex::new(Console {
    uarts: Vec::new(),
    screens: Vec::new(),
    ring: Ring::new(),
    early: Some(Vec::new()),
});
/// The last lines of the log, which a task sends to the manager. Writers copy a line of bounded length under
/// this lock, and do not allocate.
static RECENT: IrqMutex<LogRing<RECENT_BYTES>> = IrqMutex::new(LogRing::new());
/// True if the main loop drains the ring.
static DEFERRED: AtomicBool = AtomicBool::new(false);

impl Console {
    /// Sends bytes while all UARTs accept them; with `wait`, until the ring is empty or the UARTs are stuck.
    fn drain(&mut self, wait: bool) {
        while !self.ring.is_empty() && self.uarts.iter_mut().all(|uart| uart.ready(wait)) {
            for _ in 0..uart::FIFO_BYTES {
                let Some(byte) = self.ring.pop() else { break };
                self.uarts.iter_mut().for_each(|uart| uart.put(byte));
            }
        }
    }

    /// Adds a UART, which gets the text so far.
    fn add_uart(&mut self, mut uart: Uart) {
        if self.uarts.iter().any(|other| other.registers() == uart.registers()) {
            return;
        }
        for some in self.early.iter().flat_map(|early| early.chunks(uart::FIFO_BYTES)) {
            if uart.ready(true) {
                some.iter().for_each(|byte| uart.put(*byte));
            }
        }
        let _ = self.uarts.push(uart);
    }

    fn add_screen(&mut self, mut screen: Screen) {
        self.early.iter().flatten().for_each(|byte| screen.put(*byte));
        let _ = self.screens.push(screen);
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
        if let Some(early) = &mut self.early {
            let _ = early.push(byte);
        }
        self.screens.iter_mut().for_each(|screen| screen.put(byte));
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
            RECENT.lock().push(level, us, format_args!("{target}: {}", record.args()));
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

/// Finds the first serial port and makes this the `log` backend, at level `info`.
pub(crate) fn init() {
    let first = uart::COM.into_iter().find_map(|port| Uart::probe(Registers::Ports(port), false));
    if let Some(uart) = first {
        CONSOLE.lock().add_uart(uart);
    }
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// Uses the consoles that `names` lists, separated by commas; without `names`, the first serial
/// port, the port that firmware names, and the screens. `spcr` is firmware's table, `pixels` its
/// screen. Call once, with the final page tables.
pub(crate) fn choose(names: Option<&str>, spcr: Option<Spcr>, pixels: Option<Framebuffer>) {
    // The registers that firmware has set up; a rate of 0 means to keep it.
    let named = || {
        let spcr = spcr?;
        let registers = match spcr.port {
            Register::Port(port) => Registers::Ports(port),
            Register::Memory(at) => {
                let at = mm::map_device(PhysAddr::new_truncate(at), 8 * u64::from(spcr.stride)).ok()?;
                Registers::Memory(at as usize, usize::from(spcr.stride))
            }
        };
        Uart::probe(registers, spcr.baud != 115_200)
    };
    let text = || {
        let at = mm::map_device(PhysAddr::new_truncate(vga::MEMORY.0), vga::MEMORY.1).ok()?;
        Some(Screen::Text(Text::probe(at)?))
    };
    let pixels = || Some(Screen::Pixels(Pixels::new(pixels?)?));
    if let Some(names) = names {
        CONSOLE.lock().uarts.clear();
        for name in names.split(',') {
            let port = name.strip_prefix("com").and_then(|n| n.parse::<usize>().ok()?.checked_sub(1));
            let serial = |uart: Option<Uart>| uart.map(|uart| CONSOLE.lock().add_uart(uart));
            let visible = |screen: Option<Screen>| screen.map(|screen| CONSOLE.lock().add_screen(screen));
            let added = match (name, port.and_then(|n| uart::COM.get(n))) {
                ("none", _) => continue,
                ("spcr", _) => serial(named()),
                ("vga", _) => visible(text()),
                ("framebuffer", _) => visible(pixels()),
                #[cfg(feature = "selftest")]
                ("ramfb", _) => visible(ramfb::start().and_then(Pixels::new).map(Screen::Pixels)),
                (_, Some(port)) => serial(Uart::probe(Registers::Ports(*port), false)),
                _ => None,
            };
            if added.is_none() {
                log::warn!("there is no console `{name}`");
            }
        }
    } else {
        let (named, text, pixels) = (named(), text(), pixels());
        let mut console = CONSOLE.lock();
        named.into_iter().for_each(|uart| console.add_uart(uart));
        text.into_iter().chain(pixels).for_each(|screen| console.add_screen(screen));
    }
    CONSOLE.lock().early = None;
}

/// Moves lines of the log that the manager does not have; see [`LogRing::take`].
pub(crate) fn take_log(into: &mut [u8]) -> (usize, u64) {
    let mut recent = RECENT.lock();
    (recent.take(into), recent.dropped())
}

/// Moves the last lines of the log that the manager does not have, in a panic or fault. Returns 0 if the
/// failed code holds the lock.
pub(crate) fn take_log_dying(into: &mut [u8]) -> usize {
    RECENT.try_lock().map_or(0, |mut recent| recent.take_last(into))
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
