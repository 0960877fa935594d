//! The kernel's own tests, in QEMU: each boots the image with `selftest=NAME` and expects it to end with success.

use super::cases::{Case, Outcome};
use crate::run::SUCCESS;
use crate::{image, run, setup, ui};
use anyhow::{Result, anyhow, bail, ensure};
use qemu::Qemu;
use qemu::vm::{Accel, EventKind, Exit, Machine, Nic, Vm, VmSpec};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

// What the kernel ends with when it dies: `Code` in kernel/src/power.rs.
const PANIC: Exit = Exit::Guest(1);
const FAULT: Exit = Exit::Guest(2);
const HEAP_EXHAUSTED: Exit = Exit::Guest(3);

/// One boot of the kernel.
struct SelfTest {
    /// Its name: the value of `selftest=`.
    name: &'static str,
    machine: Machine,
    cpus: u32,
    memory_mb: u32,
    limit_s: u64,
    full: bool,
    /// How the guest shall end.
    expect: Exit,
}

impl SelfTest {
    fn new(name: &'static str, machine: Machine) -> Self {
        Self { name, machine, cpus: 1, memory_mb: 64, limit_s: 60, full: false, expect: SUCCESS }
    }

    fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    fn memory_mb(self, memory_mb: u32) -> Self {
        Self { memory_mb, ..self }
    }

    fn expect(self, expect: Exit) -> Self {
        Self { expect, ..self }
    }

    fn case(self) -> Case {
        let Self { name, machine, cpus, memory_mb, full, .. } = self;
        let title = format!("kernel::{name}-{machine}-{cpus}cpu-{memory_mb}M");
        Case::new(title, move |log| self.check(log)).full_if(full)
    }

    fn check(&self, log: &Path) -> Result<Outcome> {
        let lab = Lab::get()?;
        let spec = VmSpec {
            name: self.name.into(),
            index: 0,
            machine: self.machine,
            accel: lab.accel,
            cpus: self.cpus,
            memory_mb: self.memory_mb,
            kernel: lab.kernel.clone(),
            cmdline: format!("selftest={}", self.name),
            fw_cfg: Vec::new(),
            nics: vec![Nic::Management],
        };
        let (events, inbox) = channel();
        let vm = Vm::start(&lab.qemu, spec, Some(log), events)?;
        let deadline = Instant::now() + Duration::from_secs(self.limit_s);
        loop {
            match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => match event.kind {
                    EventKind::Exited(exit) if exit == self.expect => return Ok(Outcome::Passed),
                    EventKind::Exited(exit) => {
                        bail!("{exit}: {}", run::reason(&vm.tail()).unwrap_or("it said nothing"))
                    }
                    EventKind::Line(_) | EventKind::RestartedUnderTcg => {}
                },
                Err(RecvTimeoutError::Timeout) => bail!("did not end within {} s", self.limit_s),
                Err(RecvTimeoutError::Disconnected) => bail!("the machine is gone"),
            }
        }
    }
}

/// What all boots share; made by the first that needs it.
struct Lab {
    qemu: Qemu,
    kernel: PathBuf,
    accel: Accel,
}

impl Lab {
    fn get() -> Result<&'static Self> {
        static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();
        let made = LAB.get_or_init(|| Self::make().map_err(|e| ui::one_line(&e)));
        made.as_ref().map_err(|e| anyhow!(e.clone()))
    }

    fn make() -> Result<Self> {
        let qemu = setup::qemu()?;
        let kernel = image::build()?.elf;
        let accel = run::decide(&qemu, Machine::Microvm, &kernel)?;
        Ok(Self { qemu, kernel, accel })
    }
}

pub fn cases() -> Vec<Case> {
    use Machine::{Microvm, Q35};
    let mut cases: Vec<Case> = [
        SelfTest::new("boot", Microvm),
        SelfTest::new("boot", Q35),
        SelfTest::new("boot", Microvm).cpus(8),
        SelfTest::new("boot", Q35).cpus(8),
        SelfTest::new("boot", Microvm).memory_mb(32),
        SelfTest::new("boot", Q35).memory_mb(4096),
        SelfTest::new("smp", Microvm).cpus(2),
        SelfTest::new("smp", Q35).cpus(8),
        SelfTest::new("wx", Microvm).cpus(2),
        SelfTest::new("wx", Q35),
        SelfTest::new("heap", Microvm),
        SelfTest::new("fpu", Microvm).cpus(2),
        SelfTest::new("idle", Microvm).cpus(2),
        SelfTest::new("progress", Microvm),
        SelfTest::new("panic", Microvm).expect(PANIC),
        SelfTest::new("overrun", Microvm).expect(PANIC),
        SelfTest::new("fault", Microvm).expect(FAULT),
        SelfTest::new("stackoverflow", Microvm).expect(FAULT),
        SelfTest::new("oom", Microvm).expect(HEAP_EXHAUSTED),
    ]
    .into_iter()
    .map(SelfTest::case)
    .collect();
    cases.push(Case::new("kernel::backtrace-is-symbolised", backtrace));
    cases
}

/// A panic's backtrace must come with names and lines.
fn backtrace(log: &Path) -> Result<Outcome> {
    SelfTest::new("panic", Machine::Microvm).expect(PANIC).check(log)?;
    let console = std::fs::read_to_string(log)?;
    ensure!(console.lines().any(|l| l.contains("panic") && l.contains("selftest")), "no panic message");
    ensure!(
        console.lines().any(|l| l.contains("0x") && l.contains(" at ") && l.contains("selftest")),
        "no frame of the backtrace has the name and line of the self-test"
    );
    Ok(Outcome::Passed)
}
