//! Self-tests, run by `selftest=NAME` on the command line; each ends the machine, with success or a failure's code.
//!
//! | name | what it shows |
//! |---|---|
//! | `boot` | the boot reaches the first task |
//! | `fpu` | float, SIMD and red zone survive interrupts that use float and SIMD themselves |
//! | `smp` | all processors run tasks, wake each other and agree on the time |
//! | `kvm-probe` | what a hypervisor must be able to do: two processors, timers, 64 KB over virtio with interrupts |
//! | `wx` | text, page tables, guard pages and data have the rights they should, and pages their memory types, on each processor |
//! | `heap` | allocations keep their contents; runs of frames do not overlap; memory is checked |
//! | `idle` | an idle machine halts, and sleeping tasks wake on time |
//! | `progress` | pollers run while a task computes |
//! | `speed` | cost of copies, allocations, spawns, the clock |
//! | `heaps` | cost of allocations alone |
//! | `net` | two machines resolve each other on the fabric and send full frames to and fro |
//! | `tcp` | throughput and round trips of TCP with a server at `manager=` |
//! | `join` | joins the cluster of `manager=`, stays `selftest_s` seconds, leaves |
//! | `panic`, `panic2`, `deadlock`, `fault`, `oom`, `stackoverflow`, `overrun` | the ways to die |

mod failures;
mod fpu;
mod heap;
mod net;
mod probe;
mod scheduling;
mod smp;
mod speed;
mod wx;

use alloc::string::String;
use core::time::Duration;

use crate::boot::{chart, cmdline};
use crate::power::{self, Code};

/// What went wrong; or, of a success, figures.
type Outcome = Result<String, String>;

/// How long a test lasts unless `selftest_s` says otherwise.
fn seconds(default: u64) -> Duration {
    Duration::from_secs(cmdline::number("selftest_s", default))
}

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if $condition {
        } else {
            return Err(alloc::format!($($text)*));
        }
    };
}
use ensure;

/// Runs the test `name` and ends the machine.
pub async fn run(name: &str) {
    chart::print();
    let outcome = match name {
        "boot" => Ok(String::new()),
        "fpu" => fpu::run().await,
        "smp" => smp::run().await,
        "kvm-probe" => probe::run().await,
        "wx" => wx::run().await,
        "heap" => heap::run(),
        "idle" => scheduling::idle().await,
        "progress" => scheduling::progress().await,
        "speed" => speed::run().await,
        "heaps" => speed::heaps(),
        "net" => net::fabric().await,
        "tcp" => net::tcp().await,
        "join" => net::join().await,
        "panic" => failures::panic(),
        "panic2" => failures::panic_elsewhere().await,
        "deadlock" => failures::deadlock(),
        "fault" => failures::fault(),
        "oom" => failures::oom(),
        "stackoverflow" => failures::stack_overflow(),
        "overrun" => failures::free_twice(),
        _ => {
            log::error!("command line: unknown selftest `{name}`");
            power::exit(Code::Refused)
        }
    };
    let code = match outcome {
        Ok(figures) if figures.is_empty() => {
            crate::println!("selftest {name}: ok");
            Code::Success
        }
        Ok(figures) => {
            crate::println!("selftest {name}: ok ({figures})");
            Code::Success
        }
        Err(why) => {
            crate::println!("selftest {name}: FAILED: {why}");
            Code::SelftestFailed
        }
    };
    power::exit(code)
}
