//! The process that holds the cluster: it starts the manager and the nodes, starts the manager again when it
//! dies, and ends all of them on SIGTERM.

use super::nodes::{Nodes, Programs};
use super::state::{Home, Lock, State};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::appliances::{Plan, RdmaNic};
use lab::manager::Manager;
use lab::{interrupt, tool};
use netfault::Faults;
use qemu::vm::Machine;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The interval at which the nodes, the manager and signals are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The pause before a manager that did not start is started again.
const PAUSE: Duration = Duration::from_secs(1);
/// The time that the nodes have to leave in the end.
const LEAVE: Duration = Duration::from_secs(10);
/// The number of programs of this host that can join beside the nodes.
const PROGRAMS: u16 = 4;

/// The nodes of the cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of appliances, 0 to 16
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = RangedU64ValueParser::<u16>::new().range(0..=16))]
    pub nodes: u16,
    /// Number of Linux nodes: processes of this host (`lite-node`), 0 to 16
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = RangedU64ValueParser::<u16>::new().range(0..=16))]
    pub linux: u16,
    /// Program of the Linux nodes [default: built here]
    #[arg(long, value_name = "FILE")]
    pub lite_node: Option<PathBuf>,
    /// RDMA device of the appliances, as for `cargo xtask run`
    #[arg(long, value_name = "NIC", default_value = "softroce", value_delimiter = ',')]
    pub nic: Vec<RdmaNic>,
    /// Memory of each node in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = RangedU64ValueParser::<u32>::new().range(8..=1_048_576))]
    pub memory: u32,
    /// Processors of each node, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=8))]
    pub cpus: u32,
    /// TCP port of the manager on 127.0.0.1; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Time in which all nodes must join, in seconds
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub timeout: u64,
}

impl Options {
    /// Checks that the options fit together.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.count() > 0, "--nodes 0: want a Linux node at least (--linux)");
        let infiniband = self.plan().has_infiniband();
        ensure!(!infiniband || self.linux == 0, "--linux: no Linux node has an InfiniBand port");
        if let Some(program) = &self.lite_node {
            ensure!(program.is_file(), "--lite-node: there is no file {}", program.display());
        }
        Ok(())
    }

    /// Returns the number of nodes.
    pub(super) fn count(&self) -> u16 {
        self.nodes + self.linux
    }

    /// Returns the plan of the appliances.
    pub(super) fn plan(&self) -> Plan {
        Plan {
            nodes: self.nodes,
            cpus: self.cpus,
            machine: Machine::Microvm,
            nics: self.nic.clone(),
            card_keys: Vec::new(),
            one_nic: false,
            remote: "all".into(),
            settings: Vec::new(),
            faults: Faults::default(),
            seed: 1,
            fabric_socket: None,
            free_ports: self.linux + PROGRAMS,
            pcap: None,
        }
    }

    /// Returns the options as words of a command line.
    pub(super) fn words(&self) -> Vec<OsString> {
        let Self { nodes, linux, lite_node, nic, memory, cpus, port, timeout } = self;
        let nic = nic.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let words = format!(
            "--nodes {nodes} --linux {linux} --nic {nic} --memory {memory} --cpus {cpus} --port {port} \
             --timeout {timeout}"
        );
        let program = lite_node.iter().flat_map(|file| ["--lite-node".into(), file.into()]);
        words.split(' ').map(OsString::from).chain(program).collect()
    }
}

/// Holds the cluster until SIGTERM.
pub(super) fn hold(home: &Home, options: &Options) -> Result<()> {
    // The end of the terminal must not end the cluster.
    rustix::process::setsid().context("cannot leave the terminal")?;
    let _lock = lock(home)?;
    interrupt::watch()?;
    options.check()?;
    let programs = Programs::get(options)?;
    // The path is short because of the sockets in the directory. Only this user can read it, because of the
    // key in it.
    let work = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
    let more = ["--trust-hosts"];
    let mut manager = Manager::start_with_dashboard(&programs.manager, options.port, work.path(), &more)?;
    let mut nodes = Nodes::start(&programs, options, (home.path(), work.path()), &manager)?;
    let mut state = State {
        holder: std::process::id(),
        manager: manager.address().to_owned(),
        manager_pid: manager.process(),
        program: programs.manager.clone(),
        key_file: manager.key().to_owned(),
        fabric_sockets: nodes.free_sockets(),
        dashboard: manager.dashboard(),
        ready: false,
    };
    home.write(&state)?;
    joined(options, &mut nodes, &mut manager, work.path())?;
    state.ready = true;
    home.write(&state)?;
    while interrupt::check().is_ok() {
        std::thread::sleep(LOOK);
        print_log(&mut manager);
        nodes.ends().iter().for_each(|line| eprintln!("{line}"));
        if let Err(why) = manager.check() {
            eprintln!("{why:#}; starts it again");
            match manager.kill_and_restart() {
                Ok(()) => {
                    state.manager_pid = manager.process();
                    state.dashboard = manager.dashboard();
                    home.write(&state)?;
                }
                Err(why) => {
                    eprintln!("{why:#}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
    home.remove()?;
    // A node that does not leave is killed.
    let mut shutdown = state.client("shutdown");
    let mut shutdown = qemu::die_with_this_thread(shutdown.stdin(Stdio::null())).spawn()?;
    if tool::wait(&mut shutdown, LEAVE)?.is_none() {
        eprintln!("the nodes do not leave within {} s", LEAVE.as_secs());
    }
    print_log(&mut manager);
    nodes.stop()
}

/// Takes the cluster's lock, which other commands have for moments only.
fn lock(home: &Home) -> Result<Lock> {
    let deadline = Instant::now() + PAUSE;
    loop {
        match home.lock()? {
            Some(lock) => return Ok(lock),
            None => ensure!(Instant::now() < deadline, "the cluster is up already"),
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until all nodes have joined.
fn joined(options: &Options, nodes: &mut Nodes, manager: &mut Manager, work: &Path) -> Result<()> {
    let limit = Duration::from_secs(options.timeout);
    let deadline = Instant::now() + limit;
    let mut joining = manager.wait_nodes(options.count(), limit, &work.join("members"))?;
    while joining.poll()?.is_none() {
        if let Some(end) = nodes.ends().first() {
            bail!("{end}");
        }
        print_log(manager);
        manager.check()?;
        interrupt::check()?;
        ensure!(Instant::now() < deadline + LEAVE, "the nodes do not join in time");
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Prints the lines that the manager has logged.
fn print_log(manager: &mut Manager) {
    while let Some(line) = manager.wait_for_line("", Duration::ZERO) {
        eprintln!("manager: {line}");
    }
}
