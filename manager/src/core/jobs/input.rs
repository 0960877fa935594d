//! A job's input: it is cut as it comes from the client or the spool, and sent to each node within the node's
//! credit.

use super::super::cut::Excess;
use super::super::records::Stage;
use super::super::{Action, ConnId, Core, Message};
use super::{Job, Overdue, Phase};
use platform::Instant;
use proto::{JobId, NodeId, ToManager, ToNode};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// The maximum number of bytes of input in one message.
pub(super) const MAX_INPUT: usize = 48 << 10;

/// The input of one node. All amounts are [charges](ToNode::input_charge).
#[derive(Debug)]
pub(super) struct Feed {
    /// The amount that the node accepts, counted from the first byte.
    credit: u64,
    /// The sum of the charges of the input that was sent.
    sent: u64,
    /// The messages that wait for credit, each with its charge, and the sum of the charges.
    queue: VecDeque<(u64, ToNode)>,
    queued: u64,
    /// The time since when the queue has waited for more credit.
    pub(super) stalled: Instant,
}

impl Feed {
    pub(super) fn new(now: Instant) -> Self {
        Self { credit: 0, sent: 0, queue: VecDeque::new(), queued: 0, stalled: now }
    }

    fn push(&mut self, now: Instant, charge: u64, message: ToNode) {
        if self.queue.is_empty() {
            self.stalled = now;
        }
        self.queued += charge;
        self.queue.push_back((charge, message));
    }

    /// Removes and returns the next message for which the node has credit.
    fn pop(&mut self) -> Option<ToNode> {
        let charge = self.queue.front()?.0;
        let sent = self.sent.checked_add(charge).filter(|sent| *sent <= self.credit)?;
        let (_, message) = self.queue.pop_front()?;
        (self.sent, self.queued) = (sent, self.queued - charge);
        Some(message)
    }
}

impl Job {
    /// Returns, while input comes, the time at which the client or a node whose input waits will have delayed
    /// the job for too long, and that party.
    pub(super) fn load_due(&self, timeout: Duration) -> Option<(Instant, Overdue)> {
        let client = self.reading && self.cutter.as_ref().is_some_and(|cutter| !cutter.finished());
        let client = client.then_some((self.waiting + timeout, Overdue::Client));
        let parts = self.parts.iter().enumerate().filter(|(_, part)| !part.feed.queue.is_empty());
        let nodes = parts.map(|(rank, part)| (part.feed.stalled + timeout, Overdue::Feed(rank)));
        client.into_iter().chain(nodes).min_by_key(|(at, _)| *at)
    }

    /// Returns the largest amount that waits for one node, and the amount that waits for all.
    fn queued(&self) -> (u64, u64) {
        let queued = self.parts.iter().map(|part| part.feed.queued);
        queued.fold((0, 0), |(longest, sum), queued| (longest.max(queued), sum + queued))
    }
}

impl Core {
    /// Handles bytes of a job's input from a client.
    pub(in super::super) fn job_input(&mut self, conn: ConnId, of: JobId, bytes: &[u8]) {
        if self.arriving_input(conn, of, bytes) || self.starts_again(conn, of) {
            // A client of a job that starts again does not know yet that it has to send its input again.
            return;
        }
        let loading = |(id, job): &(JobId, &mut Job)| *id == of && job.phase == Phase::Loading;
        let Some(id) = self.jobs.of_client(conn).filter(loading).map(|(id, _)| id) else {
            return self.fail_client(conn, "input that no job waits for".into());
        };
        if bytes.len() > MAX_INPUT {
            return self.fail_client(conn, format!("more than {MAX_INPUT} bytes of input in one message"));
        }
        if bytes.is_empty() {
            return;
        }
        if let Err(excess) = self.cut_input(id, bytes) {
            self.fail_client(conn, excess.to_string());
        }
    }

    /// Cuts the next bytes of a job's input into splits for the job's nodes, and queues them.
    pub(super) fn cut_input(&mut self, id: JobId, bytes: &[u8]) -> Result<(), Excess> {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return Ok(()) };
        job.waiting = now;
        job.first_input.get_or_insert(now);
        let (parts, mut ranks) = (&mut job.parts, BTreeSet::new());
        let Some(cutter) = &mut job.cutter else { return Ok(()) };
        cutter.push(bytes, |piece| {
            let Some(part) = parts.get_mut(piece.rank) else { return };
            let message = ToNode::JobInput {
                job: id,
                file: piece.file,
                offset: piece.offset,
                bytes: piece.bytes.to_vec(),
                end_of_split: piece.end_of_split,
            };
            part.feed.push(now, ToNode::input_charge(piece.bytes.len()), message);
            ranks.insert(piece.rank);
        })?;
        for rank in ranks {
            self.feed(id, rank);
        }
        self.end_input_if_all_sent(id);
        self.regulate(id);
        Ok(())
    }

    /// Handles new credit of a node.
    pub(in super::super) fn job_credit(&mut self, node: NodeId, id: JobId, credit: u64) {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let Some(rank) = job.rank(node) else { return };
        let Some(part) = job.parts.get_mut(rank) else { return };
        let complaint = if !part.accepted {
            "granted credit for a job that it has not accepted"
        } else if credit > part.feed.sent.saturating_add(ToManager::MAX_CREDIT) {
            "granted more credit than is permitted"
        } else {
            ""
        };
        if !complaint.is_empty() {
            let reason = format!("{} {complaint}", self.members.label(node));
            return self.fail_job(id, reason);
        }
        if credit > part.feed.credit {
            (part.feed.credit, part.feed.stalled) = (credit, now);
            self.feed(id, rank);
            self.end_input_if_all_sent(id);
            self.regulate(id);
        }
    }

    /// Sends a node the messages for which it has credit.
    fn feed(&mut self, id: JobId, rank: usize) {
        let Some(part) = self.jobs.running.get_mut(&id).and_then(|job| job.parts.get_mut(rank)) else {
            return;
        };
        let Some(conn) = self.members.get(part.node).and_then(|live| live.conn) else { return };
        while let Some(message) = part.feed.pop() {
            self.actions.push(Action::Send { conn, message: Message::ToNode(message) });
        }
    }

    pub(super) fn end_input_if_all_sent(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let Some(cutter) = job.cutter.as_ref().filter(|cutter| cutter.finished()) else { return };
        let loads: Vec<u64> = cutter.loads().to_vec();
        if job.phase != Phase::Loading || job.queued().1 > 0 {
            return;
        }
        job.enter(Phase::Running, now);
        job.last_input = Some(now);
        // From now on nodes compute: after a restart of the manager the job must not begin on other nodes.
        self.save_job(id, Stage::Running);
        let loads: Vec<String> = loads.iter().take(64).map(u64::to_string).collect();
        self.tell_parts(id, &ToNode::JobInputEnd { job: id });
        self.log(format!("job {}: all input was sent, bytes by rank: {}", id.0, loads.join(" ")));
    }

    /// Handles the report that input for a node has been handed to the network.
    pub(in super::super) fn input_sent(&mut self, node: NodeId) {
        let now = self.now;
        let Some(id) = self.members.get(node).and_then(|live| live.job) else { return };
        if let Some(job) = self.jobs.running.get_mut(&id)
            && job.phase == Phase::Running
            && job.parts.iter().all(|part| !part.over)
        {
            job.last_input = Some(now);
        }
    }

    /// Stops or resumes receiving input, depending on the amount that waits for the job's nodes.
    fn regulate(&mut self, id: JobId) {
        let (now, config) = (self.now, &self.config);
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let (longest, all) = job.queued();
        let part = if job.reading { 1 } else { 2 };
        let reading = longest <= config.input_window / part && all <= config.job_window / part;
        if reading != job.reading {
            job.reading = reading;
            // The wait for the client starts now: while its messages are not received, it may be silent.
            job.waiting = now;
            self.actions.extend(job.client.map(|conn| Action::Reading { conn, on: reading }));
            self.read_input(id);
        }
    }
}
