//! The nodes' messages while a job runs, progress and output, on their way to its client.
//!
//! The node of rank 0 keeps its output until the client has acknowledged it, or the spool has it. So the
//! manager keeps none, and after a break of a connection the node sends the rest again.

use super::super::{ConnId, Core};
use super::Phase;
use proto::{JobId, NodeId, ToClient, ToManager, ToNode, printable};

/// The maximum number of bytes of output in one message.
const MAX_OUTPUT: usize = 64 << 10;

/// The positions in a job's output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutputFlow {
    /// The end of the output that was passed on to the present connection of the client.
    pub(super) passed: u64,
    /// The end of the output that the client has.
    pub(super) taken: u64,
}

impl OutputFlow {
    /// Returns the flow after the client has reported that it has `taken` bytes.
    pub(super) const fn from(taken: u64) -> Self {
        Self { passed: taken, taken }
    }
}

impl Core {
    pub(in super::super) fn job_progress(
        &mut self,
        node: NodeId,
        id: JobId,
        phase: &str,
        done: u64,
        total: u64,
    ) {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let Some(client) = job.client else { return };
        // Progress is for people: messages that are too frequent for them are dropped.
        if job.part_mut(node).is_some_and(|part| part.progress.take(now, 1)) && job.progress.take(now, 1) {
            let end = phase.floor_char_boundary(ToManager::MAX_PHASE);
            let phase = printable(phase.get(..end).unwrap_or_default());
            self.tell_client(client, ToClient::Progress { node, phase, done, total });
        }
    }

    pub(in super::super) fn job_output(&mut self, node: NodeId, id: JobId, offset: u64, bytes: Vec<u8>) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let (client, rank) = (job.client, job.rank(node));
        let end = offset.saturating_add(bytes.len() as u64);
        let complaint = match rank {
            Some(0) if job.phase != Phase::Running => "sent output before it had all input",
            Some(0) if bytes.len() > MAX_OUTPUT => "sent too long a piece of output",
            // The node has sent this before it knew from where on the client wants it.
            Some(0) if client.is_none() && !job.spools() || offset != job.output.passed => return,
            Some(0) if end - job.output.taken > ToManager::OUTPUT_WINDOW as u64 => {
                "sent output without waiting for its window"
            }
            Some(0) => {
                job.output.passed = end;
                if job.spools() {
                    return self.store_output(id, offset, bytes);
                }
                return client.into_iter().for_each(|client| {
                    self.tell_client(client, ToClient::Output { bytes: bytes.clone() });
                });
            }
            _ => "sent output, which only rank 0 may send",
        };
        let reason = format!("{} {complaint}", self.members.label(node));
        self.fail_job(id, reason);
    }

    /// Handles a client's acknowledgement of output.
    pub(in super::super) fn output_taken(&mut self, conn: ConnId, bytes: u64) {
        let Some((id, job)) = self.jobs.of_client(conn) else { return };
        if bytes <= job.output.taken || bytes > job.output.passed {
            return;
        }
        job.output.taken = bytes;
        let first = job.parts.first().map(|part| part.node);
        if let Some(conn) = first.and_then(|node| self.members.get(node)).and_then(|live| live.conn) {
            self.tell_node(conn, ToNode::JobOutputAck { job: id, bytes });
        }
    }

    /// Asks the node of rank 0 for the output that was not passed on to the client, if both are connected.
    pub(super) fn ask_output(&mut self, id: JobId) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        if job.client.is_none() && !job.spools() || job.phase != Phase::Running {
            return;
        }
        let (OutputFlow { passed: offset, taken: bytes }, first) = (job.output, job.parts.first());
        let live = first.filter(|part| !part.over).and_then(|part| self.members.get(part.node));
        if let Some(conn) = live.and_then(|live| live.conn) {
            self.commit_to_node(conn, ToNode::JobOutputAck { job: id, bytes });
            self.commit_to_node(conn, ToNode::JobOutputFrom { job: id, offset });
        }
    }
}
