//! A job from the view of its client.

use super::super::random::Random;
use super::node::{APP, BYTES, output};
use crate::Socket;
use proto::{FromClient, InputFile, JobId, JobQos, JobRequest, NodeId, Terms, ToClient};
use std::collections::BTreeMap;

/// The number of bytes of input in one message.
const PIECE: u64 = 48 << 10;

/// A job that was submitted.
#[derive(Debug)]
pub(super) struct Submission {
    /// The length of its input, in bytes.
    total: u64,
    accepted: Option<(JobId, Vec<NodeId>)>,
    /// The number of the job, once it is known to wait in the queue.
    queued: Option<JobId>,
    /// True from a message that the job waits until it starts.
    waits: bool,
    /// The number of bytes that each node reports.
    reports: BTreeMap<NodeId, u64>,
    output: Vec<u8>,
    ended: bool,
}

impl Submission {
    /// Returns a random request of a client.
    pub(super) fn wish(random: &mut Random) -> FromClient {
        let files = random.below(3);
        let file = |n| InputFile { name: format!("file-{n}"), len: random.below(150_000) };
        let inputs = (0..files).map(file).collect();
        // The argument tells this job from all others.
        let args = vec![format!("{:x}", random.below(u64::MAX))];
        let (app, nodes) = (APP.into(), random.below(4) as u16);
        let limit_ms = random.one_in(3).then_some(1000);
        let request = JobRequest { app, args, nodes, inputs, limit_ms, ..JobRequest::default() };
        if random.one_in(2) {
            return FromClient::Submit(request);
        }
        let priority = random.below(3) as i16;
        let terms = Terms { wait: true, priority, requeue: random.one_in(2), ..Terms::default() };
        if priority == 2 {
            let qos = JobQos { bytes_per_second: Some(1_000_000), ..JobQos::default() };
            return FromClient::SubmitWith { request, terms, qos };
        }
        FromClient::SubmitOn { request, terms }
    }

    /// Returns the job that `wish` submits, if it is a submission.
    pub(super) fn of(wish: &FromClient) -> Option<Self> {
        let (FromClient::Submit(request)
        | FromClient::SubmitOn { request, .. }
        | FromClient::SubmitWith { request, .. }) = wish
        else {
            return None;
        };
        let total = request.inputs.iter().map(|file| file.len).sum();
        let (reports, output) = (BTreeMap::new(), Vec::new());
        Some(Self { total, accepted: None, queued: None, waits: false, reports, output, ended: false })
    }

    /// Returns true while the job waits in the queue.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the job and the number of bytes of its output that the client has, once the job is known.
    /// The manager has died, and the next one sends the reports of the job again.
    pub(super) fn attach(&mut self) -> Option<FromClient> {
        let job = self.job()?;
        self.reports.clear();
        Some(FromClient::Attach { job, output: self.output.len() as u64 })
    }

    /// Returns the number of the job, once it is known.
    pub(super) fn job(&self) -> Option<JobId> {
        self.accepted.as_ref().map(|(job, _)| *job).or(self.queued)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Handles a message of the manager. If the job has ended by it, returns whether it was done.
    ///
    /// # Errors
    /// Fails if the message is not permitted here.
    pub(super) fn hears(&mut self, socket: &Socket, message: ToClient) -> Result<Option<bool>, String> {
        if self.ended {
            return Err(format!("{message:?} after the end of {self:?}"));
        }
        match message {
            ToClient::Accepted { job, nodes }
                if self.accepted.as_ref().is_none_or(|(former, _)| *former < job) =>
            {
                // The job starts again: its former reports and output do not count.
                self.accepted = Some((job, nodes));
                self.waits = false;
                self.reports.clear();
                self.output.clear();
                let mut left = self.total;
                while left > 0 {
                    let len = left.min(PIECE);
                    left -= len;
                    socket.send(&proto::encode(&FromClient::Input { job, bytes: vec![7; len as usize] }));
                }
            }
            ToClient::Output { bytes } => {
                self.output.extend(bytes);
                let bytes = self.output.len() as u64;
                socket.send(&proto::encode(&FromClient::OutputTaken { bytes }));
            }
            ToClient::Report { node, report } => {
                let bytes = report.counts.iter().find(|(name, _)| name == BYTES).map_or(0, |(_, n)| *n);
                if self.reports.insert(node, bytes).is_some() {
                    return Err(format!("{node} is done twice: {self:?}"));
                }
            }
            ToClient::Failed { .. } => {
                self.ended = true;
                return Ok(Some(false));
            }
            ToClient::Done { .. } => {
                self.ended = true;
                return self.is_whole().map(|()| Some(true));
            }
            ToClient::Progress { .. } => {}
            ToClient::Queued { job, .. } if self.queued.is_none_or(|known| known == job) => {
                self.queued = Some(job);
                self.waits = true;
            }
            other => return Err(format!("{other:?} for {self:?}")),
        }
        Ok(None)
    }

    /// Checks that all nodes were done, with all input and all output.
    fn is_whole(&self) -> Result<(), String> {
        let Some((job, nodes)) = &self.accepted else { return Err(format!("never accepted: {self:?}")) };
        let all = nodes.len() == self.reports.len() && nodes.iter().all(|n| self.reports.contains_key(n));
        let bytes: u64 = self.reports.values().sum();
        if !all || bytes != self.total || self.output != output(*job) {
            let Self { total, output, .. } = self;
            let (reports, len) = (&self.reports, output.len());
            return Err(format!("{job:?} of {total} bytes on {nodes:?}: {reports:?}, {len} bytes of output"));
        }
        Ok(())
    }
}
