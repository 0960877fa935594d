//! Self-tests, run by `selftest=NAME` on the command line of an image that contains them. Each ends the
//! machine, with the code of success or of a failure, except `iommu-on`, which continues.
//!
//! | name | subject |
//! |---|---|
//! | `boot` | the boot reaches the first task |
//! | `fpu` | float, SIMD and red zone survive interrupts that use float and SIMD themselves |
//! | `smp` | all processors run tasks, wake each other and agree on the time |
//! | `wx` | page rights of text, tables, guards and data, and memory types, on each processor |
//! | `heap` | allocations keep their contents; runs of frames do not overlap; memory is checked, and free after the last access |
//! | `iommu` | an IOMMU is reported as off, is turned on, and is reported as on |
//! | `iommu-on` | a node whose firmware has left an IOMMU on, which it must refuse |
//! | `crowd` | each processor runs a task |
//! | `numa` | each processor's memory comes from its NUMA node |
//! | `stale` | interrupts of a former kernel are discarded |
//! | `masters` | devices of a former kernel lose the bus |
//! | `canary` | a pattern over all free memory is intact after `selftest_s` seconds |
//! | `warm` | boots the image of fw_cfg `selftest_s` times, each from the one before |
//! | `halt` | the machine prints its last line and halts, so that its consoles can be looked at |
//! | `off`, `reset` | the machine is turned off, or reset, without the debug exit device |
//! | `locks` | an NMI waits for no lock; a waiting processor does not count time in which it was suspended |
//! | `modules` | the key of a module is known, and the module is overwritten |
//! | `idle` | an idle machine halts, and sleeping tasks wake on time |
//! | `progress` | pollers run while a task computes |
//! | `speed` | cost of copies, allocations, spawns, the clock |
//! | `heaps` | cost of allocations alone |
//! | `net` | two machines resolve each other on the fabric and exchange full frames |
//! | `echo` | times and rates of raw frames between two machines |
//! | `tcp` | throughput and round trips of TCP with a server at `manager=` |
//! | `join` | joins the cluster of `manager=`, stays `selftest_s` seconds, leaves |
//! | `panic`, `panic2`, `deadlock`, `fault`, `oom`, `stackoverflow`, `overrun` | fatal failures |

mod canary;
mod echo;
mod failures;
mod fpu;
mod heap;
mod iommu;
mod locks;
mod machine;
mod modules;
mod net;
mod scheduling;
mod speed;
mod wx;

use alloc::string::String;
use core::time::Duration;

use crate::power::{self, Code};
use crate::probe::{self, Outcome, ensure};
use crate::{chart, cmdline};

/// Returns the duration of a test: `selftest_s`, or the default.
fn seconds(default: u64) -> Duration {
    Duration::from_secs(cmdline::number("selftest_s", default))
}

/// Runs the test `name`, which ends the machine unless the test prepares a node's boot.
pub(crate) async fn run(name: &str) {
    chart::print();
    let outcome = match name {
        "boot" => Ok(String::new()),
        "fpu" => fpu::run().await,
        "smp" => probe::smp::run().await,
        "wx" => wx::run().await,
        "heap" => heap::run().await,
        "iommu" => iommu::run(),
        "iommu-on" => match iommu::turn_on() {
            // The boot of a node follows.
            Ok(_) => return,
            Err(why) => Err(why),
        },
        "crowd" => machine::crowd().await,
        "numa" => machine::numa().await,
        "stale" => machine::stale(),
        "masters" => machine::masters(),
        "canary" => canary::run().await,
        "warm" => machine::warm(),
        "halt" => machine::halt(),
        "off" => power::off(),
        "reset" => power::reset(),
        "locks" => locks::run(),
        "modules" => modules::run(),
        "idle" => scheduling::idle().await,
        "progress" => scheduling::progress().await,
        "speed" => speed::run().await,
        "heaps" => speed::heaps(),
        "net" => net::fabric().await,
        "echo" => echo::run().await,
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
    probe::end("selftest", name, outcome)
}
