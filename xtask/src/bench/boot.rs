//! Measures the time from QEMU's start until an appliance has joined: the kernel's own boot chart, and the
//! time before the kernel.

use super::lab::Lab;
use super::stats::{median, median_of};
use super::table::{Table, maybe};
use super::target::{Bound, Target};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use lab::manager::Manager;
use lab::{appliances, interrupt, ui};
use qemu::Qemu;
use qemu::vm::{Accel, Event, EventKind, FwCfg, Machine, Nic, Vm, VmSpec};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The stage at whose end the manager has accepted the node as a member.
pub(super) const JOINED: &str = "join";
/// The last stage of the chart.
const LAST: &str = "lite";
/// The greatest time from entry to joined on microvm, in milliseconds.
const TARGET_MS: f64 = 150.0;
/// The longest time for a boot.
const LIMIT: Duration = Duration::from_secs(60);

/// The size of a machine on which a kernel is booted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub machine: Machine,
    pub cpus: u32,
    pub memory_mb: u32,
}

impl Size {
    /// Returns a machine with the memory of all boots that are not about memory.
    pub(super) const fn new(machine: Machine, cpus: u32) -> Self {
        Self { machine, cpus, memory_mb: 64 }
    }
}

/// The machines to boot.
const MACHINES: [Size; 4] = [
    Size::new(Machine::Microvm, 1),
    Size::new(Machine::Microvm, 2),
    Size::new(Machine::Q35, 1),
    Size::new(Machine::Q35, 2),
];

/// Medians over the boots of one machine, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Boot {
    machine: String,
    cpus: u32,
    boots: usize,
    /// From QEMU's start to the kernel's first instruction, firmware included.
    exec_to_entry_ms: Option<f64>,
    /// From the kernel's first instruction to the manager's welcome.
    entry_to_joined_ms: Option<f64>,
    exec_to_joined_ms: Option<f64>,
    /// The end of each stage, from the kernel's first instruction.
    stages_ms: Vec<(String, f64)>,
}

/// The times of one boot, in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Chart {
    exec_to_entry: Option<f64>,
    stages: Stages,
}

impl Chart {
    fn stage(&self, name: &str) -> Option<f64> {
        self.stages.iter().find(|(stage, _)| stage == name).map(|(_, ms)| *ms)
    }

    /// Returns the time from entry to joined, if the node has joined.
    pub(super) fn joined(&self) -> Option<f64> {
        self.stage(JOINED)
    }

    /// Returns true if the last stage has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.stage(LAST).is_some()
    }

    /// Handles a line of the console that arrived `at` milliseconds after QEMU's start. The first line with a
    /// time stamp determines the time of entry; the time to write that line is thereby counted as QEMU's.
    pub(super) fn line(&mut self, line: &str, at: f64) {
        if let Some(stage) = stage(line) {
            self.stages.push(stage);
        } else if self.exec_to_entry.is_none() {
            self.exec_to_entry = stamp(line).map(|ms| at - ms);
        }
    }
}

/// Parses `bootchart: page tables              3131 us`.
fn stage(line: &str) -> Option<(String, f64)> {
    let (name, us) = line.strip_prefix("bootchart: ")?.strip_suffix(" us")?.rsplit_once(' ')?;
    Some((name.trim().to_owned(), us.parse::<f64>().ok()? / 1000.0))
}

/// Parses the seconds in `[    0.009108] info ...`, as milliseconds.
fn stamp(line: &str) -> Option<f64> {
    let (seconds, _) = line.strip_prefix('[')?.split_once(']')?;
    Some(seconds.trim().parse::<f64>().ok()? * 1000.0)
}

/// Boots each machine `runs` times, all in turn.
pub(super) fn measure(lab: &Lab, runs: u32) -> Result<Vec<Boot>> {
    let mut manager = lab.manager()?;
    let mut charts: [Vec<Chart>; MACHINES.len()] = Default::default();
    for run in 0..runs {
        ui::step(&format!("boots on microvm and q35, 1 and 2 processors: {} of {runs}", run + 1), || {
            for (n, size) in MACHINES.into_iter().enumerate() {
                // Each boot has a name of its own: the manager may not have noticed the end of the one
                // before.
                let name = format!("boot{n}-{run}");
                let chart = boot(lab, &lab.qemu, &lab.programs.kernel, &mut manager, name, size);
                let Size { machine, cpus, .. } = size;
                charts[n]
                    .push(chart.with_context(|| format!("booting on {machine} with {cpus} processors"))?);
            }
            Ok(())
        })?;
    }
    Ok(MACHINES.into_iter().zip(charts).map(|(size, charts)| summary(size, &charts)).collect())
}

/// The end of each stage of a boot, in milliseconds from the kernel's entry.
pub(super) type Stages = Vec<(String, f64)>;

/// Returns the times at which a stage has ended.
pub(super) fn ends(boots: &[Stages], stage: &str) -> Vec<f64> {
    let end = |stages: &Stages| stages.iter().find(|(name, _)| name == stage).map(|(_, ms)| *ms);
    boots.iter().filter_map(end).collect()
}

/// Boots one kernel, and returns the end of each stage.
pub(super) fn stages(
    lab: &Lab,
    kernel: &Path,
    manager: &mut Manager,
    name: String,
    size: Size,
) -> Result<Stages> {
    Ok(boot(lab, &lab.qemu, kernel, manager, name, size)?.stages)
}

/// The code that QEMU translated during a boot. Most of it runs once, so that its translation takes most of
/// the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Translated {
    /// Blocks, which end at a jump.
    pub blocks: usize,
    /// Instructions.
    pub instructions: usize,
}

impl Translated {
    /// Counts the blocks and instructions in QEMU's log.
    fn of(log: impl BufRead) -> Result<Self> {
        let mut counted = Self::default();
        for line in log.split(b'\n') {
            let line = line?;
            counted.blocks += usize::from(line.starts_with(b"IN:"));
            counted.instructions += usize::from(line.starts_with(b"0x"));
        }
        ensure!(counted.instructions > 0, "QEMU has logged no instruction that it has translated");
        Ok(counted)
    }
}

/// Boots one kernel on microvm with one processor, and counts the code that QEMU translates until the chart
/// is printed.
pub(super) fn translated(
    lab: &Lab,
    kernel: &Path,
    manager: &mut Manager,
    name: String,
) -> Result<Translated> {
    let log = lab.dir().join(format!("{name}.translated"));
    let qemu = lab.qemu.logging_translation(&log);
    boot(lab, &qemu, kernel, manager, name, Size::new(Machine::Microvm, 1))?;
    let file = File::open(&log).context("QEMU's log of the code that it has translated")?;
    Translated::of(BufReader::new(file))
}

/// Boots one appliance and waits until its chart is complete.
fn boot(
    lab: &Lab,
    qemu: &Qemu,
    kernel: &Path,
    manager: &mut Manager,
    name: String,
    size: Size,
) -> Result<Chart> {
    let fabric = Fabric::start(&FabricConfig::plain(1, lab.dir()))?;
    let spec = spec(kernel, &fabric, manager, name, size)?;
    let (sender, events) = channel();
    let vm = Vm::start(qemu, spec, None, sender)?;
    let chart = follow(&vm, &events, manager);
    drop(vm);
    fabric.stop()?;
    chart
}

/// Returns an appliance that boots a kernel and joins the manager.
pub(super) fn spec(
    kernel: &Path,
    fabric: &Fabric,
    manager: &Manager,
    name: String,
    size: Size,
) -> Result<VmSpec> {
    let Size { machine, cpus, memory_mb } = size;
    Ok(VmSpec {
        cmdline: format!("manager=10.0.2.2:{} node={name} nic=softroce", manager.port()?),
        name,
        index: 0,
        machine,
        accel: Accel::Tcg,
        cpus,
        memory_mb,
        kernel: kernel.to_owned(),
        fw_cfg: vec![FwCfg { name: "opt/ferrolite/key".into(), file: manager.key().to_owned() }],
        initrd: None,
        nics: vec![Nic::Management, Nic::Fabric { plug: fabric.plug(0) }],
        boots_again: false,
    })
}

fn follow(vm: &Vm, events: &Receiver<Event>, manager: &mut Manager) -> Result<Chart> {
    let mut chart = Chart::default();
    let deadline = Instant::now() + LIMIT;
    while !chart.is_complete() {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event { kind: EventKind::Line(line), at, .. }) => chart.line(&line, at.as_secs_f64() * 1000.0),
            Ok(Event { kind: EventKind::Exited(exit), .. }) => {
                bail!(
                    "the node ended ({exit}): {}",
                    appliances::reason(&vm.tail()).unwrap_or("it said nothing")
                )
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("the node did not join within {} s", LIMIT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
        }
        manager.check()?;
        interrupt::check()?;
    }
    Ok(chart)
}

fn summary(size: Size, charts: &[Chart]) -> Boot {
    let stages = charts.first().map(|chart| chart.stages.as_slice()).unwrap_or_default();
    let exec_to_joined = |chart: &Chart| Some(chart.exec_to_entry? + chart.joined()?);
    Boot {
        machine: size.machine.to_string(),
        cpus: size.cpus,
        boots: charts.len(),
        exec_to_entry_ms: median_of(charts, |chart| chart.exec_to_entry),
        entry_to_joined_ms: median_of(charts, Chart::joined),
        exec_to_joined_ms: median_of(charts, exec_to_joined),
        stages_ms: stages
            .iter()
            .filter_map(|(name, _)| {
                let ms = median(charts.iter().filter_map(|chart| chart.stage(name)).collect())?;
                Some((name.clone(), ms))
            })
            .collect(),
    }
}

/// Returns the table of stages, with a column per machine.
pub(super) fn table(boots: &[Boot]) -> Table {
    let heads = boots.iter().map(|b| format!("{}, {} cpu", b.machine, b.cpus));
    let mut table = Table::new(
        "Boot chart",
        "milliseconds from the kernel's first instruction to the end of a stage, except where QEMU's start is named",
        &["stage"],
    );
    table.heads.extend(heads);
    let mut row = |name: &str, cell: &dyn Fn(&Boot) -> Option<f64>| {
        table
            .rows
            .push(std::iter::once(name.to_owned()).chain(boots.iter().map(|b| maybe(cell(b)))).collect());
    };
    for (name, _) in boots.first().map(|b| b.stages_ms.as_slice()).unwrap_or_default() {
        row(name, &|b| b.stages_ms.iter().find(|(stage, _)| stage == name).map(|(_, ms)| *ms));
    }
    row("QEMU's start to entry", &|b| b.exec_to_entry_ms);
    row("entry to joined", &|b| b.entry_to_joined_ms);
    row("QEMU's start to joined", &|b| b.exec_to_joined_ms);
    table
}

/// Returns the targets, which exist for microvm only.
pub(super) fn targets(boots: &[Boot]) -> Vec<Target> {
    let microvm = boots.iter().filter(|b| b.machine == Machine::Microvm.to_string());
    microvm
        .map(|b| {
            let name = format!("entry to joined, {}, {} cpu", b.machine, b.cpus);
            Target::new(name, b.entry_to_joined_ms, "ms", Bound::AtMost(TARGET_MS))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(first: f64, join: u32) -> Chart {
        let mut chart = Chart::default();
        chart.line("[    0.010000] info  ferrolite: hello", first);
        chart.line("[    0.020000] info  ferrolite: again", first + 100.0);
        chart.line("bootchart: page tables              3000 us", first + 200.0);
        chart.line(&format!("bootchart: join {join:>24} us"), first + 200.0);
        chart
    }

    #[test]
    fn a_console_becomes_a_chart() {
        let chart = chart(80.0, 54499);
        assert_eq!(chart.exec_to_entry, Some(70.0));
        assert_eq!(chart.stages, [("page tables".to_owned(), 3.0), ("join".to_owned(), 54.499)]);
        assert_eq!(stage("bootchart: x us"), None);
        assert_eq!(stamp("[ no time ] x"), None);
    }

    #[test]
    fn translated_code_is_counted() {
        let log =
            b"----------------\nIN: main\n0x00200000:  90  nop\n0x00200001:  c3  retq\n\nIN:\n0x1: f4\n";
        let counted = Translated::of(&log[..]).expect("a log");
        assert_eq!(counted, Translated { blocks: 2, instructions: 3 });
        assert!(Translated::of(&b""[..]).is_err());
    }

    #[test]
    fn medians_and_targets() {
        let charts = [chart(80.0, 100_000), chart(100.0, 160_000), chart(90.0, 120_000)];
        let boots = [(Machine::Microvm, 2), (Machine::Q35, 1)]
            .map(|(machine, cpus)| summary(Size::new(machine, cpus), &charts));
        assert_eq!(boots[0].entry_to_joined_ms, Some(120.0));
        assert_eq!(boots[0].exec_to_entry_ms, Some(80.0));
        assert_eq!(boots[0].exec_to_joined_ms, Some(200.0));
        let targets = targets(&boots);
        assert_eq!(targets.len(), 1);
        assert!(targets[0].met);
        assert_eq!(table(&boots).rows.len(), 5);
    }
}
