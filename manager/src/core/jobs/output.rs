//! The nodes' messages while a job runs, progress and output, on their way to its client.

use super::super::{ConnId, Core};
use super::Phase;
use proto::{JobId, NodeId, ToClient, ToManager, ToNode, printable};

/// The maximum number of bytes of output in one message.
const MAX_OUTPUT: usize = 64 << 10;

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
        let client = job.client;
        // Progress is for people: messages that are too frequent for them are dropped.
        if job.part_mut(node).is_some_and(|part| part.progress.take(now, 1)) && job.progress.take(now, 1) {
            let end = phase.floor_char_boundary(ToManager::MAX_PHASE);
            let phase = printable(phase.get(..end).unwrap_or_default());
            self.tell_client(client, ToClient::Progress { node, phase, done, total });
        }
    }

    pub(in super::super) fn job_output(&mut self, node: NodeId, id: JobId, bytes: Vec<u8>) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let (client, rank) = (job.client, job.rank(node));
        job.output_in_flight = job.output_in_flight.saturating_add(bytes.len());
        let complaint = match rank {
            Some(0) if job.phase != Phase::Running => "sent output before it had all input",
            Some(0) if bytes.len() > MAX_OUTPUT => "sent too long a piece of output",
            Some(0) if job.output_in_flight > ToManager::OUTPUT_WINDOW => {
                "sent output without waiting for its window"
            }
            Some(0) => return self.tell_client(client, ToClient::Output { bytes }),
            _ => "sent output, which only rank 0 may send",
        };
        let reason = format!("{} {complaint}", self.members.label(node));
        self.fail_job(id, reason);
    }

    /// Handles the report that output for the client has been handed to the network.
    pub(in super::super) fn output_sent(&mut self, conn: ConnId, bytes: usize) {
        let Some((id, job)) = self.jobs.of_client(conn).filter(|_| bytes > 0) else { return };
        job.output_in_flight = job.output_in_flight.saturating_sub(bytes);
        let first = job.parts.first().map(|part| part.node);
        if let Some(conn) = first.and_then(|node| self.members.get(node)).map(|live| live.conn) {
            self.tell_node(conn, ToNode::JobOutputAck { job: id, bytes: bytes as u64 });
        }
    }
}
