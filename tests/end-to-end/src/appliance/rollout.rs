//! Rollouts of images on appliances that do jobs: a good image, and four kinds of bad ones.

use super::cluster::LIMIT;
use super::commands::Commands;
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, anyhow, bail, ensure};
use handover::Kernel;
use lab::cluster::Cluster;
use lab::{image, setup, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The text before the letter of a flaw in an image for tests (`kernel/src/node/flaw.rs`).
const FLAW: &[u8] = b"flaw of a selftest: ";
/// The letter of an image without a flaw that nodes run at first, and of the good image.
const FORMER: u8 = b'-';
const GOOD: u8 = b'g';
/// The flaws of bad images, each with a part of the reason that the manager shows.
const FLAWS: [(u8, &str); 4] = [
    // The first instruction is invalid, so the processor shuts down, and the machine is reset.
    (b'b', "it has joined with another image than the wanted one"),
    (b'p', "it has ended: "),
    (b'h', "it has joined with another image than the wanted one"),
    (b'r', "memory of "),
];
/// An instruction that is invalid (`ud2`).
const INVALID: [u8; 2] = [0x0f, 0x0b];
/// The number of bytes by which the first instructions are found in the file.
const CODE: usize = 32;
/// The time that a node has for each step, in seconds: emulated machines share few processors.
const WITHIN: &str = "120";
/// The interval at which the states of all nodes are looked at.
const LOOK: Duration = Duration::from_millis(300);
/// The longest silence of a rollout.
const ROLLOUT: Duration = Duration::from_secs(600);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, plan: Plan| {
        Case::new(format!("cluster::{name}"), move |log| plan.check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("rollout-on-3-nodes", Plan { nodes: 3, away: 1, flaws: &FLAWS[..2] }),
        case("rollout-on-8-nodes", Plan { nodes: 8, away: 2, flaws: &FLAWS }).full_if(true),
    ]
}

/// A cluster, and the images that are rolled out there before the good one.
#[derive(Clone, Copy)]
struct Plan {
    nodes: u16,
    /// The most nodes that may be out of service at a time.
    away: u16,
    flaws: &'static [(u8, &'static str)],
}

/// Returns the place of bytes that occur once in an image.
fn place_of(part: &[u8], image: &[u8]) -> Result<usize> {
    let mut places =
        image.windows(part.len()).enumerate().filter(|(_, bytes)| *bytes == part).map(|(at, _)| at);
    match (places.next(), places.next()) {
        (Some(at), None) => Ok(at),
        (None, _) => bail!("the image lacks a part that the test changes"),
        _ => bail!("the image has a part twice that the test changes"),
    }
}

/// Returns the image with a flaw.
fn with_flaw(base: &[u8], flaw: u8) -> Result<Vec<u8>> {
    let mut image = base.to_vec();
    let letter = place_of(FLAW, base)? + FLAW.len();
    *image.get_mut(letter).context("the letter of the flaw")? = flaw;
    if flaw == b'b' {
        let kernel = Kernel::parse(base).map_err(|error| anyhow!(error.text()))?;
        let entry = u64::from(kernel.entry());
        let code = kernel.segments().find_map(|segment| {
            let at = usize::try_from(entry.checked_sub(segment.at)?).ok()?;
            segment.bytes.get(at..at + CODE)
        });
        let at = place_of(code.context("the entry is in no segment")?, base)?;
        image.get_mut(at..at + INVALID.len()).context("the entry")?.copy_from_slice(&INVALID);
    }
    Ok(image)
}

impl Commands<'_> {
    /// Adds an image, and returns its SHA-256.
    pub(super) fn add(&self, file: &Path, version: &str) -> Result<String> {
        let file = file.to_str().context("a path that is text")?;
        let said = self.log.with_extension("add.log");
        let added =
            tool::run_ok(&mut self.command(&["image", "add", file, "--version", version]), &said, LIMIT)?;
        let sha256 = added.split_whitespace().last().context("a digest")?;
        ensure!(sha256.len() == 64, "`image add` says {added}");
        Ok(sha256.to_owned())
    }

    /// Returns the digest of the kernel in an image that is kept.
    pub(super) fn kernel_of(&self, sha256: &str) -> Result<String> {
        let images = self.list(&["image", "ls"], "images")?;
        let mut images = images["images"].as_array().into_iter().flatten();
        let image = images.find(|image| image["sha256"] == sha256).context("an image that was added")?;
        Ok(image["kernel"].as_str().context("a digest")?.to_owned())
    }

    /// Waits until all nodes are in service and run a kernel. A node tells its image after it has joined.
    pub(super) fn all_run(&self, kernel: &str, count: u16) -> Result<()> {
        let begun = Instant::now();
        loop {
            let nodes = self.list(&["node", "ls"], "nodes")?;
            let nodes = nodes["nodes"].as_array().context("a list of nodes")?;
            ensure!(nodes.len() == usize::from(count), "there are {} nodes", nodes.len());
            let Some(node) = nodes.iter().find(|n| n["state"] != "ready" || n["image"] != kernel) else {
                return Ok(());
            };
            ensure!(begun.elapsed() < LIMIT, "not in service with {kernel}: {node}");
            std::thread::sleep(LOOK);
        }
    }
}

/// Submits a word count again and again until `stop` is true. Returns the number of jobs.
fn jobs(commands: &Commands<'_>, nodes: u16, stop: &AtomicBool) -> Result<u32> {
    let log = commands.log;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let (output, said) = (log.with_extension("load.out"), log.with_extension("load.log"));
    let mut done = 0;
    while !stop.load(Ordering::SeqCst) {
        let mut job = commands.command(&["job", "submit", "--app", "wordcount"]);
        job.arg("--nodes").arg(nodes.to_string()).arg("--input").arg(&input).arg("--output").arg(&output);
        tool::run_ok(&mut job, &said, LIMIT).with_context(|| format!("job {done} of the load has failed"))?;
        compare(&expected, &output, log)?;
        done += 1;
    }
    Ok(done)
}

/// Looks at all nodes until `stop` is true. Returns the most nodes that were not in service at a time.
fn most_away(commands: &Commands<'_>, stop: &AtomicBool) -> Result<usize> {
    let mut most = 0;
    while !stop.load(Ordering::SeqCst) {
        let nodes = commands.list(&["node", "ls"], "look")?;
        let nodes = nodes["nodes"].as_array().context("a list of nodes")?;
        most = most.max(nodes.iter().filter(|node| node["state"] != "ready").count());
        std::thread::sleep(LOOK);
    }
    Ok(most)
}

/// Returns the result of a thread.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the test has panicked"))?
}

impl Plan {
    /// Rolls out the bad images and the good one while jobs go on.
    fn check(self, log: &Path) -> Result<()> {
        setup::binutils()?;
        let (dir, stripped) = (tempfile::tempdir()?, log.with_extension("elf"));
        tool::output(Command::new("strip").arg("-o").arg(&stripped).arg(image::build_for_tests()?.elf))?;
        let base = std::fs::read(&stripped)?;
        let file = |flaw: u8| -> Result<PathBuf> {
            let file = dir.path().join(format!("image-{}", char::from(flaw)));
            std::fs::write(&file, with_flaw(&base, flaw)?)
                .with_context(|| format!("cannot write {}", file.display()))?;
            Ok(file)
        };
        let former = file(FORMER)?;
        let cluster = Cluster::booting_again(self.nodes, &former, log)?;
        cluster.joined(log)?;
        let commands = Commands::new(&cluster.manager, log);
        let kernel = commands.kernel_of(&commands.add(&former, "former")?)?;
        commands.all_run(&kernel, self.nodes)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| jobs(&commands, self.nodes - self.away, &stop));
            let looks = scope.spawn(|| most_away(&commands, &stop));
            let rolled = self.roll_out(&commands, &kernel, file);
            stop.store(true, Ordering::SeqCst);
            let (jobs, away) = (joined(load), joined(looks));
            rolled.with_context(|| cluster.fates())?;
            let (jobs, away) = (jobs?, away?);
            ensure!(jobs > 0, "no job was done meanwhile");
            ensure!(
                (1..=usize::from(self.away)).contains(&away),
                "{away} nodes were out of service at a time"
            );
            println!("{jobs} jobs were done meanwhile, and at most {away} nodes were out of service");
            Ok(())
        })
    }

    fn roll_out(
        self,
        commands: &Commands<'_>,
        former: &str,
        file: impl Fn(u8) -> Result<PathBuf>,
    ) -> Result<()> {
        let away = self.away.to_string();
        let start = |image: &str| {
            let words = ["rollout", "start", image, "--max-unavailable", &away, "--within", WITHIN, "--wait"];
            let said = commands.log.with_extension(format!("rollout-{}.log", &image[..8]));
            tool::run(&mut commands.command(&words), &said, ROLLOUT)
        };
        for (flaw, reason) in self.flaws {
            let name = char::from(*flaw).to_string();
            let image = commands.add(&file(*flaw)?, &name)?;
            let ended = start(&image)?;
            ensure!(!ended.status.success(), "the rollout of the bad image {name} has succeeded");
            let status = commands.list(&["rollout", "status"], "status")?;
            let steps: Vec<_> = status["nodes"].as_array().into_iter().flatten().collect();
            ensure!(
                status["state"] == "failed"
                    && steps.iter().filter(|node| node["step"] == "returned").count() == 1
                    && steps.iter().filter(|node| node["step"] == "waiting").count() == steps.len() - 1,
                "after the bad image {name}: {status}"
            );
            let why = status["reason"].as_str().unwrap_or_default();
            ensure!(why.contains(reason), "the bad image {name} has failed because of `{why}`");
            commands.all_run(former, self.nodes)?;
        }
        let image = commands.add(&file(GOOD)?, "good")?;
        let ended = start(&image)?;
        ensure!(ended.status.success(), "the rollout has failed: {}", ended.output.trim());
        commands.all_run(&commands.kernel_of(&image)?, self.nodes)
    }
}
