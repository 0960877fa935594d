//! The newest release and this commit in one cluster: each side's manager with the other's nodes, in both
//! orders of an upgrade.

use super::cluster::LIMIT;
use super::commands::Commands;
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Lane, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::cargo::{self, Profile};
use lab::cluster::Cluster;
use lab::processes::{LiteNode, Node};
use lab::release::{self, Release};
use lab::{image, manager, setup, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of appliances.
const NODES: u16 = 2;
/// The memory of a Linux node, in MiB.
const MEMORY: u32 = 64;
/// The time that a node has for each step of a rollout, in seconds.
const WITHIN: &str = "120";
/// The longest silence of a rollout.
const ROLLOUT: Duration = Duration::from_secs(600);
/// The interval at which nodes are looked at.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn cases() -> Vec<Case> {
    let built = Case::new("build::newest-release", |log| {
        Ok(release::newest(log)?.map_or_else(Outcome::Skipped, |_| Outcome::Passed))
    });
    let apart = Case::new("cluster::one-release-apart", one_release_apart);
    vec![built.compiles(Lane::Tools).full_if(true), apart.runs(&["--bin", "lite-node"]).full_if(true)]
}

/// The programs of both sides.
struct Sides {
    release: Release,
    /// The manager of this commit.
    manager: PathBuf,
    /// The daemon of Linux nodes of this commit.
    lite_node: PathBuf,
    /// An image of this commit. It is the one for tests, because that differs from the release's image even
    /// if nothing has changed since.
    image: PathBuf,
}

fn one_release_apart(log: &Path) -> Result<Outcome> {
    let release = match release::newest(log)? {
        Ok(release) => release,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    setup::binutils()?;
    let image = log.with_extension("elf");
    tool::output(Command::new("strip").arg("-o").arg(&image).arg(image::build_for_tests()?.elf))?;
    let (manager, lite_node) = (manager::build(Profile::Dev)?, cargo::built_for_tests("lite-node")?);
    let sides = Sides { release, manager, lite_node, image };
    let log = |name: &str| log.with_extension(format!("{name}.log"));
    sides.nodes_first(&log("nodes-first")).context("nodes upgraded before the manager")?;
    sides.manager_first(&log("manager-first")).context("manager upgraded before the nodes")?;
    Ok(Outcome::Passed)
}

impl Sides {
    /// Starts the release's manager, and appliances with the release's image.
    fn released(&self, log: &Path) -> Result<Cluster> {
        let Release { manager, image, .. } = &self.release;
        let mut cluster = Cluster::under(manager, &["--trust-hosts"], (NODES, 2), image, log)?;
        cluster.boot(NODES, "", None, log)?;
        cluster.joined(log)?;
        count(&cluster, manager, log)?;
        Ok(cluster)
    }

    /// The release's manager rolls this commit's image out, and is replaced itself afterwards.
    fn nodes_first(&self, log: &Path) -> Result<()> {
        let old = &self.release.manager;
        let mut cluster = self.released(log)?;
        self.roll_out(&cluster, old, log).with_context(|| cluster.fates())?;
        count(&cluster, old, log)?;
        count(&cluster, &self.manager, log)?;
        let _released = join(&cluster, "linux0", &self.release.lite_node, log)?;
        count(&cluster, old, log)?;
        let _todays = join(&cluster, "linux1", &self.lite_node, log)?;
        count(&cluster, old, log)?;
        self.replace_manager(&mut cluster, NODES + 2, log)?;
        count(&cluster, &self.manager, log)
    }

    /// This commit's manager takes the cluster over, and rolls this commit's image out.
    fn manager_first(&self, log: &Path) -> Result<()> {
        let new = &self.manager;
        let mut cluster = self.released(log)?;
        self.replace_manager(&mut cluster, NODES, log)?;
        count(&cluster, new, log)?;
        count(&cluster, &self.release.manager, log)?;
        // The machine boots the release's image again, and its node joins a manager of this commit.
        let commands = Commands::by(new, &cluster.manager, log);
        tool::run_ok(&mut commands.command(&["node", "reboot", "node0", "--timeout", "120"]), log, ROLLOUT)
            .with_context(|| cluster.fates())?;
        count(&cluster, new, log)?;
        self.roll_out(&cluster, new, log).with_context(|| cluster.fates())?;
        let _released = join(&cluster, "linux0", &self.release.lite_node, log)?;
        count(&cluster, new, log)
    }

    /// Rolls this commit's image out from the release's, by commands of a build.
    fn roll_out(&self, cluster: &Cluster, program: &Path, log: &Path) -> Result<()> {
        let commands = Commands::by(program, &cluster.manager, log);
        let former = commands.kernel_of(&commands.add(&self.release.image, "release")?)?;
        commands.all_run(&former, NODES)?;
        let image = commands.add(&self.image, "today")?;
        let words = ["rollout", "start", &image, "--within", WITHIN, "--wait"];
        let ended = tool::run(&mut commands.command(&words), log, ROLLOUT)?;
        ensure!(ended.status.success(), "the rollout has failed: {}", ended.output.trim());
        commands.all_run(&commands.kernel_of(&image)?, NODES)
    }

    /// Replaces the release's manager by this commit's on the same state. All nodes must resume, and the
    /// history must have the jobs of before.
    fn replace_manager(&self, cluster: &mut Cluster, nodes: u16, log: &Path) -> Result<()> {
        let lives = |list: &Value| -> Vec<_> {
            let nodes = list["nodes"].as_array().into_iter().flatten();
            nodes.map(|node| ["name", "incarnation", "boot_id"].map(|key| node[key].clone())).collect()
        };
        let commands = Commands::by(&self.release.manager, &cluster.manager, log);
        let before = lives(&commands.list(&["node", "ls"], "before")?);
        let jobs = |program: &Path, cluster: &Cluster| -> Result<Vec<Value>> {
            let commands = Commands::by(program, &cluster.manager, log);
            let list = commands.list(&["job", "ls", "--all"], "jobs")?;
            let jobs = list["jobs"].as_array().context("a list of jobs")?;
            Ok(jobs.iter().map(|job| job["job"].clone()).collect())
        };
        let ended = jobs(&self.release.manager, cluster)?;
        ensure!(before.len() == usize::from(nodes) && !ended.is_empty(), "{before:?}, {ended:?}");
        cluster.manager.stop_and_start(&self.manager)?;
        let begun = Instant::now();
        loop {
            let commands = Commands::by(&self.manager, &cluster.manager, log);
            let list = commands.list(&["node", "ls"], "after")?;
            let after = lives(&list);
            ensure!(after == before, "the nodes were {before:?}, and are {after:?}");
            let states = list["nodes"].as_array().into_iter().flatten();
            if states.into_iter().all(|node| node["state"] == "ready") {
                break;
            }
            if begun.elapsed() > LIMIT {
                bail!("not all nodes have resumed: {list}");
            }
            std::thread::sleep(LOOK);
        }
        let after = jobs(&self.manager, cluster)?;
        ensure!(after == ended, "the history had jobs {ended:?}, and has {after:?}");
        Ok(())
    }
}

/// Starts a Linux node on the fabric, and waits until it has joined. The last character of its name is the
/// number of the node.
fn join(cluster: &Cluster, name: &str, program: &Path, log: &Path) -> Result<LiteNode> {
    let place = usize::from(NODES) + usize::from(name.ends_with('1'));
    let consoles = log.parent().context("a directory of logs")?;
    let node = Node {
        name: name.to_owned(),
        socket: cluster.fabric().socket(place),
        memory_mb: MEMORY,
        cpus: 1,
        settings: &[],
        consoles,
    };
    let mut node = node.start(program, &cluster.manager)?;
    let begun = Instant::now();
    let commands =
        Commands::by(cluster.manager.client("nodes").get_program().as_ref(), &cluster.manager, log);
    loop {
        node.check()?;
        let list = commands.list(&["node", "ls"], "joins")?;
        let mut nodes = list["nodes"].as_array().into_iter().flatten();
        if nodes.any(|node| node["name"] == name && node["state"] == "ready") {
            return Ok(node);
        }
        ensure!(begun.elapsed() < LIMIT, "{name} does not join: {list}");
        std::thread::sleep(LOOK);
    }
}

/// Counts the words of a text on all nodes, by the command of a build.
fn count(cluster: &Cluster, program: &Path, log: &Path) -> Result<()> {
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let output = log.with_extension("out");
    let commands = Commands::by(program, &cluster.manager, log);
    let mut job = commands.command(&["job", "submit", "--app", "wordcount"]);
    job.arg("--input").arg(&input).arg("--output").arg(&output);
    tool::run_ok(&mut job, log, LIMIT).with_context(|| cluster.fates())?;
    compare(&expected, &output, log)
}
