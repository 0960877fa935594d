//! `cargo xtask bench warm`: boots a node again and again by order of the manager, and compares the time from
//! the command until the node has joined again with the kernel's own time from its entry until then.

use super::boot::{self, Chart, Size};
use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::stats::{median, median_of};
use super::table::{Table, maybe, number};
use super::target::{self, Bound, Target};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use fabric::{Fabric, FabricConfig};
use lab::manager::Manager;
use lab::{appliances, interrupt, setup, tool, ui};
use qemu::vm::{Event, EventKind, Machine, Vm};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The greatest time from the command to joined, relative to the time from entry to joined.
const TARGET: f64 = 10.0;
/// The name of the node.
const NODE: &str = "warm";
/// The longest silence of the node.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of boots, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Number of warm boots, each of the kernel that the one before has booted
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000))]
    runs: u32,
    #[command(flatten)]
    destination: destination::Options,
}

/// One warm boot, in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Warm {
    command_to_joined: f64,
    entry_to_joined: f64,
    /// The line of the console with the memory of the machine and the free part of it.
    memory: String,
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    host: Host,
    boots: &'a [Warm],
    targets: &'a [Target],
}

/// Boots, prints and judges the figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let lab = Lab::new()?;
    let boots = measure(&lab, options.runs)?;
    let targets = targets(&boots);
    println!("\n{}\n{}", table(&boots).text(), target::table(&targets, &[]).text());
    destination.end(&Figures { host, boots: &boots, targets: &targets }, &targets, &Gaps::default())
}

/// Starts a node on microvm, and boots it `runs` times.
fn measure(lab: &Lab, runs: u32) -> Result<Vec<Warm>> {
    setup::binutils()?;
    let file = lab.dir().join("image.elf");
    tool::output(Command::new("strip").arg("-o").arg(&file).arg(&lab.programs.kernel))?;
    let manager = lab.manager()?;
    let fabric = Fabric::start(&FabricConfig::plain(1, lab.dir()))?;
    let size = Size::new(Machine::Microvm, 1);
    let spec = boot::spec(&lab.programs.kernel, &fabric, &manager, NODE.into(), size)?;
    let (sender, events) = channel();
    let started = Instant::now();
    let vm = Vm::start(&lab.qemu, spec, None, sender)?;
    follow(&vm, &events)?;
    let mut boots = Vec::new();
    for n in 0..runs {
        interrupt::check()?;
        let boot = || warm(&vm, &events, started, &manager, &file);
        boots.push(ui::step(&format!("warm boots: {} of {runs}", n + 1), boot)?);
    }
    drop(vm);
    fabric.stop()?;
    Ok(boots)
}

/// Boots the node once by order of the manager.
fn warm(vm: &Vm, events: &Receiver<Event>, started: Instant, manager: &Manager, file: &Path) -> Result<Warm> {
    let ordered = started.elapsed();
    tool::output(manager.client("boot").arg(NODE).arg(file))?;
    let (chart, memory, joined) = follow(vm, events)?;
    let entry_to_joined = chart.joined().context("the boot chart is cut")?;
    Ok(Warm {
        command_to_joined: joined.saturating_sub(ordered).as_secs_f64() * 1000.0,
        entry_to_joined,
        memory,
    })
}

/// Follows the console until the boot chart is complete. Returns the chart, the line about memory, and the
/// time at which the node had joined.
fn follow(vm: &Vm, events: &Receiver<Event>) -> Result<(Chart, String, Duration)> {
    let (mut chart, mut memory, mut joined) = (Chart::default(), String::new(), Duration::ZERO);
    while !chart.is_complete() {
        match events.recv_timeout(LIMIT) {
            Ok(Event { kind: EventKind::Line(line), at, .. }) => {
                if let Some((_, rest)) = line.split_once(": memory ") {
                    memory = rest.split(", image at").next().unwrap_or_default().to_owned();
                }
                let before = chart.joined();
                chart.line(&line, at.as_secs_f64() * 1000.0);
                if before.is_none() && chart.joined().is_some() {
                    joined = at;
                }
            }
            Ok(Event { kind: EventKind::Exited(exit), .. }) => {
                bail!("the node ended ({exit}): {}", appliances::reason(&vm.tail()).unwrap_or("silently"))
            }
            Ok(_) => {}
            Err(_) => bail!("the node did not join within {} s", LIMIT.as_secs()),
        }
    }
    ensure!(!memory.is_empty(), "the node has not told its memory");
    Ok((chart, memory, joined))
}

/// Returns the number of different lines about memory.
fn memories(boots: &[Warm]) -> usize {
    let mut all: Vec<_> = boots.iter().map(|boot| &boot.memory).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

fn targets(boots: &[Warm]) -> Vec<Target> {
    let command = median_of(boots, |boot| Some(boot.command_to_joined));
    let entry = median_of(boots, |boot| Some(boot.entry_to_joined));
    let ratio = command.zip(entry).map(|(command, entry)| command / entry);
    vec![
        Target::new("command to joined, of entry to joined", ratio, "", Bound::AtMost(TARGET)),
        Target::new("different sizes of free memory", Some(memories(boots) as f64), "", Bound::AtMost(1.0)),
    ]
}

fn table(boots: &[Warm]) -> Table {
    let memory = boots.first().map_or("", |boot| &boot.memory);
    let mut table = Table::new(
        "Warm boots by the manager",
        format!("microvm, 1 processor, TCG, milliseconds; {} boots in a row; memory {memory}", boots.len()),
        &["from", "median", "least", "most"],
    );
    let mut row = |name: &str, figure: fn(&Warm) -> f64| {
        let all: Vec<f64> = boots.iter().map(figure).collect();
        let least = all.iter().copied().reduce(f64::min).map_or_else(|| "-".into(), number);
        let most = all.iter().copied().reduce(f64::max).map_or_else(|| "-".into(), number);
        table.row([name.to_owned(), maybe(median(all)), least, most]);
    };
    row("command to joined", |boot| boot.command_to_joined);
    row("entry to joined", |boot| boot.entry_to_joined);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_memory_are_judged() {
        let boot = |command_to_joined, memory: &str| Warm {
            command_to_joined,
            entry_to_joined: 50.0,
            memory: memory.into(),
        };
        let met = |boots: &[Warm]| targets(boots).iter().map(|target| target.met).collect::<Vec<_>>();
        assert_eq!(met(&[boot(300.0, "a"), boot(400.0, "a"), boot(9000.0, "a")]), [true, true]);
        assert_eq!(met(&[boot(600.0, "a"), boot(600.0, "b")]), [false, false]);
        assert_eq!(table(&[boot(1.0, "a")]).rows.len(), 2);
    }
}
