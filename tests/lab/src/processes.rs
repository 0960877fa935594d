//! Nodes without virtual machines: processes of this host, `lite-node`, on one fabric.

use crate::cargo::{self, Profile};
use crate::interrupt;
use crate::manager::{Manager, Process};
use anyhow::{Context, Result, bail};
use fabric::{Fabric, FabricConfig, FabricCounters};
use netfault::Faults;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the job, the nodes and interrupts are checked.
const TICK: Duration = Duration::from_millis(20);

/// The number and the properties of nodes that start together.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The number of nodes.
    pub nodes: u16,
    /// The threads for applications of each node.
    pub cpus: u32,
    /// The memory that each node gives to the cluster, in MiB.
    pub memory_mb: u32,
    /// The settings of LITE, each as `NAME=VALUE`.
    pub settings: &'a [String],
    /// The faults of the network.
    pub faults: Faults,
    /// The seed that decides which frames the faults hit.
    pub seed: u64,
    /// The file for a capture of all frames as they were sent.
    pub pcap: Option<PathBuf>,
    /// The directory for the nodes' output.
    pub consoles: &'a Path,
    /// The directory for sockets. Its path is short.
    pub work: &'a Path,
}

/// Builds `lite-node`. Returns its program.
pub fn build() -> Result<PathBuf> {
    cargo::program("lite-node", Profile::Dev)
}

/// Running nodes. Killed when dropped.
pub struct Processes {
    nodes: Vec<LiteNode>,
    fabric: Fabric,
}

/// The properties of a node.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// The node's name.
    pub name: String,
    /// The socket of the node's port on a fabric.
    pub socket: &'a Path,
    /// The memory that the node gives to the cluster, in MiB.
    pub memory_mb: u32,
    /// The threads for applications.
    pub cpus: u32,
    /// The settings of LITE, each as `NAME=VALUE`.
    pub settings: &'a [String],
    /// The directory for the node's output.
    pub consoles: &'a Path,
}

impl Node<'_> {
    /// Starts the node, which connects to the manager.
    pub fn start(&self, program: &Path, manager: &Manager) -> Result<LiteNode> {
        let Self { name, socket, memory_mb, cpus, settings, consoles } = self;
        let log = consoles.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(["--manager", &format!("127.0.0.1:{}", manager.port()?), "--key-file"]);
        command.arg(manager.key()).args(["--name", name, "--nic", "softroce"]);
        command.arg("--fabric-socket").arg(socket);
        command.args(["--memory", &format!("{memory_mb}M"), "--cpus", &cpus.to_string()]);
        for setting in *settings {
            let (name, value) = setting.split_once('=').context("--lite: want NAME=VALUE")?;
            command.args([format!("--{name}"), value.to_owned()]);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = qemu::die_with_this_thread(&mut command).spawn().context("cannot start lite-node")?;
        Ok(LiteNode { name: name.clone(), child, log })
    }
}

/// A running node. Killed when dropped.
pub struct LiteNode {
    name: String,
    child: Child,
    /// The file with its output.
    log: PathBuf,
}

impl LiteNode {
    /// Fails if the node has ended.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        bail!("{} has ended with {status}: {}", self.name, said.lines().last().unwrap_or("no output"))
    }
}

impl Drop for LiteNode {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Plan<'_> {
    /// Starts the fabric and the nodes, which connect to the manager.
    pub fn start(&self, program: &Path, manager: &Manager) -> Result<Processes> {
        let fabric = Fabric::start(&FabricConfig {
            ports: self.nodes.into(),
            dir: self.work.to_owned(),
            faults: self.faults,
            seed: self.seed,
            pcap: self.pcap.clone(),
        })?;
        let mut nodes = Vec::new();
        for index in 0..self.nodes {
            let node = Node {
                name: format!("node{index}"),
                socket: fabric.socket(index.into()),
                memory_mb: self.memory_mb,
                cpus: self.cpus,
                settings: self.settings,
                consoles: self.consoles,
            };
            nodes.push(node.start(program, manager)?);
        }
        Ok(Processes { nodes, fabric })
    }
}

impl Processes {
    /// Waits until one of the manager's clients is done. It is a failure if a node ends before, or if the
    /// deadline passes.
    pub fn supervise(&mut self, mut client: Process, manager: &mut Manager, deadline: Instant) -> Result<()> {
        loop {
            self.check()?;
            match client.poll() {
                Ok(None) => thread::sleep(TICK),
                Ok(Some(())) => return Ok(()),
                // The cause of most failures is the end of a node, which is then reported.
                Err(failure) => return self.check().and(Err(failure)),
            }
            manager.check()?;
            interrupt::check()?;
            if Instant::now() >= deadline {
                bail!("the run did not end within the time set by --timeout");
            }
        }
    }

    /// Ends all nodes. Returns the fabric's counters.
    pub fn stop(self) -> Result<FabricCounters> {
        drop(self.nodes);
        self.fabric.stop()
    }

    /// Fails if a node has ended.
    fn check(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(LiteNode::check)
    }
}
