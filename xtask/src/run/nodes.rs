//! The nodes of a run: appliances in QEMU, or processes of this host.

use super::Options;
use anyhow::{Result, anyhow, bail};
use fabric::FabricCounters;
use lab::appliances::{self, Appliances, Plan, Programs, Running};
use lab::cargo::Profile;
use lab::cx3::Tools;
use lab::image::{self, Contents};
use lab::manager::{self, Manager, Process};
use lab::processes::{self, Processes};
use lab::{interrupt, setup, ui};
use qemu::Qemu;
use qemu::accel::Choice;
use qemu::vm::Accel;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

/// The programs of a run.
pub(super) struct Prepared {
    pub(super) manager: PathBuf,
    kind: Kind,
}

/// The kind of the nodes.
enum Kind {
    Appliances {
        qemu: Qemu,
        /// The program `cx3`, if a node has a card.
        cx3: Option<PathBuf>,
        kernel: PathBuf,
        accel: Accel,
    },
    Processes {
        program: PathBuf,
    },
}

/// Running nodes. Killed when dropped.
pub(super) enum Nodes {
    Appliances(Box<Running>),
    Processes(Processes),
}

impl Nodes {
    /// Waits until one of the manager's clients is done. It is a failure if a node ends before, or if the
    /// deadline passes.
    pub(super) fn supervise(
        &mut self,
        client: Process,
        manager: &mut Manager,
        deadline: Instant,
    ) -> Result<()> {
        match self {
            Self::Appliances(running) => running.supervise(client, manager, deadline),
            Self::Processes(processes) => processes.supervise(client, manager, deadline),
        }
    }

    /// Ends all nodes. Returns the fabric's counters.
    pub(super) fn stop(self) -> Result<FabricCounters> {
        match self {
            Self::Appliances(running) => running.stop(),
            Self::Processes(processes) => processes.stop(),
        }
    }
}

/// The directories of a run.
#[derive(Clone, Copy)]
pub(super) struct Directories<'a> {
    /// The directory for the nodes' output, if it is kept.
    pub(super) consoles: Option<&'a Path>,
    /// The directory for sockets. Its path is short.
    pub(super) work: &'a Path,
}

impl Prepared {
    /// Builds or fetches the programs of a run.
    pub(super) fn new(options: &Options, plan: &Plan) -> Result<Self> {
        if options.linux {
            let manager = ui::stage("the manager", || manager::build(Profile::Dev))?;
            let program = ui::stage("the nodes' program", processes::build)?;
            return Ok(Self { manager, kind: Kind::Processes { program } });
        }
        let prepared = appliances(options, plan)?;
        interrupt::check()?;
        Ok(prepared)
    }

    /// Returns the accelerator of the machines, if there are any.
    pub(super) fn accel(&self) -> Option<Accel> {
        match &self.kind {
            Kind::Appliances { accel, .. } => Some(*accel),
            Kind::Processes { .. } => None,
        }
    }

    /// Starts the nodes, each with `memory_mb` MiB.
    pub(super) fn start(
        &self,
        plan: &Plan,
        memory_mb: u32,
        directories: Directories<'_>,
        manager: &Manager,
    ) -> Result<Nodes> {
        let Directories { consoles, work } = directories;
        match &self.kind {
            Kind::Appliances { qemu, cx3, kernel, accel } => {
                let cx3 = cx3.as_deref();
                let (kernel, accel) = (kernel.as_path(), *accel);
                let appliances = Appliances { qemu, cx3, kernel, accel, memory_mb, plan, consoles, work };
                Ok(Nodes::Appliances(Box::new(appliances.start(manager)?)))
            }
            Kind::Processes { program } => {
                let processes = processes::Plan {
                    nodes: plan.nodes,
                    cpus: plan.cpus,
                    memory_mb,
                    settings: &plan.settings,
                    faults: plan.faults,
                    seed: plan.seed,
                    pcap: plan.pcap.clone(),
                    consoles: consoles.unwrap_or(work),
                    work,
                };
                Ok(Nodes::Processes(processes.start(program, manager)?))
            }
        }
    }
}

/// Builds or fetches what a run of appliances needs: the kernel, QEMU and the programs of the host. They are
/// built in parallel, because each build leaves a processor idle for part of its time. Each prints its
/// duration.
fn appliances(options: &Options, plan: &Plan) -> Result<Prepared> {
    // This check comes before minutes of compiling.
    setup::check_qemu_available()?;
    let contents = Contents::with(options.apps.clone().unwrap_or_default());
    let build = options.programs.is_none();
    if build {
        eprintln!(
            "  building the kernel and the manager, side by side: a minute or two if nothing is compiled yet"
        );
    }
    std::thread::scope(|scope| {
        let kernel = build
            .then(|| scope.spawn(|| ui::stage("the kernel's image", || Ok(image::build_of(&contents)?.elf))));
        let manager =
            build.then(|| scope.spawn(|| ui::stage("the manager", || manager::build(Profile::Dev))));
        let (qemu, cx3) = if plan.cards().next().is_some() {
            let tools = ui::stage("the emulated ConnectX-3", || {
                Tools::get()?.map_err(|why| anyhow!("--nic {}: {why}", options.nics()))
            })?;
            (tools.qemu, Some(tools.program))
        } else {
            (setup::qemu()?, None)
        };
        let joined = |built: ScopedJoinHandle<'_, Result<PathBuf>>| {
            built.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let Programs { kernel, manager } = match (&options.programs, kernel.map(joined), manager.map(joined))
        {
            (None, Some(kernel), Some(manager)) => Programs { kernel: kernel?, manager: manager? },
            (Some(dir), ..) => Programs::given(dir)?,
            _ => bail!("nothing was built"),
        };
        let accel = accel(&qemu, options, &kernel)?;
        Ok(Prepared { manager, kind: Kind::Appliances { qemu, cx3, kernel, accel } })
    })
}

/// Returns the accelerator of the guests.
fn accel(qemu: &Qemu, options: &Options, kernel: &Path) -> Result<Accel> {
    match options.accel {
        Choice::Only(accel) => Ok(accel),
        Choice::Auto => appliances::decide(qemu, options.machine, kernel),
    }
}
