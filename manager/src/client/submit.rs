//! Running a job: one thread sends the input while another receives progress and output.

use super::{Client, ClientError, Connection, Inputs, Output, Receiving, Sending};
use proto::{FromClient, JobId, JobReport, NodeId, ToClient, printable};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of bytes of input in one message.
const PIECE: usize = 48 << 10;

/// The time that the nodes have to end another job and to accept this one, beyond the time that the manager
/// allows.
const ACCEPT: Duration = Duration::from_secs(90);

/// A job to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The application.
    pub app: String,
    /// The arguments of the application.
    pub args: Vec<String>,
    /// The number of nodes, 0 for all.
    pub nodes: u16,
    /// The names of the nodes, by rank. Any nodes if empty.
    pub on: Vec<String>,
    /// The time that the job may take, counted from when its nodes are told of it. Then it fails.
    pub limit: Option<Duration>,
    /// The names of the datasets that the job reads behind its files.
    pub datasets: Vec<String>,
    /// The name of the dataset that the output becomes. `None`: the output is sent.
    pub keep: Option<String>,
}

/// A report on the progress of a job.
#[derive(Clone, Copy, Debug)]
pub enum Update<'a> {
    /// The nodes have accepted the job.
    Accepted {
        /// The number of the job.
        job: JobId,
        /// The nodes, by rank.
        nodes: &'a [NodeId],
    },
    /// Input has been sent.
    Input {
        /// The number of bytes sent so far.
        sent: u64,
        /// The total number of bytes.
        total: u64,
    },
    /// A node has reported its progress.
    Node {
        /// The node.
        node: NodeId,
        /// The phase of the node.
        phase: &'a str,
        /// The work done, in units of the phase.
        done: u64,
        /// The total work, in the same units.
        total: u64,
    },
    /// Output has arrived.
    Output {
        /// The number of bytes written so far.
        written: u64,
    },
}

/// The results of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number of the job.
    pub job: JobId,
    /// The report of each node, by rank.
    pub reports: Vec<(NodeId, JobReport)>,
    /// The number of bytes of input.
    pub input_bytes: u64,
    /// The number of bytes of output.
    pub output_bytes: u64,
    /// The time from the submission to the last byte of output.
    pub elapsed: Duration,
    /// The time from the first byte of input to the last, as seen by the manager.
    pub stream: Duration,
    /// The time from the last byte of input until the last node was done.
    pub run: Duration,
}

impl Outcome {
    /// Returns the sums of the nodes' counts, by name, in the order in which the names first appear.
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

    /// Returns the number of bytes of output that the nodes keep as a dataset.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        let pieces = self.reports.iter().flat_map(|(_, report)| &report.kept);
        pieces.fold(0, |sum, len| sum.saturating_add(*len))
    }
}

impl Client {
    /// Runs a job. If this succeeds, `output` holds the whole output, still under its temporary name. Two
    /// threads call `watch`.
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
            datasets: job.datasets.clone(),
            keep: job.keep.clone(),
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
            // The message of the manager takes precedence over the error of the connection. The error of an
            // input file takes precedence over both.
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

/// The manager's report on a job that is done.
struct Results {
    /// The reports of the nodes, by rank.
    reports: Vec<(NodeId, JobReport)>,
    run_us: u64,
    stream_us: u64,
}

/// Receives progress, output and reports until the job is done.
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
