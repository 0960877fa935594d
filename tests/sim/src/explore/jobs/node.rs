//! The nodes' part of jobs: it receives input, works for a while, sends output and a report, or fails.

use super::super::random::Random;
use crate::Cluster;
use lite::{ControlMessages, Error, Lite};
use platform::Platform;
use proto::{AppManifest, CutRule, JobId, JobReport, JobStart, ToManager, ToNode};
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
    let runner = Runner { messages: lite.control_messages(), lite, random };
    cluster.host(node).spawn("jobs", Box::pin(runner.run()));
}

struct Runner {
    lite: Lite,
    messages: ControlMessages,
    random: Random,
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
                // The manager did not know yet that the part was done, or the node was not in time to begin
                // it.
                ToNode::JobCancel { .. } => Ok(Ended::Done),
                ToNode::Shutdown => return,
                _ => Ok(Ended::Done),
            };
            let said = match ended {
                Ok(Ended::Cancelled(job)) => self.lite.send_control(&ToManager::JobOver { job }).await,
                Ok(Ended::Done) => Ok(()),
                Err(error) => Err(error),
            };
            if said.is_err() {
                return;
            }
        }
    }

    async fn part(&mut self, start: &JobStart) -> Result<Ended, Error> {
        let job = start.job;
        if self.random.one_in(12) {
            let reason = "it does not want to".into();
            return self.say(ToManager::JobFailed { job, reason }).await;
        }
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
        let work = Duration::from_micros(self.random.below(300_000));
        self.lite.sleep(work).await;
        if start.nodes.first() == Some(&self.lite.node_id()) {
            for piece in output(job).chunks(PIECE) {
                self.say(ToManager::JobOutput { job, bytes: piece.to_vec() }).await?;
            }
        }
        let report = JobReport { counts: vec![(BYTES.into(), bytes)], ..JobReport::default() };
        self.say(ToManager::JobDone { job, report }).await
    }

    /// Returns the next message; `None` once the node is no longer a member.
    async fn next(&self) -> Option<ToNode> {
        let message = self.messages.next().await?;
        Some(proto::decode(&message).expect("the manager's messages are well-formed"))
    }

    async fn say(&self, message: ToManager) -> Result<Ended, Error> {
        self.lite.send_control(&message).await.map(|()| Ended::Done)
    }
}
