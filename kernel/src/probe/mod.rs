//! `probe=hypervisor`: checks the features that the kernel needs of a hypervisor: two processors that wake
//! each other, timers, and 64 KB over virtio with an interrupt for each answer, on either processor. The
//! launcher boots this to find out whether KVM works.

pub(crate) mod smp;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::arch::{interrupts, percpu};
use crate::pci::Message;
use crate::power::{self, Code};
use crate::virtio::rng::Source;
use crate::{chart, exec, time};

/// Bytes that must arrive over virtio, for each processor.
const BYTES: usize = 64 << 10;
/// Bytes that are requested at a time.
const PIECE: u32 = 16 << 10;
/// The longest wait for the interrupt of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const SLEEPS: u32 = 20;
/// The time for which the probe keeps the device in use after a processor is done with it.
const HELD: Duration = Duration::from_millis(5);

/// The reason of a failure, or the figures of a success.
pub(crate) type Outcome = Result<String, String>;

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if $condition {
        } else {
            return Err(alloc::format!($($text)*));
        }
    };
}
pub(crate) use ensure;

/// Runs the probe that `probe=` names and ends the machine.
pub(crate) async fn run(name: &str) {
    chart::print();
    if name != "hypervisor" {
        log::error!("probe={name}: want hypervisor");
        power::exit(Code::Refused);
    }
    end("probe", name, hypervisor().await);
}

/// Prints the outcome of a run of some kind (`probe`, or another key of the command line), and ends the
/// machine.
pub(crate) fn end(kind: &str, name: &str, outcome: Outcome) -> ! {
    let code = match outcome {
        Ok(figures) if figures.is_empty() => {
            crate::println!("{kind} {name}: ok");
            Code::Success
        }
        Ok(figures) => {
            crate::println!("{kind} {name}: ok ({figures})");
            Code::Success
        }
        Err(why) => {
            crate::println!("{kind} {name}: FAILED: {why}");
            Code::SelftestFailed
        }
    };
    power::exit(code)
}

async fn hypervisor() -> Outcome {
    let cpus = percpu::count();
    ensure!(cpus >= 2, "{cpus} processor runs, not two");
    let together = smp::run().await?;
    for cpu in 0..cpus {
        exec::spawn_on(cpu, "timer", timer()).await?;
    }
    let mut interrupts = 0;
    for cpu in 0..2 {
        interrupts += virtio(cpu).await?;
    }
    Ok(format!("{together}; {BYTES} bytes over virtio for 2 cpus with {interrupts} interrupts"))
}

/// Runs short sleeps, one after the other, each of which only a timer's interrupt ends.
async fn timer() -> Result<(), String> {
    for _ in 0..SLEEPS {
        let until = time::now() + Duration::from_millis(1);
        exec::sleep_until(until).await;
        ensure!(time::now() >= until, "a sleep ended early");
    }
    Ok(())
}

/// Reads from the entropy device, whose interrupts go to `cpu`. Returns the number of interrupts.
async fn virtio(cpu: usize) -> Result<u64, String> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    let handler = Box::new(move || {
        counter.fetch_add(1, Ordering::Release);
    });
    let irq = interrupts::allocate_on(cpu, "probe", handler).map_err(|_| "no vector is left")?;
    let message = Message { address: irq.msi_address, data: irq.msi_data };
    let source = Source::start_first(PIECE, message).await;
    let source = source.map_err(|e| format!("the entropy device {e}"))?;
    let mut source = source.ok_or("no entropy device")?;
    let mut got = 0;
    while got < BYTES {
        let before = count.load(Ordering::Acquire);
        source.ask();
        let until = time::now() + ANSWER_TIMEOUT;
        // Waits for the interrupt alone: the returned buffer does not count.
        while count.load(Ordering::Acquire) == before {
            ensure!(time::now() < until, "no interrupt on cpu {cpu} after {got} bytes over virtio");
            exec::sleep(Duration::from_micros(50)).await;
        }
        ensure!(source.answered(), "an interrupt on cpu {cpu} came without an answer");
        let bytes = source.take().map_err(|e| format!("the entropy device {e}"))?;
        ensure!(!bytes.is_empty(), "an answer without bytes");
        ensure!(is_noise(bytes), "{} bytes over virtio are no noise", bytes.len());
        got += bytes.len();
    }
    // The next processor finds the device in use and waits for it, as it would for the kernel's own reading
    // at boot.
    exec::spawn_on(0, "release", async move {
        exec::sleep(HELD).await;
        drop(source);
    })
    .detach();
    Ok(count.load(Ordering::Acquire))
}

/// Returns true if each value of a byte occurs in the piece, as in a large piece of random bytes but not in
/// unwritten memory.
fn is_noise(bytes: &[u8]) -> bool {
    let mut seen = [false; 256];
    bytes.iter().for_each(|b| seen[usize::from(*b)] = true);
    bytes.len() < PIECE as usize || seen.iter().all(|s| *s)
}
