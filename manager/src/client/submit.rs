//! Running a job: the input goes out by one thread, while progress and output come in by another.

use super::{Client, ClientError, Connection, Inputs, Output, Sending};
use proto::{FromClient, JobId, JobReport, NodeId, ToClient};
use std::time::{Duration, Instant};

/// Bytes of input in one message.
const PIECE: usize = 48 << 10;

/// How long the nodes may take to accept a job, above what the manager allows them.
const ACCEPT: Duration = Duration::from_secs(60);

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
        })?;
        let id = match receiving.receive(Some(ACCEPT))? {
            ToClient::Accepted { job, nodes } => {
                watch(Update::Accepted { job, nodes: &nodes });
                job
            }
            ToClient::Failed { reason } => return Err(ClientError::Failed(reason)),
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
            let received = loop {
                match receiving.receive(None) {
                    Ok(ToClient::Progress { node, phase, done, total }) => {
                        watch(Update::Node { node, phase: &phase, done, total });
                    }
                    Ok(ToClient::Output { bytes }) => match output.write(&bytes) {
                        Ok(()) => watch(Update::Output { written: output.written() }),
                        Err(error) => break Err(error),
                    },
                    Ok(ToClient::Done { reports, run_us, stream_us }) => {
                        break Ok((reports, run_us, stream_us));
                    }
                    Ok(ToClient::Failed { reason }) => break Err(ClientError::Failed(reason)),
                    Ok(_) => break Err(ClientError::Unexpected),
                    Err(error) => break Err(error),
                }
            };
            let elapsed = start.elapsed();
            receiving.hang_up();
            let sent = sender.join().unwrap_or(Err(ClientError::Unexpected));
            // What the manager says goes before how the connection ended; a file that cannot be read goes before all.
            if let Err(error @ ClientError::Input { .. }) = sent {
                return Err(error);
            }
            let (reports, run_us, stream_us) = received?;
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
