//! The operations of applications, counted in captures of the network.

use super::capture;
use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::tool;
use roce::wire::{Frame, Operation};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The longest silence of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(name, move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![case("log::commits-on-the-wire", commits), case("graph::supersteps-on-the-wire", supersteps)]
}

/// The requests between nodes in a run. A packet that was repeated counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Requests {
    fetch_adds: i64,
    /// WRITEs without immediate data.
    writes: i64,
    /// WRITEs with immediate data: messages, calls, and their replies.
    messages: i64,
    reads: i64,
}

impl Requests {
    /// Counts the requests in a run of an application.
    fn of(app: &str, nodes: &str, args: &[&str], log: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let [input, pcap, output] = ["in", "pcap", "out"].map(|name| dir.path().join(name));
        std::fs::write(&input, "")?;
        let mut run = xtask();
        run.args(["run", "--app", app, "--nodes", nodes]).args(args.iter().flat_map(|arg| ["--arg", arg]));
        run.arg("--input").arg(&input).arg("--pcap").arg(&pcap).arg("--output").arg(&output);
        tool::run_ok(&mut run, log, LIMIT)?;
        let bytes = std::fs::read(&pcap).context("no capture")?;
        let (mut requests, mut seen) = (Self::default(), BTreeSet::new());
        for frame in capture::frames(&bytes).context("the capture is cut")? {
            let Ok(frame) = Frame::parse(frame) else { continue };
            let bth = &frame.packet.bth;
            let count = match bth.opcode.operation {
                Operation::FetchAdd => &mut requests.fetch_adds,
                Operation::WriteOnly | Operation::WriteLast => &mut requests.writes,
                Operation::WriteOnlyImm | Operation::WriteLastImm => &mut requests.messages,
                Operation::ReadRequest => &mut requests.reads,
                _ => continue,
            };
            if seen.insert((frame.headers.ethernet.dst.0, bth.dest_qp, bth.psn.get())) {
                *count += 1;
            }
        }
        Ok(requests)
    }

    fn minus(self, other: Self) -> Self {
        Self {
            fetch_adds: self.fetch_adds - other.fetch_adds,
            writes: self.writes - other.writes,
            messages: self.messages - other.messages,
            reads: self.reads - other.reads,
        }
    }
}

/// Checks that a commit is one FETCH_ADD and one WRITE. The log's directory and its first segment are on one
/// of two nodes, so the commits of the other one are on the wire.
fn commits(log: &Path) -> Result<()> {
    let of = |commits: &str| Requests::of("log", "2", &[commits, "bytes=100"], log);
    let added = of("commits=700")?.minus(of("commits=200")?);
    ensure!((added.fetch_adds, added.writes) == (500, 500), "500 commits more are {added:?}");
    Ok(())
}

/// Checks that a superstep of PageRank is one message from each node to each other one, which LITE answers, and
/// that nothing is read or written besides. LITE may have a few messages of its own in the longer run.
fn supersteps(log: &Path) -> Result<()> {
    let graph = ["generate=uniform", "scale=6", "degree=8"];
    let of = |iterations: &str| {
        let args: Vec<&str> = graph.into_iter().chain([iterations]).collect();
        Requests::of("pagerank", "3", &args, log)
    };
    let added = of("iterations=30")?.minus(of("iterations=10")?);
    let messages = 20 * 3 * 2;
    let expected = 2 * messages - messages / 10..2 * messages + messages / 10;
    ensure!(expected.contains(&added.messages), "20 supersteps more are {added:?}");
    ensure!((added.reads, added.writes, added.fetch_adds) == (0, 0, 0), "20 supersteps more are {added:?}");
    Ok(())
}
