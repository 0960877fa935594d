//! Tests of a Linux machine as a node beside appliances: `lite-node` and the library over libibverbs and
//! `rdma_rxe`.

use super::cases::{Case, Outcome};
use super::inputs::{Input, compare};
use super::lab::Cluster;
use super::nodes::wait_for;
use crate::run::{self, RdmaNic};
use crate::{cargo, paths, tool};
use anyhow::{Context, Result, bail, ensure};
use qemu::linux::{Card, Guest, GuestConfig, Image, Job, Network, Starting};
use qemu::vm::Nic;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for anything in a guest or for a job, on a busy host.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest time from the death of the process to the end of its job: less than the detection of a silent
/// machine would take.
const NOTICED: Duration = Duration::from_secs(30);
/// The number of appliances.
const APPLIANCES: u16 = 3;
/// Text in the output of the manager's client once the nodes have started a job.
const RUNS: &str = " runs on ";
/// The directory of the programs in the guest.
const IN_GUEST: &str = "/opt/ferrolite";

pub fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("linux::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("node-counts-words-beside-appliances-and-dies", word_count),
        case("refused-without-trust-hosts", refused).full_if(true),
        case("examples-in-c-and-python", examples).full_if(true),
    ]
}

/// The length of the network's prefix, in bits.
const PREFIX: u8 = 16;

/// Returns a Linux machine's address, near the end of the network in which the manager assigns addresses.
fn address(machine: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 255, machine + 1)
}

/// The plan of a lab.
pub struct Plan<'a> {
    /// The RDMA devices of the appliances, one appliance each.
    pub appliances: &'a [RdmaNic],
    /// The RDMA devices of the Linux machines, one machine each. A machine uses `rdma_rxe` where an appliance
    /// would use softroce. If the first has an InfiniBand card, it is the subnet manager.
    pub machines: &'a [RdmaNic],
    /// Options of the manager.
    pub manager: &'a [&'a str],
    /// Further packages of the machines.
    pub packages: &'a [&'a str],
    /// Files in [`IN_GUEST`].
    pub files: &'a [(&'a str, PathBuf)],
}

/// Appliances, and Linux machines on their fabric.
pub struct Lab {
    pub cluster: Cluster,
    guests: Vec<Guest>,
}

impl Lab {
    /// Starts one machine beside appliances on softroce.
    fn of_one(manager: &[&str], packages: &[&str], files: &[(&str, PathBuf)], log: &Path) -> Result<Self> {
        let appliances = &vec![RdmaNic::SoftRoce; APPLIANCES.into()];
        Self::start(&Plan { appliances, machines: &[RdmaNic::SoftRoce], manager, packages, files }, log)
    }

    /// Starts all machines, the appliances last, which may not have joined on return.
    pub fn start(plan: &Plan, log: &Path) -> Result<Self> {
        let &Plan { appliances, machines, manager, packages, files } = plan;
        let image = Image::build_with(&paths::target().join("linux-guest"), packages)?;
        let nics = [appliances, machines].concat();
        let mut cluster = Cluster::without_machines(nics, manager, log)?;
        let mut files: Vec<_> =
            files.iter().map(|(name, path)| (format!("{IN_GUEST}/{name}"), path.clone())).collect();
        files.push((format!("{IN_GUEST}/cluster.key"), cluster.manager.key().to_owned()));
        let size: u64 = files.iter().map(|(_, path)| path.metadata().map_or(0, |meta| meta.len())).sum();
        let files_mib = u32::try_from(size >> 20).unwrap_or(u32::MAX);
        let start = |machine: u8| {
            let (number, address) = (machine + 1, address(machine));
            let (card, network) = match cluster.rdma(appliances.len() + usize::from(machine)) {
                Nic::Card { socket } => {
                    let address = Some((address, PREFIX));
                    (Some(Card { address, ..Card::numbered(number, socket) }), None)
                }
                Nic::Fabric { plug } => {
                    (None, Some(Network { address, prefix: PREFIX, ..Network::numbered(number, plug) }))
                }
                Nic::Management => bail!("an RDMA device is none of the management network"),
            };
            let config = GuestConfig {
                memory_mib: 320 + 2 * (image.size_mib() + files_mib),
                card,
                network,
                management: true,
                files: files.clone(),
                console: Some(log.with_extension(format!("linux{machine}.log"))),
                boot_within: LIMIT,
                ..GuestConfig::default()
            };
            Guest::start(cluster.qemu(), &image, &config)
        };
        let starting = (0..).zip(machines).map(|(machine, _)| start(machine)).collect::<Result<Vec<_>>>()?;
        let mut guests = starting.into_iter().map(Starting::ready).collect::<Result<Vec<_>>>()?;
        if let (Some(guest), Some(true)) = (guests.first_mut(), machines.first().map(RdmaNic::is_infiniband))
        {
            run::start_opensm(guest)?;
        }
        cluster.boot(u16::try_from(appliances.len())?, "", None, log)?;
        Ok(Self { cluster, guests })
    }

    /// Returns a Linux machine.
    pub fn guest(&mut self, machine: u8) -> Result<&mut Guest> {
        self.guests.get_mut(usize::from(machine)).context("there is no such machine")
    }

    /// Starts the daemon in a machine and waits until it has joined.
    pub fn join(&mut self, machine: u8) -> Result<Job> {
        let command = self.daemon(machine)?;
        let guest = self.guest(machine)?;
        let process = guest.background(&command)?;
        let joined = guest.wait_until_printed(&process, "joined as", LIMIT);
        joined.with_context(|| format!("lite-node does not join from machine {machine}"))?;
        Ok(process)
    }

    /// Returns `HOST:PORT` of the manager, as the guest reaches it.
    fn manager(&self) -> Result<String> {
        Ok(format!("10.0.2.2:{}", self.cluster.manager.port()?))
    }

    /// Returns the daemon's command line in a machine.
    pub fn daemon(&self, machine: u8) -> Result<String> {
        let manager = self.manager()?;
        Ok(format!(
            "exec {IN_GUEST}/lite-node --manager {manager} --key-file {IN_GUEST}/cluster.key --name linux{machine} \
             --memory 64M"
        ))
    }

    /// Waits until the cluster has `count` members.
    pub fn members(&self, count: u16, log: &Path) -> Result<()> {
        let mut nodes = self.cluster.manager.client("nodes");
        nodes.args(["--wait", &count.to_string(), "--timeout", "120"]);
        tool::run_ok(&mut nodes, log, LIMIT + LIMIT).map(drop)
    }

    /// Returns a command that runs a job.
    pub fn submit(&self, app: &str, input: &Path, output: &Path) -> Command {
        let mut submit = self.cluster.manager.client("submit");
        submit.args(["--app", app, "--input"]).arg(input).arg("--output").arg(output);
        submit
    }
}

/// Returns the daemon, built and stripped.
pub fn lite_node(log: &Path) -> Result<(&'static str, PathBuf)> {
    Ok(("lite-node", program("lite-node", log)?))
}

/// Strips a program or library that the build of the tests has made.
fn program(file: &str, log: &Path) -> Result<PathBuf> {
    let stripped = paths::state()?.join(file);
    let mut strip = Command::new("strip");
    strip.arg("--strip-unneeded").arg(cargo::built_for_tests(file)?).arg("-o").arg(&stripped);
    tool::run_ok(&mut strip, log, LIMIT)?;
    Ok(stripped)
}

/// Counts words on a Linux process and three appliances. The process is killed in mid-job: the job must fail
/// and name it, and the appliances must continue.
fn word_count(log: &Path) -> Result<()> {
    let mut lab = Lab::of_one(&["--trust-hosts"], &[], &[lite_node(log)?], log)?;
    let process = lab.join(0)?;
    lab.members(APPLIANCES + 1, log)?;

    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let small = Input::SmallText.prepared(log)?;
    let count = |lab: &Lab, nodes: u16| {
        let mut submit = lab.submit("wordcount", &small.input, &output);
        tool::run_ok(submit.args(["--nodes", &nodes.to_string()]), log, LIMIT)?;
        compare(&small.expected, &output, log)
    };
    count(&lab, APPLIANCES + 1)?;

    let large = dir.path().join("large");
    Input::LargeText.write(&large)?;
    let unwanted = dir.path().join("unwanted");
    let said = log.with_extension("killed.log");
    let file = File::create(&said)?;
    let mut submit = lab.submit("wordcount", &large, &unwanted);
    submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = qemu::die_with_this_thread(&mut submit).spawn()?;
    let begun = wait_for(RUNS, &said, &mut child);
    let guest = lab.guest(0)?;
    let alive = guest.status_of(&process)?.is_none();
    if begun.is_err() || !alive {
        let (_, printed) = guest.printed(&process)?;
        bail!("the job does not begin, or lite-node has ended: {}", String::from_utf8_lossy(&printed).trim());
    }
    guest.signal(&process, "KILL")?;
    let killed = Instant::now();
    let status = tool::wait(&mut child, NOTICED)?.context("the job goes on without its node")?;
    let text = std::fs::read_to_string(&said)?;
    ensure!(!status.success(), "the job succeeded without its node");
    ensure!(text.lines().last().is_some_and(|l| l.contains("(linux0)")), "it does not name the node: {text}");
    ensure!(!unwanted.exists(), "there is an output file");
    let line = format!("noticed within {:.2} s\n", killed.elapsed().as_secs_f64());
    std::io::Write::write_all(&mut File::options().append(true).open(log)?, line.as_bytes())?;

    lab.members(APPLIANCES, log)?;
    count(&lab, APPLIANCES)
}

/// Checks that a manager without `--trust-hosts` refuses a process in a cluster of appliances, with one line
/// that says so.
fn refused(log: &Path) -> Result<()> {
    let mut lab = Lab::of_one(&[], &[], &[lite_node(log)?], log)?;
    let command = lab.daemon(0)?;
    let done = lab.guest(0)?.run(&command, LIMIT)?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(!done.status.success(), "it joined");
    ensure!(said.lines().count() == 1 && said.contains("--trust-hosts allows it"), "it says: {said}");
    Ok(())
}

/// Runs the library's examples in the Linux machine, against appliances that run the job `echo`.
fn examples(log: &Path) -> Result<()> {
    let library = program("libferrolite.so", log)?;
    let source = paths::root().join("host/capi");
    let demo = paths::state()?.join("demo-c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(source.join("include"));
    cc.arg(source.join("examples/demo.c")).arg(format!("-Wl,-rpath,{IN_GUEST}"));
    // Linked by name: a program that is linked by a path would look for the library there.
    cc.arg("-L").arg(paths::state()?).args(["-lferrolite", "-lpthread"]);
    tool::run_ok(cc.arg("-o").arg(&demo), log, LIMIT)?;
    let files = [
        ("libferrolite.so", library),
        ("demo-c", demo),
        ("ferrolite.py", source.join("python/ferrolite.py")),
        ("demo.py", source.join("examples/demo.py")),
    ];
    let mut lab = Lab::of_one(&["--trust-hosts"], &["python3"], &files, log)?;
    lab.members(APPLIANCES, log)?;

    let dir = tempfile::tempdir()?;
    let (input, output, said) = (dir.path().join("none"), dir.path().join("out"), dir.path().join("said"));
    File::create(&input)?;
    let mut submit = lab.submit("echo", &input, &output);
    let file = File::create(&said)?;
    submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut job = qemu::die_with_this_thread(&mut submit).spawn()?;
    wait_for(RUNS, &said, &mut job)?;
    let peers: Vec<String> = (0..APPLIANCES).map(|n| format!("node{n}")).collect();
    let (manager, peers) = (lab.manager()?, peers.join(" "));
    for (program, name, end) in [
        (format!("{IN_GUEST}/demo-c"), "demo-c", ""),
        (format!("python3 {IN_GUEST}/demo.py"), "demo-py", "end"),
    ] {
        let key = format!("{IN_GUEST}/cluster.key");
        let words = format!("{program} {manager} {key} {name} ibverbs=rxe0 {peers} {end}");
        let said = lab.guest(0)?.check(&words, LIMIT)?;
        std::io::Write::write_all(&mut File::options().append(true).open(log)?, said.as_bytes())?;
        ensure!(said.ends_with("all is well\n"), "{name} says: {said}");
    }
    let status = tool::wait(&mut job, LIMIT)?.context("the job `echo` goes on")?;
    ensure!(status.success(), "the job `echo` failed: {}", std::fs::read_to_string(&said)?.trim());
    Ok(())
}
