//! Running a job: one thread sends the input while another receives progress and output.

use super::{Client, ClientError, Connection, Inputs, Output, Receiving, Sending};
use crate::key::Credential;
use proto::{FromClient, JobId, JobQos, JobReport, JobRequest, NodeId, Terms, ToClient, printable};
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// The number of bytes of input in one message.
pub(super) const PIECE: usize = 48 << 10;

/// The time that the nodes have to end another job and to accept this one, beyond the time that the manager
/// allows.
const ACCEPT: Duration = Duration::from_secs(90);

/// The time in which a manager that is restarted, or the next leader, must answer.
const RECONNECT: Duration = Duration::from_secs(60);

/// The pause between two attempts to connect again.
const PAUSE: Duration = Duration::from_millis(100);

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
    /// The terms.
    pub terms: Terms,
    /// The quality of service that the job asks for.
    pub qos: JobQos,
}

impl Job {
    /// Returns the submission of the job with these inputs.
    pub(super) fn submission(&self, inputs: Vec<proto::InputFile>, terms: Terms) -> FromClient {
        let request = JobRequest {
            app: self.app.clone(),
            args: self.args.clone(),
            nodes: self.nodes,
            on: self.on.clone(),
            inputs,
            datasets: self.datasets.clone(),
            keep: self.keep.clone(),
            limit_ms: self.limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        };
        match self.qos.is_plain() {
            // A manager of an earlier version knows this one.
            true => FromClient::SubmitOn { request, terms },
            false => FromClient::SubmitWith { request, terms, qos: self.qos },
        }
    }
}

/// A report on the progress of a job.
#[derive(Clone, Copy, Debug)]
pub enum Update<'a> {
    /// The job waits in the queue.
    Queued {
        /// The number of the job.
        job: JobId,
        /// The reason why it does not start.
        reason: &'a str,
    },
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
    /// Runs a job. If this succeeds, `output` holds the whole output, still under its temporary
    /// name. Two threads call `watch`. If the manager is restarted meanwhile, the client connects
    /// again and goes on with the job; input that the nodes do not have yet is sent again from the
    /// beginning.
    pub fn submit(
        self,
        job: &Job,
        inputs: Inputs,
        output: &mut Output,
        watch: &(dyn Fn(Update<'_>) + Sync),
    ) -> Result<Outcome, ClientError> {
        let Self { connection, address, key } = self;
        let (start, total) = (Instant::now(), inputs.total());
        let mut first = job.submission(inputs.describe(), job.terms.clone());
        let mut session =
            Session { inputs, output, watch, begun: None, queued: None, reports: BTreeMap::new() };
        let mut connection = connection;
        let (run_us, stream_us) = loop {
            match session.go_on(connection, &first) {
                Err(ClientError::Lost(_)) if session.job().is_some() => {}
                ended => break ended?,
            }
            connection = reconnect(&address, &key)?;
            let job = session.job().unwrap_or(JobId(0));
            session.reports.clear();
            first = FromClient::Attach { job, output: session.output.written() };
        };
        let Session { begun, mut reports, .. } = session;
        let Some((id, nodes)) = begun else { return Err(ClientError::Unexpected) };
        let report = |&node: &NodeId| Some((node, reports.remove(&node)?));
        Ok(Outcome {
            job: id,
            reports: nodes.iter().filter_map(report).collect(),
            input_bytes: total,
            output_bytes: output.written(),
            elapsed: start.elapsed(),
            stream: Duration::from_micros(stream_us),
            run: Duration::from_micros(run_us),
        })
    }
}

/// Connects to a manager that is restarted, or to the next leader of a group, within [`RECONNECT`].
pub(super) fn reconnect(address: &str, key: &Credential) -> Result<Connection, ClientError> {
    let deadline = Instant::now() + RECONNECT;
    loop {
        match Client::connect(address, key) {
            Ok(client) => return Ok(client.connection),
            Err(
                ClientError::Unreachable { .. }
                | ClientError::Lost(_)
                | ClientError::Silent(_)
                | ClientError::Leaderless(_),
            ) if Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// A job that runs, over one connection after the other.
struct Session<'a> {
    inputs: Inputs,
    output: &'a mut Output,
    watch: &'a (dyn Fn(Update<'_>) + Sync),
    /// The number of the job, and its nodes by rank, once they have accepted it.
    begun: Option<Begun>,
    /// The number of the job, once it waits in the queue.
    queued: Option<JobId>,
    reports: BTreeMap<NodeId, JobReport>,
}

/// A job's number, and its nodes by rank.
type Begun = (JobId, Vec<NodeId>);

/// An order for the thread that sends.
enum Order {
    /// Send the input of the job from the beginning.
    Begin(JobId),
    /// Acknowledge this many bytes of output.
    Taken(u64),
}

impl Session<'_> {
    /// Returns the number of the job, once it is known.
    fn job(&self) -> Option<JobId> {
        self.begun.as_ref().map(|(job, _)| *job).or(self.queued)
    }

    /// Sends `first` and goes on with the job until it is done. Returns the times of the manager's report.
    fn go_on(&mut self, connection: Connection, first: &FromClient) -> Result<(u64, u64), ClientError> {
        let Connection { mut sending, mut receiving } = connection;
        sending.send(first)?;
        let (orders, queue) = mpsc::channel();
        let Self { inputs, output, watch, begun, queued, reports } = self;
        let (inputs, watch) = (&*inputs, *watch);
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let sent = obey(&mut sending, &queue, inputs, watch);
                if sent.is_err() {
                    sending.hang_up();
                }
                sent
            });
            let received = receive_results(&mut receiving, output, (begun, queued, reports), &orders, watch);
            receiving.hang_up();
            drop(orders);
            let sent = sender.join().unwrap_or(Err(ClientError::Unexpected));
            // The message of the manager takes precedence over the error of the connection. The error of an
            // input file takes precedence over both.
            match (sent, received) {
                (Err(error @ ClientError::Input { .. }), _) => Err(error),
                (_, received) => received,
            }
        })
    }
}

/// Receives progress, output and reports until the job is done.
fn receive_results(
    receiving: &mut Receiving,
    output: &mut Output,
    (begun, queued, reports): (&mut Option<Begun>, &mut Option<JobId>, &mut BTreeMap<NodeId, JobReport>),
    orders: &Sender<Order>,
    watch: &(dyn Fn(Update<'_>) + Sync),
) -> Result<(u64, u64), ClientError> {
    // A thread that has ended has hung up, which the next call to receive reports.
    let order = |order| drop(orders.send(order));
    loop {
        // A job may wait in the queue for as long as it takes.
        let timeout = (begun.is_none() && queued.is_none()).then_some(ACCEPT);
        match receiving.receive(timeout)? {
            ToClient::Accepted { job, nodes } => {
                output.restart()?;
                reports.clear();
                watch(Update::Accepted { job, nodes: &nodes });
                *begun = Some((job, nodes));
                order(Order::Begin(job));
            }
            ToClient::Failed { reason } => return Err(ClientError::Failed(printable(&reason))),
            ToClient::Refused { kind, reason } => return Err(ClientError::refused(kind, &reason)),
            ToClient::Queued { job, reason } => {
                // The number stays while the job starts again under others.
                (*queued, *begun) = (Some(job), None);
                watch(Update::Queued { job, reason: &printable(&reason) });
            }
            _ if begun.is_none() => return Err(ClientError::Unexpected),
            ToClient::Progress { node, phase, done, total } => {
                watch(Update::Node { node, phase: &printable(&phase), done, total });
            }
            ToClient::Output { bytes } => {
                output.write(&bytes)?;
                watch(Update::Output { written: output.written() });
                order(Order::Taken(output.written()));
            }
            ToClient::Report { node, report } => drop(reports.insert(node, report)),
            ToClient::Done { run_us, stream_us } => return Ok((run_us, stream_us)),
            _ => return Err(ClientError::Unexpected),
        }
    }
}

/// Does what the receiving thread orders, until that thread ends.
fn obey(
    sending: &mut Sending,
    orders: &mpsc::Receiver<Order>,
    inputs: &Inputs,
    watch: &(dyn Fn(Update<'_>) + Sync),
) -> Result<(), ClientError> {
    let mut next = orders.recv().ok();
    while let Some(order) = next.take() {
        match order {
            Order::Taken(bytes) => sending.send(&FromClient::OutputTaken { bytes })?,
            Order::Begin(job) => {
                let mut sent = 0;
                inputs.stream(PIECE, |bytes| {
                    sent += bytes.len() as u64;
                    sending.send(&FromClient::Input { job, bytes })?;
                    watch(Update::Input { sent, total: inputs.total() });
                    // The job may start again in the middle of its input.
                    next = orders.try_recv().ok();
                    Ok(next.is_none())
                })?;
            }
        }
        if next.is_none() {
            next = orders.recv().ok();
        }
    }
    Ok(())
}
