//! The execution of cases: one by one, on all nodes in parallel; the first node learns all results.

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::pin::{Pin, pin};
use core::time::Duration;
use futures_util::future::{Either, select};
use lite::{Error, FunctionId, Lite, NodeId, RpcOptions, RpcServer};

/// The time limit of a case on a node.
pub const LIMIT: Duration = Duration::from_secs(90);
/// The time limit for another node's report on a case to arrive, and for the first node's answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(120);
/// The function of the first node to which the others report.
const REPORT_FUNCTION: FunctionId = 0x7e56_0000;
/// The maximum length of a transmitted reason, in bytes.
const LONGEST_REASON: usize = 300;

/// The future of a case on one node.
pub type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A named case: what each node does in it.
#[derive(Clone, Copy)]
pub struct Case {
    /// The subject and the name, such as `regions::names_are_unique`.
    pub name: &'static str,
    /// The part of a node.
    pub run: for<'a> fn(&'a Context) -> Running<'a>,
}

/// The result of a case on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The name of the case.
    pub name: &'static str,
    /// Rank and reason of each node on which the case failed.
    pub failures: Vec<(usize, String)>,
}

impl Case {
    /// Runs this node's part. Fails after [`LIMIT`].
    pub async fn run(&self, context: &Context) -> Outcome {
        let part = (self.run)(context);
        let limit = pin!(context.lite.sleep(LIMIT));
        match select(part, limit).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => {
                Err(Failure::new(format!("the case has not ended after {} s", LIMIT.as_secs())))
            }
        }
    }
}

/// A node's run through cases, one after the other, in step with the other nodes.
pub struct Session {
    lite: Lite,
    nodes: Vec<NodeId>,
    rank: usize,
    prefix: String,
    cases: Vec<Case>,
    done: usize,
    /// The function that the others call; only on the first node.
    reports: Option<RpcServer>,
}

impl Session {
    /// Starts a run through `cases` with `nodes`, each of which does the same. Names within the cluster begin
    /// with `prefix`. Fails if there are fewer than three nodes, if this node is not among them, or if they
    /// do not meet.
    pub async fn begin(lite: &Lite, nodes: &[NodeId], prefix: &str, cases: &[Case]) -> Result<Self, Error> {
        let lite = lite.with_deadline(REPORT_TIMEOUT);
        let rank = nodes.iter().position(|node| *node == lite.node_id()).filter(|_| nodes.len() >= 3);
        let few = || Error::Refused("the cases need at least three nodes, including this one".into());
        let rank = rank.ok_or_else(few)?;
        let reports =
            if rank == 0 { Some(lite.register(REPORT_FUNCTION, RpcOptions::default())?) } else { None };
        lite.barrier(&format!("{prefix}/begin"), nodes).await?;
        let (nodes, prefix, cases) = (nodes.to_vec(), prefix.into(), cases.to_vec());
        Ok(Self { lite, nodes, rank, prefix, cases, done: 0, reports })
    }

    /// Runs the next case, and waits until all nodes have run it. Returns the verdict: on the first node for
    /// all nodes, on the others for themselves. Returns `None` after the last case. Fails if the nodes lose
    /// contact with each other.
    pub async fn next(&mut self) -> Result<Option<Verdict>, Error> {
        let Some(case) = self.cases.get(self.done) else { return Ok(None) };
        let index = u32::try_from(self.done).unwrap_or(u32::MAX);
        self.done += 1;
        log::info!("case {}", case.name);
        let name = format!("{}/{}", self.prefix, case.name);
        let mine = match Context::new(&self.lite, &self.nodes, name, index) {
            Some(context) => case.run(&context).await,
            None => Err(Failure::new("this node does not take part in the case")),
        };
        let reason = mine.err().map(|failure| failure.to_string());
        if let Some(reason) = &reason {
            log::warn!("case {} failed here: {reason}", case.name);
        }
        let mut verdict = Verdict { name: case.name, failures: Vec::new() };
        match (&self.reports, self.nodes.first()) {
            (Some(reports), _) => verdict.failures = self.gather(reports, index).await?,
            (None, Some(first)) => {
                self.lite.call(*first, REPORT_FUNCTION, &report(index, reason.as_deref()), 0).await?;
            }
            (None, None) => {}
        }
        verdict.failures.extend(reason.map(|reason| (self.rank, reason)));
        verdict.failures.sort_unstable();
        Ok(Some(verdict))
    }

    /// Collects the results of the other nodes, and lets them continue.
    async fn gather(&self, reports: &RpcServer, index: u32) -> Result<Vec<(usize, String)>, Error> {
        let (mut failures, mut calls) = (Vec::new(), Vec::new());
        while calls.len() + 1 < self.nodes.len() {
            let call = reports.receive_within(REPORT_TIMEOUT).await?;
            let rank = self.nodes.iter().position(|node| *node == call.from());
            let (Some(rank), Some(said)) = (rank, parse_report(call.request(), index)) else {
                return Err(Error::Refused("a node runs another case".into()));
            };
            failures.extend(said.map(|reason| (rank, reason)));
            calls.push(call);
        }
        for call in calls {
            call.reply(&[]).await?;
        }
        Ok(failures)
    }
}

/// Returns a node's report on a case: its number, and the reason of a failure.
fn report(index: u32, reason: Option<&str>) -> Vec<u8> {
    let mut report = index.to_le_bytes().to_vec();
    if let Some(reason) = reason {
        report.push(1);
        report.extend(reason.bytes().take(LONGEST_REASON));
    }
    report
}

/// Returns the reason in a report on case `index`; `None` if the report is on another case.
fn parse_report(report: &[u8], index: u32) -> Option<Option<String>> {
    let (number, rest) = report.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*number) == index).then_some(())?;
    Some(rest.split_first().map(|(_, reason)| String::from_utf8_lossy(reason).into_owned()))
}
