//! `cargo xtask bench post`: compares the cost of posting a request and polling a completion in our mlx4
//! driver with rdma-core's.

use super::callgrind::{self, Calls, Count, Profile};
use super::destination::Options;
use super::gaps::Gaps;
use super::host::Host;
use super::program;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::{Result, anyhow, ensure};
use lab::cx3::lab::address;
use lab::cx3::{Lab, Plan, Tools};
use lab::{paths, ui};
use qemu::cx3::CardConfig;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time limit of a program, building included.
const LIMIT: Duration = Duration::from_secs(900);
/// The number of operations that are counted. They are polled 16 at a time.
pub(super) const COUNTED: u32 = 1600;
/// The name of the guest's program, there and among our sources.
const PROGRAM: &str = "post-cost";

/// The output of `cargo bench -p cards` for one batch length, with which WRITEs are posted and polled.
#[derive(Debug, Deserialize, Serialize)]
struct Batch {
    batch: u32,
    post_ns: f64,
    poll_ns: f64,
    requests_per_doorbell: f64,
}

/// Instructions for one work request.
#[derive(Clone, Copy, Debug, Serialize)]
struct Instructions {
    post: f64,
    poll: f64,
}

impl Instructions {
    /// Returns the instructions per work request of the calls with the names of the posting and of the
    /// polling function.
    fn of(profile: &Profile, [post, poll]: [&str; 2], is: impl Fn(&Calls, &str) -> bool) -> Result<Self> {
        let each = |name: &str| {
            let those = profile.calls.iter().filter(|calls| is(calls, name));
            let (count, sum) = those.fold((0, 0), |(n, sum), c| (n + c.count, sum + c.instructions));
            ensure!(count > 0, "the profile tells of no {name}");
            Ok(sum as f64 / f64::from(COUNTED))
        };
        Ok(Self { post: each(post)?, poll: each(poll)? })
    }

    fn sum(self) -> f64 {
        self.post + self.poll
    }
}

/// The instructions that were counted.
#[derive(Clone, Copy, Debug, Serialize)]
struct Counts {
    /// Our driver's, posting one at a time.
    ours: Option<Instructions>,
    /// Our driver's, posting in batches.
    ours_batched: Option<Instructions>,
    /// rdma-core's, posting one at a time.
    rdma_core: Option<Instructions>,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    native: Vec<Batch>,
    #[serde(flatten)]
    counts: Counts,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// Runs and prints all measurements.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.begin()?;
    let program = ui::step("the benchmark of the driver", || program::build("cards", "post"))?;
    let native: Vec<Batch> = ui::step("our driver, native", || program::figures(&program, false))?;
    let mut gaps = Gaps::default();
    let counts = Counts {
        ours: gaps.attempt("our driver's instructions, by valgrind", || Ok(ours(&program, "write-64")?.0))?,
        ours_batched: gaps.attempt("our driver's instructions in batches, by valgrind", || {
            Ok(ours(&program, "write-64-by-16")?.0)
        })?,
        rdma_core: gaps.attempt("rdma-core's instructions, in a Linux guest", rdma_core)?,
    };

    let targets = targets(&native, counts);
    for table in tables(&native, counts) {
        println!("\n{}", table.text());
    }
    println!("\n{}", target::table(&targets, gaps.all()).text());
    let figures = Figures { host, native, counts, targets, gaps };
    destination.end(&figures, &figures.targets, &figures.gaps)
}

/// Counts an operation of our driver by the benchmark `post` of cards, which has been built. `operation` is
/// the operation's name there.
pub(super) fn count(program: &Path, operation: &str) -> Result<Count> {
    let (instructions, wire) = ours(program, operation)?;
    Ok(Count { instructions: instructions.sum(), wire })
}

/// Does the work of [`count`], with the instructions for posting and polling apart.
fn ours(program: &Path, operation: &str) -> Result<(Instructions, [f64; 2])> {
    let arguments = ["--count", operation, &COUNTED.to_string()];
    let (profile, wire) = callgrind::profile_and_wire(program, &arguments)?;
    let is = |c: &Calls, name: &str| {
        c.callee.function.contains(name)
            && c.callee.function.contains("mlx4")
            && !c.caller.function.contains(name)
    };
    let post = if operation.starts_with("receive") { "post_recv" } else { "post_send" };
    let instructions = Instructions::of(&profile, [post, "poll_cq"], is)?;
    Ok((instructions, wire.map(|number| number as f64 / f64::from(COUNTED))))
}

/// Runs rdma-core's driver in a guest under callgrind, on an emulated card, by our program over libibverbs.
/// The calls of that program into `libmlx4` count.
fn rdma_core() -> Result<Instructions> {
    const PROFILE: &str = "/tmp/callgrind";
    let tools = Tools::to_measure()?.map_err(|why| anyhow!("{why}"))?;
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "ibverbs",
        "--features",
        "libibverbs",
        "--example",
        PROGRAM,
    ]);
    program::run(&mut cargo)?;
    let there = format!("/opt/{PROGRAM}");
    let plan = Plan {
        packages: &["valgrind"],
        memory_mib: 2048,
        files: vec![(there.clone(), paths::target().join("debug/examples").join(PROGRAM))],
        cards: vec![CardConfig::default()],
        ..Plan::default()
    };
    let mut lab = Lab::boot(&tools, &plan, &program::log()?)?;
    let command = format!(
        "valgrind --tool=callgrind --callgrind-out-file={PROFILE} {there} {} {COUNTED} >&2 && cat {PROFILE}",
        address(0)
    );
    let output = lab.guest(0)?.run(&command, LIMIT)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{PROGRAM} failed: {said}");
    lab.end()?;
    let is = |c: &Calls, name: &str| {
        c.caller.function.contains(name)
            && c.callee.object.contains("libmlx4")
            && !c.caller.object.contains("libmlx4")
    };
    let profile = Profile::parse(&String::from_utf8_lossy(&output.stdout));
    Instructions::of(&profile, ["post_send", "poll"], is)
}

fn targets(native: &[Batch], counts: Counts) -> Vec<Target> {
    let alone = native.iter().find(|batch| batch.batch == 1).map(|batch| batch.post_ns + batch.poll_ns);
    let Counts { ours, ours_batched, rdma_core } = counts;
    let share = ours.zip(rdma_core).map(|(ours, theirs)| ours.sum() / theirs.sum());
    let [single, batched] = [ours, ours_batched].map(|counted| counted.map(Instructions::sum));
    vec![
        Target::new("post and poll of a 64 B inline WRITE", alone, "ns", Bound::AtMost(60.0)),
        Target::new("instructions, posted one at a time", single, "", Bound::AtMost(330.0)),
        Target::new("instructions, posted 16 at a time", batched, "", Bound::AtMost(220.0)),
        Target::new("instructions, as a share of rdma-core's", share, "", Bound::AtMost(1.0)),
    ]
}

fn tables(native: &[Batch], counts: Counts) -> [Table; 2] {
    let Counts { ours, ours_batched, rdma_core } = counts;
    let remark = "cargo bench -p cards: the driver on a card that nobody is behind; the benchmark writes the completions";
    let heads = ["posted and polled at once", "post, ns", "poll, ns", "requests per doorbell"];
    let mut times = Table::new("64 B inline WRITE by our driver, native", remark, &heads);
    for batch in native {
        let figures = [batch.post_ns, batch.poll_ns, batch.requests_per_doorbell].map(|f| maybe(Some(f)));
        let [post, poll, each] = figures;
        times.row([batch.batch.to_string(), post, poll, each]);
    }
    let remark = "posted one at a time or 16 at a time, polled 16 at a time, all that is called included; ours: the benchmark under callgrind \
                  on this machine; rdma-core: libmlx4 of Debian under callgrind in a Linux guest with an emulated card, without \
                  libibverbs and our program above it";
    let mut counts = Table::new("Instructions for one", remark, &["driver", "post", "poll", "together"]);
    let rows = [("ours", ours), ("ours, 16 at a time", ours_batched), ("rdma-core's", rdma_core)];
    for (driver, counted) in rows {
        let [post, poll, sum] =
            [counted.map(|c| c.post), counted.map(|c| c.poll), counted.map(Instructions::sum)].map(maybe);
        counts.row([driver.to_owned(), post, poll, sum]);
    }
    [times, counts]
}
