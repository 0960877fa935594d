//! Running a job: the input goes out by one thread, while progress and output come in by another.

use super::{Client, ClientError, Connection, Inputs, Output, Receiving, Sending};
use proto::{FromClient, JobId, JobReport, NodeId, ToClient, printable};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes of input in one message.
const PIECE: usize = 48 << 10;

/// How long the nodes may take to end another job and to accept this one, above what the manager allows them.
const ACCEPT: Duration = Duration::from_secs(90);

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The application.
    pub app: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// How many nodes, 0 for all.
    pub nodes: u16,
    /// The names of the nodes, by rank; empty: any.
    pub on: Vec<String>,
    /// How long it may take once its nodes have been told of it; then it fails.
    pub limit: Option<Duration>,
}

/// How far a job is.
#[derive(Clone, Copy, Debug)]
pub enum Update<'a> {
    /// The nodes have it.
    Accepted {
        /// Its number.
        job: JobId,
        /// The nodes by rank.
        nodes: &'a [NodeId],
    },
    /// So much input has gone out.
    Input {
        /// Bytes.
        sent: u64,
        /// Of how many.
        total: u64,
    },
    /// A node is so far.
    Node {
        /// The node.
        node: NodeId,
        /// What it does.
        phase: &'a str,
        /// Done, in units of the phase.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// So much output has come.
    Output {
        /// Bytes.
        written: u64,
    },
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its number.
    pub job: JobId,
    /// What each node says, by rank.
    pub reports: Vec<(NodeId, JobReport)>,
    /// Bytes of input.
    pub input_bytes: u64,
    /// Bytes of output.
    pub output_bytes: u64,
    /// From the submission to the last byte of output.
    pub elapsed: Duration,
    /// From the first byte of input to the last, as the manager saw it.
    pub stream: Duration,
    /// From then until the last node was done.
    pub run: Duration,
}

impl Outcome {
    /// The nodes' counts of equal names added up, in the order in which they first appear.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, u64)> {
        let mut sums: Vec<(String, u64)> = Vec::new();
        for (name, count) in self.reports.iter().flat_map(|(_, report)| &report.counts) {
            match sums.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(*count),
                None => sums.push((name.clone(), *count)),
            }
        }
        sums
    }
}

impl Client {
    /// Runs a job. `output` holds all of its output when this returns without an error, but still under its temporary
    /// name. `watch` is called from two threads.
    pub fn submit(
        self,
        job: &Job,
        inputs: Inputs,
        output: &mut Output,
        watch: &(dyn Fn(Update<'_>) + Sync),
    ) -> Result<Outcome, ClientError> {
        let Connection { mut sending, mut receiving } = self.connection;
        let start = Instant::now();
        let total = inputs.total();
        sending.send(&FromClient::Submit {
            app: job.app.clone(),
            args: job.args.clone(),
            nodes: job.nodes,
            on: job.on.clone(),
            inputs: inputs.describe(),
            limit_ms: job.limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        })?;
        let (id, nodes) = match receiving.receive(Some(ACCEPT))? {
            ToClient::Accepted { job, nodes } => {
                watch(Update::Accepted { job, nodes: &nodes });
                (job, nodes)
            }
            ToClient::Failed { reason } => return Err(ClientError::Failed(printable(&reason))),
            _ => return Err(ClientError::Unexpected),
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let sent = send_inputs(&mut sending, inputs, total, watch);
                if matches!(sent, Err(ClientError::Input { .. })) {
                    sending.hang_up();
                }
                sent
            });
            let received = receive_results(&mut receiving, output, &nodes, watch);
            let elapsed = start.elapsed();
            receiving.hang_up();
            let sent = sender.join().unwrap_or(Err(ClientError::Unexpected));
            // What the manager says goes before how the connection ended; a file that cannot be read goes before all.
            if let Err(error @ ClientError::Input { .. }) = sent {
                return Err(error);
            }
            let Results { reports, run_us, stream_us } = received?;
            sent?;
            Ok(Outcome {
                job: id,
                reports,
                input_bytes: total,
                output_bytes: output.written(),
                elapsed,
                stream: Duration::from_micros(stream_us),
                run: Duration::from_micros(run_us),
            })
        })
    }
}

/// What the manager says of a job that is done.
struct Results {
    /// By rank.
    reports: Vec<(NodeId, JobReport)>,
    run_us: u64,
    stream_us: u64,
}

/// Takes progress, output and reports until the job is done.
fn receive_results(
    receiving: &mut Receiving,
    output: &mut Output,
    nodes: &[NodeId],
    watch: &(dyn Fn(Update<'_>) + Sync),
) -> Result<Results, ClientError> {
    let mut reports = BTreeMap::new();
    loop {
        match receiving.receive(None)? {
            ToClient::Progress { node, phase, done, total } => {
                watch(Update::Node { node, phase: &printable(&phase), done, total });
            }
            ToClient::Output { bytes } => {
                output.write(&bytes)?;
                watch(Update::Output { written: output.written() });
            }
            ToClient::Report { node, report } => drop(reports.insert(node, report)),
            ToClient::Done { run_us, stream_us } => {
                let report = |&node: &NodeId| Some((node, reports.remove(&node)?));
                return Ok(Results { reports: nodes.iter().filter_map(report).collect(), run_us, stream_us });
            }
            ToClient::Failed { reason } => return Err(ClientError::Failed(printable(&reason))),
            _ => return Err(ClientError::Unexpected),
        }
    }
}

/// Sends the files.
fn send_inputs(
    sending: &mut Sending,
    inputs: Inputs,
    total: u64,
    watch: &(dyn Fn(Update<'_>) + Sync),
) -> Result<(), ClientError> {
    let mut sent = 0;
    inputs.stream(PIECE, |bytes| {
        sent += bytes.len() as u64;
        sending.send(&FromClient::Input { bytes })?;
        watch(Update::Input { sent, total });
        Ok(())
    })
}
