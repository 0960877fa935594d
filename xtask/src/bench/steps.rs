//! Measures single steps of the data path: in the appliance under TCG, and as native code on the host.

use super::lab::Lab;
use super::table::{Table, number};
use anyhow::{Context, Result, bail, ensure};
use lab::appliances::{SUCCESS, reason};
use lab::{image, interrupt, paths, tool, ui};
use qemu::Qemu;
use qemu::vm::{Accel, EventKind, Machine, Nic, Vm, VmSpec};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The time limit of one program, building included.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Step {
    /// The environment in which the step was measured.
    pub place: &'static str,
    pub what: String,
    pub ns: f64,
}

/// A program of this repository that prints figures, and a function that parses one of its lines into a name
/// and nanoseconds.
struct Source {
    place: &'static str,
    package: &'static str,
    example: &'static str,
    read: fn(&str) -> Option<(String, f64)>,
}

const SOURCES: [Source; 2] = [
    Source { place: "softroce, both ends, native", package: "softroce", example: "native_speed", read: rate },
    Source {
        place: "fabric, half a round trip, native",
        package: "fabric",
        example: "fabric_speed",
        read: fabric,
    },
];

/// Measures all steps once. The programs repeat steps by themselves and print the best or the median.
pub(super) fn measure(lab: &Lab) -> Result<Vec<Step>> {
    let mut steps = ui::step("what basic things cost in the appliance", || {
        appliance(&lab.qemu, &image::build_for_tests()?.elf, "speed")
    })?;
    for source in SOURCES {
        interrupt::check()?;
        let name = format!("{}: example {}", source.package, source.example);
        steps.extend(ui::step(&name, || native(&source)).with_context(|| name.clone())?);
    }
    Ok(steps)
}

/// Runs the kernel's own measurement, a self-test, in a machine of one processor.
pub(super) fn appliance(qemu: &Qemu, kernel: &Path, selftest: &str) -> Result<Vec<Step>> {
    printed(qemu, kernel, selftest).with_context(|| format!("selftest={selftest}"))
}

fn printed(qemu: &Qemu, image: &Path, selftest: &str) -> Result<Vec<Step>> {
    let spec = VmSpec {
        name: selftest.to_owned(),
        index: 0,
        machine: Machine::Q35,
        accel: Accel::Tcg,
        cpus: 1,
        memory_mb: 64,
        kernel: image.to_owned(),
        cmdline: format!("selftest={selftest}"),
        fw_cfg: Vec::new(),
        initrd: None,
        nics: vec![Nic::Management],
        boots_again: false,
    };
    let (sender, events) = channel();
    let vm = Vm::start(qemu, spec, None, sender)?;
    let deadline = Instant::now() + LIMIT;
    let mut steps = Vec::new();
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => match event.kind {
                EventKind::Line(line) => {
                    let step = kernel(&line).map(|(what, ns)| Step { place: "appliance, TCG", what, ns });
                    steps.extend(step);
                }
                EventKind::RestartedUnderTcg => {}
                EventKind::Exited(exit) if exit == SUCCESS && !steps.is_empty() => return Ok(steps),
                EventKind::Exited(exit) => {
                    bail!("{exit}: {}", reason(&vm.tail()).unwrap_or("it said nothing"))
                }
            },
            Err(RecvTimeoutError::Timeout) => bail!("did not end within {} s", LIMIT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
        }
    }
}

/// Runs an example of a library on the host.
fn native(source: &Source) -> Result<Vec<Step>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--package", source.package, "--example", source.example]);
    let output = tool::run_ok(cargo.current_dir(paths::root()), &paths::state()?.join("bench.log"), LIMIT)?;
    let read = output.lines().filter_map(source.read);
    let steps: Vec<Step> = read.map(|(what, ns)| Step { place: source.place, what, ns }).collect();
    ensure!(!steps.is_empty(), "it printed no figures");
    Ok(steps)
}

/// Parses `speed: copy 8 bytes                            12 ns`.
fn kernel(line: &str) -> Option<(String, f64)> {
    last_number(line.strip_prefix("speed: ")?.strip_suffix(" ns")?)
}

/// Parses `write 64 B         210`, whose number is nanoseconds.
pub(super) fn last_number(line: &str) -> Option<(String, f64)> {
    let (what, ns) = line.trim_end().rsplit_once(' ')?;
    Some((words(what), ns.parse().ok()?))
}

/// Parses `WRITE, one at a time       64 B      812.5     0.08`: nanoseconds, and bytes per nanosecond.
fn rate(line: &str) -> Option<(String, f64)> {
    let (rest, per_ns) = line.trim_end().rsplit_once(' ')?;
    per_ns.parse::<f64>().ok()?;
    let (what, ns) = last_number(rest)?;
    what.ends_with(" B").then_some((what, ns))
}

/// Parses `none           64               12.1      20.0              0.300        19`: faults, bytes, p50
/// and p99 in microseconds, then throughput.
fn fabric(line: &str) -> Option<(String, f64)> {
    let mut cells = line.split_whitespace();
    let (faults, bytes, p50) = (cells.next()?, cells.next()?.parse::<u32>().ok()?, cells.next()?);
    Some((format!("{bytes} B, faults {faults}, p50"), p50.parse::<f64>().ok()? * 1000.0))
}

/// Collapses runs of blanks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a table with a line per step.
pub(super) fn table(steps: &[Step]) -> Table {
    let mut table = Table::new(
        "Steps of the data path",
        "the appliance by its self-test `speed` on q35 with 1 processor; native figures by the examples \
         `rate` (softroce) and `fabric` (qemu), without emulation",
        &["step", "ns"],
    );
    for step in steps {
        table.row([format!("{}: {}", step.place, step.what), number(step.ns)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_sources_are_read() {
        let step = |what: &str, ns| Some((what.to_owned(), ns));
        assert_eq!(
            kernel("speed: copy 8 bytes                            12 ns"),
            step("copy 8 bytes", 12.0)
        );
        assert_eq!(kernel("[    0.1] info  speed"), None);
        assert_eq!(last_number("write 64 B         210"), step("write 64 B", 210.0));
        assert_eq!(last_number("ns per operation, both nodes, executor included; 200000 rounds"), None);
        assert_eq!(
            rate("READ, 16 in flight          4096 B      812.5     5.04"),
            step("READ, 16 in flight 4096 B", 812.5)
        );
        assert_eq!(rate("operation    size    ns each    GB/s"), None);
        assert_eq!(
            fabric("none           64               12.1      20.0              0.300        19"),
            step("64 B, faults none, p50", 12_100.0)
        );
        assert_eq!(
            fabric("faults      bytes       half round trip p50/p99 us   one way Mframe/s  MB/s"),
            None
        );
    }
}
