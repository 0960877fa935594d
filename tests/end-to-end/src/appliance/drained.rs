//! The drain of a node whose memory other nodes use all along.

use super::cluster::{LIMIT, wait_for_console};
use super::commands::Commands;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cluster::Cluster;
use lab::tool;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The nodes of the job, by rank, the node that is drained, and one more that has room.
const USERS: [&str; 2] = ["node0", "node1"];
const DRAINED: &str = "node2";
const NODES: u16 = 4;
/// The longest time that an operation may take while the region moves.
const LONGEST: Duration = Duration::from_secs(1);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, plan: Plan| {
        Case::new(format!("cluster::{name}"), move |log| plan.check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("drain-of-memory-in-use", Plan { mib: 16, memory: 96, seconds: 120 }),
        case("drain-of-1-gb-in-use", Plan { mib: 1024, memory: 1280, seconds: 900 }).full_if(true),
    ]
}

/// The sizes of a test.
#[derive(Clone, Copy)]
struct Plan {
    /// The length of the region in MiB.
    mib: u64,
    /// The memory of each machine in MiB.
    memory: u32,
    /// The longest time of the drain, in seconds.
    seconds: u64,
}

impl Plan {
    /// Drains a node while two others use a region of it. No operation fails, and none takes too long.
    fn check(self, log: &Path) -> Result<()> {
        let Self { mib, memory, seconds } = self;
        let cluster = Cluster::with_memory(NODES, memory, log)?;
        cluster.joined(log)?;
        let commands = Commands::new(&cluster.manager, log);
        let nodes = commands.list(&["node", "ls"], "nodes")?;
        let node = nodes["nodes"].as_array().and_then(|all| all.iter().find(|node| node["name"] == DRAINED));
        let number = node.and_then(|node| node["node"].as_u64()).context("the number of a node")?;
        let (output, json) = (log.with_extension("out"), log.with_extension("job.json"));
        let mut submit = commands.command(&["job", "submit", "--app", "away"]);
        submit.args(USERS.iter().flat_map(|name| ["--on", name]));
        submit.arg("--output").arg(&output).arg("--json").arg(&json);
        submit.args(["--args", &number.to_string(), &mib.to_string(), &seconds.to_string()]);
        let said = log.with_extension("job.log");
        let silence = LIMIT + Duration::from_secs(seconds);
        std::thread::scope(|scope| {
            let job = scope.spawn(|| tool::run_ok(&mut submit, &said, silence));
            let drained = self.drain(&commands, log);
            let job = job.join().map_err(|_| anyhow::anyhow!("a thread of the test has panicked"))?;
            // A job that has failed keeps the drain from its end.
            job.with_context(|| cluster.fates())?;
            drained
        })?;
        let report: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
        judge(&report)
    }

    fn drain(self, commands: &Commands<'_>, log: &Path) -> Result<()> {
        wait_for_console(0, "away: the region is in use", log)?;
        let seconds = self.seconds.to_string();
        let words = ["node", "drain", DRAINED, "--reason", "a new fan", "--wait", &seconds];
        let said = log.with_extension("drain.log");
        tool::run_ok(&mut commands.command(&words), &said, LIMIT + Duration::from_secs(self.seconds))?;
        let nodes = commands.list(&["node", "ls"], "drained")?;
        let states = nodes["nodes"].as_array().into_iter().flatten();
        let mut states = states.filter(|node| node["name"] == DRAINED).map(|node| &node["state"]);
        ensure!(states.next().is_some_and(|state| state == "drained"), "it is not drained: {nodes}");
        Ok(())
    }
}

/// Judges the report of the job.
fn judge(report: &Value) -> Result<()> {
    let parts = report["reports"].as_array().context("the reports of the nodes")?;
    ensure!(parts.len() == USERS.len(), "{} nodes have reported", parts.len());
    let mut longest = 0;
    for part in parts {
        let count = |name: &str| part["counts"][name].as_u64().with_context(|| format!("no count {name}"));
        println!("{}: {}", part["name"], part["counts"]);
        ensure!(count("operations")? > 0 && count("quiet")? > 0, "a node has done nothing: {part}");
        ensure!(
            (count("failed")?, count("wrong")?) == (0, 0),
            "operations have failed, or were wrong: {part}"
        );
        longest = longest.max(count("longest_us")?);
    }
    let longest = Duration::from_micros(longest);
    ensure!(longest <= LONGEST, "an operation has taken {longest:?} while the region moved");
    Ok(())
}
