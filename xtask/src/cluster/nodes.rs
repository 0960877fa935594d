//! The nodes of the cluster, and the programs that they need.

use super::hold::Options;
use anyhow::{Result, anyhow};
use lab::appliances::{self, Appliances, Running};
use lab::cargo::Profile;
use lab::cx3::Tools;
use lab::manager::{self, Manager};
use lab::processes::{self, LiteNode, Node};
use lab::{image, setup, ui};
use qemu::Qemu;
use qemu::vm::{Accel, Machine};
use std::path::{Path, PathBuf};

/// The programs of the cluster.
pub(super) struct Programs {
    /// The manager.
    pub manager: PathBuf,
    lite_node: Option<PathBuf>,
    kernel: PathBuf,
    qemu: Qemu,
    /// The program `cx3`, if an appliance has a card.
    cx3: Option<PathBuf>,
    accel: Accel,
}

impl Programs {
    /// Builds or fetches the programs.
    pub(super) fn get(options: &Options) -> Result<Self> {
        setup::check_qemu_available()?;
        let manager = ui::stage("the manager", || manager::build(Profile::Dev))?;
        let given = options.lite_node.clone();
        let lite_node = || given.map_or_else(|| ui::stage("the Linux nodes' program", processes::build), Ok);
        let lite_node = (options.linux > 0).then(lite_node);
        let kernel = ui::stage("the kernel's image", || Ok(image::build()?.elf))?;
        let (qemu, cx3) = if options.plan().cards().next().is_some() {
            let tools = Tools::get()?.map_err(|why| anyhow!("--nic: {why}"))?;
            (tools.qemu, Some(tools.program))
        } else {
            (setup::qemu()?, None)
        };
        let accel = appliances::decide(&qemu, Machine::Microvm, &kernel)?;
        Ok(Self { manager, lite_node: lite_node.transpose()?, kernel, qemu, cx3, accel })
    }
}

/// The running nodes. Killed when dropped.
pub(super) struct Nodes {
    // Declared before the appliances, because it must be dropped before their fabric.
    linux: Vec<LiteNode>,
    appliances: Running,
}

impl Nodes {
    /// Starts the appliances, then the Linux nodes on their fabric. The directories are those of the logs and
    /// of the sockets.
    pub(super) fn start(
        programs: &Programs,
        options: &Options,
        (consoles, work): (&Path, &Path),
        manager: &Manager,
    ) -> Result<Self> {
        let plan = &options.plan();
        let Programs { qemu, cx3, kernel, accel, .. } = programs;
        let appliances = Appliances {
            qemu,
            cx3: cx3.as_deref(),
            kernel,
            accel: *accel,
            memory_mb: options.memory,
            plan,
            consoles: Some(consoles),
            work,
        }
        .start(manager)?;
        let mut linux = Vec::new();
        let sockets = appliances.free_sockets().map(Path::to_owned).collect::<Vec<_>>();
        for (number, socket) in (0..options.linux).zip(&sockets) {
            let node = Node {
                name: format!("linux{number}"),
                socket,
                memory_mb: options.memory,
                cpus: options.cpus,
                settings: &[],
                consoles,
            };
            let program = programs.lite_node.as_deref().unwrap_or(Path::new("lite-node"));
            linux.push(node.start(program, manager)?);
        }
        Ok(Self { linux, appliances })
    }

    /// Returns the sockets of the fabric that no node uses.
    pub(super) fn free_sockets(&self) -> Vec<PathBuf> {
        self.appliances.free_sockets().skip(self.linux.len()).map(Path::to_owned).collect()
    }

    /// Returns a line for each node that has ended since the last call.
    pub(super) fn ends(&mut self) -> Vec<String> {
        let mut ends = self.appliances.ends();
        self.linux.retain_mut(|node| match node.check() {
            Ok(()) => true,
            Err(why) => {
                ends.push(why.to_string());
                false
            }
        });
        ends
    }

    /// Ends all nodes.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.linux);
        self.appliances.stop().map(drop)
    }
}
