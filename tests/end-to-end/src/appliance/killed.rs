//! Tests in which the manager is killed and started again while appliances do a job.

use super::cluster::{LIMIT, count_words};
use crate::job::disturbed::wait_for;
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::appliances::SUCCESS;
use lab::cluster::Cluster;
use lab::tool;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The number of times that the manager is killed in the long test.
const KILLS: u32 = 50;
/// The longest time between two of these, in milliseconds: a few times what the input takes, so that some
/// moments are in the input, some in the work, and some in the output.
const LONGEST_PAUSE_MS: u64 = 15_000;
/// The memory of each of the four appliances in the long test, in MiB: for its share of 200 MB.
const MEMORY_MIB: u32 = 512;
/// The interval at which a job is looked at.
const LOOK: Duration = Duration::from_millis(5);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("cluster::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("job-outlasts-a-killed-manager", a_few_times),
        case("key-rotation-loses-no-node", rotated),
        case("jobs-outlast-fifty-kills-of-the-manager", many_times).full_if(true),
    ]
}

/// A submission that runs.
struct Submission {
    process: Child,
    /// The file with its output for people.
    said: PathBuf,
}

impl Submission {
    /// Submits a word count, and waits until it runs, or waits in the queue.
    fn start(cluster: &Cluster, input: &Path, output: &Path, log: &Path) -> Result<Self> {
        let name = output.file_name().and_then(|name| name.to_str()).context("the name of the output")?;
        let said = log.with_extension(format!("submit-{name}.log"));
        let file = File::create(&said)?;
        let mut submit = count_words(cluster, input, output);
        submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut process = qemu::die_with_this_thread(&mut submit).spawn()?;
        wait_for("job ", &said, &mut process)?;
        Ok(Self { process, said })
    }

    /// Waits until the job has ended, for at most `limit`. Returns false if it still runs.
    fn ends(&mut self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.try_wait()? {
                ensure!(status.success(), "the job failed: {}", std::fs::read_to_string(&self.said)?.trim());
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Kills the manager of two nodes, starts it again, and waits until both nodes have resumed.
fn killed_and_resumed(cluster: &mut Cluster) -> Result<()> {
    cluster.manager.kill_and_restart()?;
    resumed(cluster)
}

/// Waits until two nodes have resumed.
fn resumed(cluster: &mut Cluster) -> Result<()> {
    for _ in 0..2 {
        let resumed = cluster.manager.wait_for_line(" resumes from ", LIMIT);
        resumed.context("the manager does not say that a node resumes")?;
    }
    Ok(())
}

/// Kills the manager several times during a job, or stops it in good order, and starts it again. The nodes
/// must go on as the members that they were, and the job must have its result.
fn a_few_times(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(2, "", None, log)?;
    cluster.joined(log)?;
    let before = incarnations(&cluster, "before", log)?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let mut job = Submission::start(&cluster, &input, &output, log)?;
    for (pause, orderly) in [(0, false), (1000, true), (200, false)] {
        std::thread::sleep(Duration::from_millis(pause));
        if orderly {
            cluster.manager.stop_and_restart()?;
            resumed(&mut cluster)?;
        } else {
            killed_and_resumed(&mut cluster)?;
        }
    }
    ensure!(job.ends(LIMIT)?, "the job does not end");
    compare(&expected, &output, log)?;
    unchanged(&before, &cluster, log)?;
    end(&cluster, 2, log)
}

/// Replaces the cluster key during a job. The nodes, which have the former key, and the client must go on as
/// they were, a node with the new key must join, and the former key must end with its retirement.
fn rotated(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(2, "", None, log)?;
    cluster.joined(log)?;
    let before = incarnations(&cluster, "before", log)?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let key = cluster.manager.key().to_owned();
    let former = dir.path().join("former.key");
    std::fs::copy(&key, &former)?;
    let mut job = Submission::start(&cluster, &input, &output, log)?;
    change_key(&cluster, "rotate", log)?;
    ensure!(std::fs::read(&key)? != std::fs::read(&former)?, "the key is the former one");
    killed_and_resumed(&mut cluster)?;
    ensure!(job.ends(LIMIT)?, "the job does not end");
    compare(&expected, &output, log)?;
    // With the new key, and with the former one.
    unchanged(&before, &cluster, log)?;
    tool::run_ok(&mut list_with(&former, &cluster), log, LIMIT)?;
    end(&cluster, 2, log)?;
    change_key(&cluster, "retire", log)?;
    cluster.manager.kill_and_restart()?;
    let refused = tool::run(&mut list_with(&former, &cluster), log, LIMIT)?;
    ensure!(refused.status.code() == Some(4), "the former key is accepted: {}", refused.output.trim());
    Ok(())
}

/// Returns a command that lists the nodes with a key.
fn list_with(key: &Path, cluster: &Cluster) -> Command {
    let mut list = Command::new(cluster.manager.client("nodes").get_program());
    list.args(["nodes", "--manager", cluster.manager.address(), "--key-file"]).arg(key);
    list
}

/// Rotates or retires the cluster key.
fn change_key(cluster: &Cluster, verb: &str, log: &Path) -> Result<()> {
    let mut change = Command::new(cluster.manager.client("key").get_program());
    tool::run_ok(change.args(["key", verb, "--key-file"]).arg(cluster.manager.key()), log, LIMIT)?;
    Ok(())
}

/// Kills the manager fifty times, at moments that a seed decides, while four appliances count the words of
/// 200 MB again and again, and the next count waits in the queue.
fn many_times(log: &Path) -> Result<()> {
    let mut cluster = Cluster::with_memory(4, MEMORY_MIB, log)?;
    cluster.joined(log)?;
    let before = incarnations(&cluster, "before", log)?;
    let Prepared { input, expected } = Input::HugeText.prepared(log)?;
    let dir = tempfile::tempdir()?;
    let output = |job: u32| dir.path().join(format!("out-{job}"));
    let (mut pauses, mut kills, mut jobs, mut waited) = (Pauses(0x9e37_79b9_7f4a_7c15), 0, 0, 0);
    let mut job = Submission::start(&cluster, &input, &output(jobs), log)?;
    loop {
        let goes_on = kills < KILLS;
        let next =
            goes_on.then(|| Submission::start(&cluster, &input, &output(jobs + 1), log)).transpose()?;
        if let Some(next) = &next {
            waited += u32::from(std::fs::read_to_string(&next.said)?.contains(" waits: "));
        }
        while kills < KILLS && !job.ends(pauses.next())? {
            cluster.manager.kill_and_restart()?;
            kills += 1;
        }
        ensure!(job.ends(LIMIT)?, "job {jobs} does not end within {} s", LIMIT.as_secs());
        compare(&expected, &output(jobs), log)?;
        unchanged(&before, &cluster, log)?;
        std::fs::remove_file(output(jobs))?;
        jobs += 1;
        match next {
            Some(next) => job = next,
            None => break,
        }
    }
    let mut log_file = File::options().create(true).append(true).open(log)?;
    writeln!(log_file, "{kills} kills in {jobs} jobs, of which {waited} have waited in the queue")?;
    ensure!(waited > 0, "no job has waited in the queue");
    end(&cluster, 4, log)
}

/// Pauses of a seed.
struct Pauses(u64);

impl Pauses {
    /// Returns the next pause (xorshift).
    fn next(&mut self) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(self.0 % LONGEST_PAUSE_MS)
    }
}

/// Checks that all nodes have the incarnations and boots that they had.
fn unchanged(before: &Value, cluster: &Cluster, log: &Path) -> Result<()> {
    let after = incarnations(cluster, "after", log)?;
    ensure!(*before == after, "the nodes were {before}, and are {after}");
    Ok(())
}

/// Returns the names, incarnations and boots of all nodes.
fn incarnations(cluster: &Cluster, when: &str, log: &Path) -> Result<Value> {
    let json = log.with_extension(format!("{when}.json"));
    tool::run_ok(cluster.manager.client("nodes").arg("--json").arg(&json), log, LIMIT)?;
    let nodes: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let of = |node: &Value| ["name", "incarnation", "boot_id"].map(|key| node[key].clone());
    let all = nodes["nodes"].as_array().context("a list of nodes")?;
    Ok(all.iter().map(|node| Value::from(of(node).to_vec())).collect())
}

/// Ends a cluster of `count` appliances in good order.
fn end(cluster: &Cluster, count: u16, log: &Path) -> Result<()> {
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    (0..count).try_for_each(|_| cluster.ends(&SUCCESS, LIMIT))
}
