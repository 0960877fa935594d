//! Clients of the manager: they list nodes and jobs, submit jobs, cancel those of others, and leave in the
//! middle. Each submission ends once, and a job that was done was done by all its nodes with all of its
//! input.

mod node;
mod submission;

pub(super) use node::{manifest, serve};

use super::check::Check;
use super::random::Random;
use super::subject::Subject;
use crate::{Cluster, Socket};
use platform::Instant;
use proto::{FromClient, Hello, JobId, JobInfo, NodeId, PROTOCOL_VERSION, Refusal, ToClient};
use std::task::Poll;
use std::time::Duration;
use submission::Submission;

/// The inverse probability, per look, that a client leaves in the middle.
const IMPATIENT: u64 = 400;
/// The time in which all waits of clients end, once all faults have ended.
const LIMIT: Duration = Duration::from_secs(200);
/// The time after which clients leave whose jobs wait in the queue, once all faults have ended: the nodes
/// that they want may be gone for ever.
const RESIGNED: Duration = Duration::from_secs(90);
/// The request for the jobs that have not ended.
const LIST: FromClient = FromClient::JobList { after: JobId(0), ended: false };
/// The interval at which a client checks its requests.
const LOOK: Duration = Duration::from_millis(100);

enum State {
    /// The client does nothing until the given time.
    Away(Instant),
    /// The client waits for the answer to its hello, and then makes this request.
    Greets(FromClient),
    /// The client waits for a list, or for the result of a cancellation.
    Asks,
    Submits(Submission),
    /// The client has lost its manager, and tries again at the given time to go on with its job.
    Lost(Submission, Instant),
    /// The client has connected again, and waits for the answer to its hello.
    Returns(Submission),
}

struct Client {
    socket: Option<Socket>,
    state: State,
}

/// All clients.
pub(super) struct Clients {
    random: Random,
    clients: Vec<Client>,
    /// The jobs that some client has seen.
    seen: Vec<JobId>,
    /// True if no client begins anything any more.
    closing: bool,
    /// The number of jobs that were done, that failed, and that were lost with the connection.
    counts: [u64; 3],
    gone: u64,
    /// The number of times that a client went on with its job at another manager.
    returns: u64,
    /// The manager's last list of jobs.
    jobs: Vec<JobInfo>,
}

impl Clients {
    pub(super) fn new(mut random: Random, subject: Subject) -> Self {
        let count = if subject == Subject::Everything { random.pick(&[0, 0, 1, 3]) } else { 0 };
        let clients =
            (0..count).map(|_| Client { socket: None, state: State::Away(Instant::ZERO) }).collect();
        Self {
            random,
            clients,
            seen: Vec::new(),
            closing: false,
            counts: [0; 3],
            gone: 0,
            returns: 0,
            jobs: Vec::new(),
        }
    }

    /// Returns the number of jobs by result, and the number of clients that left.
    pub(super) fn counts(&self) -> [(&'static str, u64); 5] {
        let [done, failed, lost] = self.counts;
        [
            ("jobs that were done", done),
            ("jobs that failed", failed),
            ("jobs whose clients lost their connection", lost),
            ("clients that went away", self.gone),
            ("clients that went on with their jobs at another manager", self.returns),
        ]
    }

    /// Continues all clients.
    pub(super) fn act(&mut self, cluster: &Cluster, check: &Check) {
        for mut client in std::mem::take(&mut self.clients) {
            self.go_on(&mut client, cluster, check);
            self.clients.push(client);
        }
    }

    fn go_on(&mut self, client: &mut Client, cluster: &Cluster, check: &Check) {
        let now = cluster.world.now();
        let Some(socket) = client.socket.clone() else {
            if matches!(&client.state, State::Lost(_, at) if *at <= now) {
                return self.return_to_job(client, cluster);
            }
            if matches!(client.state, State::Away(until) if until <= now) && !self.closing {
                self.begin(client, cluster);
            }
            return;
        };
        socket.probe();
        loop {
            match socket.try_recv() {
                Poll::Ready(Ok(bytes)) => match proto::decode(&bytes) {
                    Ok(message) => self.hears(client, &socket, message, check),
                    Err(malformed) => check.violated("the manager speaks its protocol", malformed),
                },
                Poll::Ready(Err(_)) => {
                    client.socket = None;
                    let state = std::mem::replace(&mut client.state, State::Asks);
                    match state {
                        State::Submits(submission) | State::Returns(submission)
                            if !submission.has_ended() && submission.job().is_some() =>
                        {
                            let pause = Duration::from_micros(self.random.below(500_000));
                            client.state = State::Lost(submission, now + pause);
                            return;
                        }
                        State::Submits(submission) if !submission.has_ended() => self.counts[2] += 1,
                        _ => {}
                    }
                    break self.leave(client, now);
                }
                Poll::Pending => break,
            }
            if client.socket.is_none() {
                return;
            }
        }
        if client.socket.is_some() && !self.closing && self.random.one_in(IMPATIENT) {
            check.log(now, "-- a client goes away");
            self.gone += 1;
            socket.close();
            self.leave(client, now);
        }
    }

    fn leave(&mut self, client: &mut Client, now: Instant) {
        client.socket = None;
        client.state = State::Away(now + Duration::from_micros(self.random.below(300_000)));
    }

    fn begin(&mut self, client: &mut Client, cluster: &Cluster) {
        let Some(socket) = cluster.manager.connect() else {
            return self.leave(client, cluster.world.now());
        };
        socket.send(&proto::encode(&Hello::Client { version: PROTOCOL_VERSION }));
        let cancelled = self.seen.last().copied().filter(|_| self.random.one_in(2));
        let wish = match (self.random.below(6), cancelled) {
            (0, _) => FromClient::Nodes { after: NodeId(0) },
            (1, None) => LIST,
            (1, Some(job)) => FromClient::Cancel { job },
            _ => Submission::wish(&mut self.random),
        };
        *client = Client { socket: Some(socket), state: State::Greets(wish) };
    }

    /// Connects again to go on with a job.
    fn return_to_job(&mut self, client: &mut Client, cluster: &Cluster) {
        let State::Lost(submission, at) = std::mem::replace(&mut client.state, State::Asks) else { return };
        client.state = match cluster.manager.connect() {
            Some(socket) => {
                socket.send(&proto::encode(&Hello::Client { version: PROTOCOL_VERSION }));
                client.socket = Some(socket);
                State::Returns(submission)
            }
            None => State::Lost(submission, at + LOOK),
        };
    }

    fn hears(&mut self, client: &mut Client, socket: &Socket, message: ToClient, check: &Check) {
        let leaves = match (&mut client.state, message) {
            (State::Greets(wish), ToClient::Hello) => {
                socket.send(&proto::encode(wish));
                client.state = Submission::of(wish).map_or(State::Asks, State::Submits);
                false
            }
            (State::Returns(submission), ToClient::Hello) => {
                if let Some(attach) = submission.attach() {
                    socket.send(&proto::encode(&attach));
                }
                let State::Returns(submission) = std::mem::replace(&mut client.state, State::Asks) else {
                    return;
                };
                self.returns += 1;
                client.state = State::Submits(submission);
                false
            }
            (State::Submits(submission), message) => {
                if let ToClient::Accepted { job, .. } | ToClient::Queued { job, .. } = &message {
                    self.seen.push(*job);
                }
                match submission.hears(socket, message) {
                    Ok(Some(done)) => self.counts[usize::from(!done)] += 1,
                    Ok(None) => {}
                    Err(seen) => check.violated("a submission ends once, with all of its input", seen),
                }
                submission.has_ended() && self.random.one_in(2)
            }
            (State::Asks, ToClient::JobList { jobs, .. }) => {
                self.jobs = jobs;
                true
            }
            (State::Asks, ToClient::Nodes { .. } | ToClient::Cancelled { .. } | ToClient::Failed { .. }) => {
                true
            }
            // The job has ended before it could be cancelled.
            (State::Asks, ToClient::Refused { kind: Refusal::NotFound, .. }) => true,
            (_, other) => {
                check.violated("the manager speaks its protocol", format!("{other:?}"));
                true
            }
        };
        if leaves {
            socket.close();
            self.leave(client, Instant::ZERO);
        }
    }

    /// Waits until all waits of clients have ended, and until no job is left. The caller calls it once all
    /// faults have ended.
    pub(super) fn end(&mut self, cluster: &mut Cluster, check: &Check) {
        if self.clients.is_empty() {
            return;
        }
        self.closing = true;
        let limit = cluster.world.now() + LIMIT;
        let waits = |client: &Client| match &client.state {
            State::Submits(submission) => client.socket.is_some() && !submission.has_ended(),
            State::Lost(..) | State::Returns(_) => true,
            State::Greets(_) | State::Asks => true,
            State::Away(_) => false,
        };
        let resigned = cluster.world.now() + RESIGNED;
        while self.clients.iter().any(waits) && cluster.world.now() < limit {
            cluster.world.run_for(LOOK);
            self.act(cluster, check);
            let now = cluster.world.now();
            for client in self.clients.iter_mut().filter(|_| now >= resigned) {
                let waits = matches!(&client.state, State::Submits(submission) if submission.waits());
                if let Some(socket) = client.socket.take_if(|_| waits) {
                    socket.close();
                    client.state = State::Away(now);
                }
            }
        }
        if let Some(waiting) = self.clients.iter().filter(|client| waits(client)).count().checked_sub(1) {
            check.violated("each wait of a client ends", format!("{} clients wait", waiting + 1));
        }
        while let Some(left) = self.left(cluster, check) {
            if cluster.world.now() >= limit {
                check.violated("each job ends", left);
                return;
            }
        }
    }

    /// Returns the manager's list of jobs as text, if there are any.
    fn left(&mut self, cluster: &mut Cluster, check: &Check) -> Option<String> {
        let Some(socket) = cluster.manager.connect() else { return Some("the manager is down".into()) };
        socket.send(&proto::encode(&Hello::Client { version: PROTOCOL_VERSION }));
        self.clients = vec![Client { socket: Some(socket), state: State::Greets(LIST) }];
        self.jobs.clear();
        for _ in 0..10 {
            cluster.world.run_for(LOOK);
            self.act(cluster, check);
            if matches!(self.clients.first(), Some(Client { socket: None, .. })) {
                return (!self.jobs.is_empty()).then(|| format!("{:?}", self.jobs));
            }
        }
        Some("the manager does not answer".into())
    }
}
