//! The nodes' part of jobs: it receives input, works for a while, sends output and a report, or fails.

use super::super::random::Random;
use crate::Cluster;
use lite::{ControlMessages, Error, Lite};
use platform::Platform;
use proto::{AppManifest, CutRule, JobId, JobReport, JobStanding, JobStart, ToManager, ToNode};
use std::collections::BTreeMap;
use std::time::Duration;

/// The application.
pub(super) const APP: &str = "count";
/// The name of the count that a node reports: the bytes of its input.
pub(super) const BYTES: &str = "bytes";
/// The number of pieces of output, and the length of each in bytes.
pub(super) const PIECES: u64 = 3;
pub(super) const PIECE: usize = 1000;
/// The credit of a node, in charges.
const WINDOW: u64 = 64 << 10;

/// Returns the application that nodes offer.
pub(in super::super) fn manifest() -> AppManifest {
    AppManifest { name: APP.into(), about: "counts its input".into(), cut: CutRule::Anywhere }
}

/// Returns the output of a job.
pub(super) fn output(job: JobId) -> Vec<u8> {
    vec![job.0 as u8; PIECES as usize * PIECE]
}

/// Lets a node take part in jobs.
pub(in super::super) fn serve(cluster: &Cluster, node: usize, random: Random) {
    let lite = cluster.lite(node);
    let messages = lite.control_messages();
    let runner = Runner { messages, lite, random, part: None, ends: BTreeMap::new(), taken: 0 };
    cluster.host(node).spawn("jobs", Box::pin(runner.run()));
}

struct Runner {
    lite: Lite,
    messages: ControlMessages,
    random: Random,
    /// The job in which the node takes part, and its part.
    part: Option<(JobId, JobStanding)>,
    /// The ends of parts that the manager has not recorded.
    ends: BTreeMap<JobId, JobStanding>,
    /// The number of bytes of output that the client of the present job has.
    taken: u64,
}

/// The end of a part that does not fail.
enum Ended {
    Done,
    /// This job was cancelled.
    Cancelled(JobId),
}

impl Runner {
    async fn run(mut self) {
        loop {
            let Some(message) = self.next().await else { return };
            let ended = match message {
                ToNode::JobStart(start) => self.part(&start).await,
                ToNode::JobStartWith { start, .. } => self.part(&start).await,
                // The manager did not know yet that the part was done, or the node was not in time to begin
                // it.
                ToNode::JobCancel { job, .. } => Ok(Ended::Cancelled(job)),
                ToNode::Shutdown => return,
                _ => Ok(Ended::Done),
            };
            self.part = None;
            let said = match ended {
                Ok(Ended::Cancelled(job)) => self.say(ToManager::JobOver { job }).await,
                other => other,
            };
            if said.is_err() {
                return;
            }
        }
    }

    async fn part(&mut self, start: &JobStart) -> Result<Ended, Error> {
        let job = start.job;
        if self.random.one_in(12) {
            let reason = String::from("it does not want to");
            self.ends.insert(job, JobStanding::Failed(reason.clone()));
            return self.say(ToManager::JobFailed { job, reason }).await;
        }
        self.part = Some((job, JobStanding::Loading));
        self.say(ToManager::JobAccepted { job }).await?;
        let (mut charge, mut bytes) = (WINDOW, 0);
        self.say(ToManager::JobInputCredit { job, bytes: charge }).await?;
        loop {
            match self.next().await.ok_or(Error::LinkDown)? {
                ToNode::JobInput { job: of, bytes: piece, .. } if of == job => {
                    bytes += piece.len() as u64;
                    charge += ToNode::input_charge(piece.len());
                    self.say(ToManager::JobInputCredit { job, bytes: charge }).await?;
                }
                ToNode::JobInputEnd { job: of } if of == job => break,
                ToNode::JobCancel { job: of, .. } if of == job => return Ok(Ended::Cancelled(job)),
                _ => {}
            }
        }
        (self.part, self.taken) = (Some((job, JobStanding::Running)), 0);
        let work = Duration::from_micros(self.random.below(300_000));
        self.lite.sleep(work).await;
        if start.nodes.first() == Some(&self.lite.node_id()) {
            self.send_output(job, 0).await?;
            while self.taken < PIECES * PIECE as u64 {
                match self.next().await.ok_or(Error::LinkDown)? {
                    ToNode::JobCancel { job: of, .. } if of == job => return Ok(Ended::Cancelled(job)),
                    _ => {}
                }
            }
        }
        let report = JobReport { counts: vec![(BYTES.into(), bytes)], ..JobReport::default() };
        self.ends.insert(job, JobStanding::Done(report.clone()));
        self.part = None;
        self.say(ToManager::JobDone { job, report }).await
    }

    /// Sends the output from `offset` on. All of it fits into the window.
    async fn send_output(&self, job: JobId, offset: u64) -> Result<(), Error> {
        let all = output(job);
        for (at, piece) in (0..).step_by(PIECE).zip(all.chunks(PIECE)) {
            let known = offset.saturating_sub(at).min(piece.len() as u64);
            let bytes = piece[known as usize..].to_vec();
            if !bytes.is_empty() {
                self.say(ToManager::JobOutput { job, offset: at + known, bytes }).await?;
            }
        }
        Ok(())
    }

    /// Returns the next message about the start, the input or the end of a job; `None` once the node is no
    /// longer a member.
    async fn next(&mut self) -> Option<ToNode> {
        loop {
            let message = self.messages.next().await?;
            let message = proto::decode(&message).expect("the manager's messages are well-formed");
            let running = |of: JobId, part: &Option<(JobId, JobStanding)>| matches!(part, Some((job, JobStanding::Running)) if *job == of);
            match message {
                ToNode::AskJobs => {
                    let mut jobs = self.ends.clone();
                    jobs.extend(self.part.clone());
                    let jobs = jobs.into_iter().collect();
                    self.say(ToManager::Jobs { jobs, kept: Vec::new() }).await.ok()?;
                }
                ToNode::JobForget { job } => drop(self.ends.remove(&job)),
                ToNode::JobOutputFrom { job, offset } if running(job, &self.part) => {
                    self.send_output(job, offset).await.ok()?;
                }
                ToNode::JobOutputAck { job, bytes } if running(job, &self.part) => {
                    self.taken = self.taken.max(bytes);
                    return Some(ToNode::JobOutputAck { job, bytes });
                }
                ToNode::AskImage | ToNode::Check { .. } => {}
                message => return Some(message),
            }
        }
    }

    async fn say(&self, message: ToManager) -> Result<Ended, Error> {
        self.lite.send_control(&message).await.map(|()| Ended::Done)
    }
}
