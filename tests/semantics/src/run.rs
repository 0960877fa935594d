//! How cases are run: one by one, on all nodes at once, and each node hears how all of them ended.

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

/// How long a node may take for a case.
pub const LIMIT: Duration = Duration::from_secs(90);
/// How long the first node waits for another's word on a case, and the others for the first one's.
const WORD: Duration = Duration::from_secs(120);
/// The function of the first node that the others tell how they ended.
const DESK: FunctionId = 0x7e56_0000;
/// Bytes of the longest reason that travels.
const LONGEST_REASON: usize = 300;

/// A case's future on one node.
pub type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A named case: what each node does in it.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its subject and name, as `regions::names_are_unique`.
    pub name: &'static str,
    /// Its part on a node.
    pub run: for<'a> fn(&'a Context) -> Running<'a>,
}

/// How a case ended on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The case.
    pub name: &'static str,
    /// Rank and reason of each node on which it failed.
    pub failures: Vec<(usize, String)>,
}

impl Case {
    /// Runs this node's part; it has ended after [`LIMIT`].
    pub async fn run(&self, context: &Context) -> Outcome {
        let part = (self.run)(context);
        let limit = pin!(context.lite.sleep(LIMIT));
        match select(part, limit).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(Failure::new(format!("it has not ended after {} s", LIMIT.as_secs()))),
        }
    }
}

/// A node's run through cases, one after the other, in step with the others.
pub struct Session {
    lite: Lite,
    nodes: Vec<NodeId>,
    rank: usize,
    prefix: String,
    cases: Vec<Case>,
    done: usize,
    /// On the first of the nodes: what the others call.
    desk: Option<RpcServer>,
}

impl Session {
    /// Begins a run through `cases` with `nodes`, each of which does the same. Names within the cluster begin with `prefix`. Fails
    /// if there are fewer than three nodes, this is none of them, or they do not meet.
    pub async fn begin(lite: &Lite, nodes: &[NodeId], prefix: &str, cases: &[Case]) -> Result<Self, Error> {
        let lite = lite.with_deadline(WORD);
        let rank = nodes.iter().position(|node| *node == lite.node_id()).filter(|_| nodes.len() >= 3);
        let few = || Error::Refused("the cases take three nodes at least, of which this is one".into());
        let rank = rank.ok_or_else(few)?;
        let desk = if rank == 0 { Some(lite.register(DESK, RpcOptions::default())?) } else { None };
        lite.barrier(&format!("{prefix}/begin"), nodes).await?;
        let (nodes, prefix, cases) = (nodes.to_vec(), prefix.into(), cases.to_vec());
        Ok(Self { lite, nodes, rank, prefix, cases, done: 0, desk })
    }

    /// Runs the next case, and waits until all nodes have: gives how it ended, on the first node for all of them, on the others
    /// for themselves. `None`: that was all. Fails if the nodes lose each other.
    pub async fn next(&mut self) -> Result<Option<Verdict>, Error> {
        let Some(case) = self.cases.get(self.done) else { return Ok(None) };
        let index = u32::try_from(self.done).unwrap_or(u32::MAX);
        self.done += 1;
        log::info!("case {}", case.name);
        let name = format!("{}/{}", self.prefix, case.name);
        let mine = match Context::new(&self.lite, &self.nodes, name, index) {
            Some(context) => case.run(&context).await,
            None => Err(Failure::new("this node is none of the case's")),
        };
        let reason = mine.err().map(|failure| failure.to_string());
        if let Some(reason) = &reason {
            log::warn!("case {} failed here: {reason}", case.name);
        }
        let mut verdict = Verdict { name: case.name, failures: Vec::new() };
        match (&self.desk, self.nodes.first()) {
            (Some(desk), _) => verdict.failures = self.gather(desk, index).await?,
            (None, Some(first)) => {
                self.lite.call(*first, DESK, &word(index, reason.as_deref()), 0).await?;
            }
            (None, None) => {}
        }
        verdict.failures.extend(reason.map(|reason| (self.rank, reason)));
        verdict.failures.sort_unstable();
        Ok(Some(verdict))
    }

    /// Hears how the case went on the other nodes, and lets them go on.
    async fn gather(&self, desk: &RpcServer, index: u32) -> Result<Vec<(usize, String)>, Error> {
        let (mut failures, mut calls) = (Vec::new(), Vec::new());
        while calls.len() + 1 < self.nodes.len() {
            let call = desk.receive_within(WORD).await?;
            let rank = self.nodes.iter().position(|node| *node == call.from());
            let (Some(rank), Some(said)) = (rank, read_word(call.request(), index)) else {
                return Err(Error::Refused("a node is at another case".into()));
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

/// What a node says of a case: its number, and the reason of a failure.
fn word(index: u32, reason: Option<&str>) -> Vec<u8> {
    let mut word = index.to_le_bytes().to_vec();
    if let Some(reason) = reason {
        word.push(1);
        word.extend(reason.bytes().take(LONGEST_REASON));
    }
    word
}

/// The reason in a word on the case `index`. `None`: it is none.
fn read_word(word: &[u8], index: u32) -> Option<Option<String>> {
    let (number, rest) = word.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*number) == index).then_some(())?;
    Some(rest.split_first().map(|(_, reason)| String::from_utf8_lossy(reason).into_owned()))
}
