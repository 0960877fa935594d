//! The kernel's own tests, in QEMU: each boots an image with `selftest=NAME` and expects success.

use super::place::test_image_at;
use crate::runner::{Case, Outcome};
use anyhow::{Result, ensure};
use lab::appliances::SUCCESS;
use lab::cluster::{Cluster, Lab, ended};
use qemu::vm::{Exit, Machine, Nic, Vm, VmSpec};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

// Exit statuses of a failing kernel: `Code` in kernel/src/power.rs.
pub(crate) const PANIC: Exit = Exit::Guest(1);
const FAULT: Exit = Exit::Guest(2);
const HEAP_EXHAUSTED: Exit = Exit::Guest(3);
pub(crate) const REFUSED: Exit = Exit::Guest(5);

/// The longest silence of a console on a busy host.
const LIMIT: Duration = Duration::from_secs(240);

/// One boot of the kernel.
#[derive(Clone)]
struct SelfTest {
    /// The test: the value of `key`.
    name: &'static str,
    /// The key of the command line: `selftest`, which the shipped image does not know, or another.
    key: &'static str,
    machine: Machine,
    cpus: u32,
    memory_mb: u32,
    full: bool,
    /// The expected exit status.
    expect: Exit,
    /// A text that the console must contain.
    says: &'static str,
    /// The physical address of the image, if it is not the one for which the image is linked.
    place: Option<u64>,
    /// True if the machine gets an initrd with a key.
    has_initrd: bool,
}

impl SelfTest {
    fn new(name: &'static str, machine: Machine) -> Self {
        Self {
            name,
            key: "selftest",
            machine,
            cpus: 1,
            memory_mb: 64,
            full: false,
            expect: SUCCESS,
            says: "",
            place: None,
            has_initrd: false,
        }
    }

    fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    /// Returns a test that boots the shipped image with `probe=`.
    fn probe(name: &'static str, machine: Machine) -> Self {
        Self { key: "probe", ..Self::new(name, machine) }
    }

    fn memory_mb(self, memory_mb: u32) -> Self {
        Self { memory_mb, ..self }
    }

    fn dies(self, expect: Exit, says: &'static str) -> Self {
        Self { expect, says, ..self }
    }

    fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    /// Boots the image at this physical address. The console must name it.
    fn at(self, place: u64, says: &'static str) -> Self {
        Self { place: Some(place), says, ..self }
    }

    fn with_initrd(self) -> Self {
        Self { has_initrd: true, ..self }
    }

    fn full(self) -> Self {
        Self { full: true, ..self }
    }

    fn title(&self) -> String {
        let place = self.place.map(|place| format!("-at-{place:#x}")).unwrap_or_default();
        format!("kernel::{}-{}-{}cpu-{}M{place}", self.name, self.machine, self.cpus, self.memory_mb)
    }

    fn case(self) -> Case {
        let full = self.full;
        Case::new(self.title(), move |log| self.check(log).map(|()| Outcome::Passed)).full_if(full)
    }

    fn check(&self, log: &Path) -> Result<()> {
        let lab = Lab::get()?;
        let cmdline = format!("{}={}", self.key, self.name);
        let spec = VmSpec {
            name: self.name.into(),
            index: 0,
            machine: self.machine,
            accel: lab.accel,
            cpus: self.cpus,
            memory_mb: self.memory_mb,
            kernel: match self.place {
                Some(place) => test_image_at(place, log)?,
                None => lab.kernel_for(&cmdline)?,
            },
            cmdline,
            fw_cfg: Vec::new(),
            initrd: self.has_initrd.then(|| initrd(log)).transpose()?,
            nics: vec![Nic::Management],
            boots_again: false,
        };
        let (events, inbox) = channel();
        let vms = [Vm::start(&lab.qemu, spec, Some(log), events)?];
        ended(&vms, &inbox, &self.expect, LIMIT)?;
        let console = std::fs::read_to_string(log)?;
        ensure!(console.contains(self.says), "the console does not say `{}`", self.says);
        ensure!(console.contains("bootchart: "), "there is no boot chart");
        Ok(())
    }
}

/// Writes an initrd with a key next to `log`.
fn initrd(log: &Path) -> Result<PathBuf> {
    let file = log.with_extension("initrd");
    let key = "5a".repeat(32);
    std::fs::write(&file, bootconfig::archive(&[("ferrolite/key", key.as_bytes())]))?;
    Ok(file)
}

pub(crate) fn cases() -> Vec<Case> {
    use Machine::{Microvm, Q35, Q35Iommu};
    let mut tests = vec![
        SelfTest::new("boot", Microvm),
        SelfTest::new("boot", Q35),
        SelfTest::new("boot", Microvm).cpus(8),
        SelfTest::new("boot", Q35).cpus(8),
        SelfTest::new("boot", Microvm).memory_mb(32),
        SelfTest::new("boot", Q35).memory_mb(4096),
        SelfTest::new("smp", Microvm).cpus(2),
        SelfTest::new("smp", Q35).cpus(8),
        SelfTest::probe("hypervisor", Microvm).cpus(2),
        SelfTest::probe("hypervisor", Q35).cpus(2),
        SelfTest::new("boot", Q35Iommu),
        SelfTest::new("iommu", Q35Iommu).says("the IOMMU at 0xfed90000 (DMAR)"),
        SelfTest::new("iommu-on", Q35Iommu).dies(REFUSED, "(DMAR) translates the addresses of devices"),
        SelfTest::new("modules", Microvm).with_initrd(),
        SelfTest::new("modules", Q35).with_initrd(),
        SelfTest::new("locks", Microvm).says("NMI at 0x"),
        SelfTest::new("wx", Microvm).cpus(2),
        SelfTest::new("wx", Q35),
        SelfTest::new("heap", Microvm).cpus(2),
        // The first two overlap the virtual addresses of the image.
        SelfTest::new("wx", Microvm).cpus(2).at(0x40_0000, "image at 0x400000"),
        SelfTest::new("heap", Microvm).at(0x60_0000, "image at 0x600000"),
        SelfTest::new("smp", Q35).cpus(4).at(0x160_0000, "image at 0x1600000"),
        SelfTest::new("boot", Q35).memory_mb(4096).at(0x7e00_0000, "image at 0x7e000000"),
        SelfTest::new("fpu", Microvm).cpus(2),
        SelfTest::new("idle", Microvm).cpus(2),
        SelfTest::new("progress", Microvm),
        SelfTest::new("panic", Microvm).dies(PANIC, "asked for by selftest=panic"),
        SelfTest::new("panic2", Microvm).cpus(2).dies(PANIC, "asked for by selftest=panic2"),
        SelfTest::new("overrun", Microvm).dies(PANIC, "FATAL"),
        SelfTest::new("deadlock", Microvm).dies(PANIC, "FATAL"),
        SelfTest::new("fault", Microvm).dies(FAULT, "0xdead0000"),
        SelfTest::new("fault", Q35).dies(FAULT, "0xdead0000"),
        SelfTest::new("stackoverflow", Microvm).dies(FAULT, "FATAL"),
        SelfTest::new("oom", Microvm).dies(HEAP_EXHAUSTED, "FATAL"),
    ];
    // With --full, each test runs on each machine with each number of processors.
    for machine in [Microvm, Q35] {
        for cpus in [1, 2, 4, 8] {
            for name in ["boot", "smp", "wx", "heap", "fpu", "idle", "progress"] {
                tests.push(SelfTest::new(name, machine).cpus(cpus).full());
            }
            tests.push(SelfTest::new("panic", machine).cpus(cpus).dies(PANIC, "selftest=panic").full());
        }
        for memory_mb in [32, 64, 4096] {
            tests.push(SelfTest::new("boot", machine).cpus(2).memory_mb(memory_mb).full());
            tests.push(SelfTest::new("heap", machine).cpus(2).memory_mb(memory_mb).full());
        }
    }
    let mut titles = std::collections::HashSet::new();
    tests.retain(|test| titles.insert(test.title()));
    let mut cases: Vec<Case> = tests.into_iter().map(SelfTest::case).collect();
    cases.push(Case::new("kernel::backtrace-is-symbolised", |log| backtrace(log).map(|()| Outcome::Passed)));
    for (name, test) in [("kernel::fabric-between-two", "net"), ("kernel::raw-frames-between-two", "echo")] {
        cases.push(Case::new(name, move |log| between_two(test, log).map(|()| Outcome::Passed)));
    }
    cases.push(Case::new("kernel::unknown-key-is-refused", |log| unknown_key(log).map(|()| Outcome::Passed)));
    cases
}

/// Checks that a panic's backtrace has names and lines.
fn backtrace(log: &Path) -> Result<()> {
    SelfTest::new("panic", Machine::Microvm).dies(PANIC, "panic").check(log)?;
    let console = std::fs::read_to_string(log)?;
    ensure!(
        console.lines().any(|l| l.contains("0x") && l.contains(" at ") && l.contains("selftest")),
        "no frame of the backtrace has the name and line of the self-test"
    );
    Ok(())
}

/// Checks that a self-test of two machines on one fabric succeeds on both.
fn between_two(test: &str, log: &Path) -> Result<()> {
    let pair = Cluster::start(2, &format!("selftest={test}"), None, log)?;
    for _ in 0..2 {
        pair.ends(&SUCCESS, LIMIT)?;
    }
    Ok(())
}

fn unknown_key(log: &Path) -> Result<()> {
    let one = Cluster::start(1, "colour=green", None, log)?;
    one.ends(&REFUSED, LIMIT)?;
    let tail = one.vms.first().map(Vm::tail).unwrap_or_default();
    ensure!(tail.iter().any(|l| l.contains("unknown key `colour`")), "the console does not name the key");
    Ok(())
}
