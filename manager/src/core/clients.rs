//! Clients: listing and awaiting nodes, and shutting the cluster down.

use super::jobs::Wanted;
use super::{ConnId, Core};
use platform::Instant;
use proto::{FromClient, NodeId, Reason, ToClient, ToNode};
use std::time::Duration;

/// The longest time that a client may have the manager wait for nodes.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Clients that wait for nodes.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    count: u16,
    deadline: Instant,
}

impl Clients {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.deadline).min()
    }
}

/// The cluster is being shut down.
#[derive(Debug)]
pub(super) struct Leaving {
    conn: ConnId,
    pub(super) deadline: Instant,
}

impl Core {
    pub(super) fn client_says(&mut self, conn: ConnId, message: FromClient) {
        match message {
            FromClient::Nodes => {
                let nodes = self.statuses();
                self.tell_client(conn, ToClient::Nodes(nodes));
            }
            FromClient::WaitNodes { count, timeout_ms } => {
                let wait = Duration::from_millis(timeout_ms).min(MAX_WAIT);
                self.clients.0.push(Waiting { conn, count, deadline: self.now + wait });
                self.members_changed();
            }
            FromClient::Submit { app, args, nodes, on, inputs } => {
                let wanted = if on.is_empty() { Wanted::Any(nodes.into()) } else { Wanted::Named(on) };
                self.submit(conn, app, args, &wanted, inputs);
            }
            FromClient::Input { bytes } => self.job_input(conn, &bytes),
            FromClient::Shutdown => self.shutdown(conn),
        }
    }

    /// Refuses what a client wants, or says that it has failed; the connection ends.
    pub(super) fn fail_client(&mut self, conn: ConnId, reason: Reason) {
        let peer = self.peer(conn);
        self.log(format!("{peer}: {reason}"));
        self.client_forgotten(conn, "its client broke the protocol");
        self.tell_client(conn, ToClient::Failed { reason });
        self.close(conn);
    }

    pub(super) fn client_gone(&mut self, conn: ConnId, reason: &str) {
        self.client_forgotten(conn, &format!("its client is gone: {reason}"));
    }

    /// Drops all that is under way for a client.
    fn client_forgotten(&mut self, conn: ConnId, reason: &str) {
        self.clients.0.retain(|waiting| waiting.conn != conn);
        self.cancel_jobs_of(conn, reason);
        if let Some(leaving) = &mut self.leaving
            && leaving.conn == conn
        {
            // The nodes have been told and go on leaving; nobody waits for it. The deadline still ends it.
            leaving.conn = ConnId(u64::MAX);
        }
    }

    fn shutdown(&mut self, conn: ConnId) {
        if self.leaving.is_some() {
            return self.fail_client(conn, "the cluster is being shut down already".into());
        }
        self.log(format!("{} shuts the cluster down", self.peer(conn)));
        self.leaving = Some(Leaving { conn, deadline: self.now + self.config.leave });
        self.fail_all_jobs("the cluster is shut down");
        let conns: Vec<ConnId> = self.members.0.values().map(|live| live.conn).collect();
        for conn in conns {
            self.tell_node(conn, ToNode::Shutdown);
        }
        self.members_changed();
    }

    /// Fails whatever clients have under way.
    pub(super) fn stop(&mut self) {
        let reason = "the manager stops";
        self.fail_all_jobs(reason);
        let waiting = std::mem::take(&mut self.clients.0).into_iter().map(|waiting| waiting.conn);
        let waiting: Vec<ConnId> = waiting.chain(self.leaving.take().map(|leaving| leaving.conn)).collect();
        for conn in waiting {
            if self.connections.contains_key(&conn) {
                self.fail_client(conn, reason.into());
            }
        }
    }

    /// Answers who waited for members to come or to go.
    pub(super) fn members_changed(&mut self) {
        let here = self.members.0.len();
        let (served, rest) = std::mem::take(&mut self.clients.0)
            .into_iter()
            .partition(|w: &Waiting| usize::from(w.count) <= here);
        self.clients.0 = rest;
        for waiting in served {
            let nodes = self.statuses();
            self.tell_client(waiting.conn, ToClient::Nodes(nodes));
        }
        if here == 0
            && let Some(leaving) = self.leaving.take()
        {
            self.log("all nodes have left".into());
            if self.connections.contains_key(&leaving.conn) {
                self.tell_client(
                    leaving.conn,
                    ToClient::Done { reports: Vec::new(), run_us: 0, stream_us: 0 },
                );
            }
        }
    }

    pub(super) fn expire_clients(&mut self) {
        let here = self.members.0.len();
        let (late, rest): (Vec<_>, _) =
            std::mem::take(&mut self.clients.0).into_iter().partition(|waiting| waiting.deadline <= self.now);
        self.clients.0 = rest;
        for waiting in late {
            let count = waiting.count;
            self.fail_client(waiting.conn, format!("{here} of {count} nodes joined in time"));
        }
        if self.leaving.as_ref().is_some_and(|leaving| leaving.deadline <= self.now)
            && let Some(leaving) = self.leaving.take()
        {
            let nodes: Vec<NodeId> = self.members.0.keys().copied().collect();
            let labels: Vec<String> = nodes.iter().map(|&node| self.members.label(node)).collect();
            for node in nodes {
                self.remove_member(node, "did not leave in time");
            }
            if self.connections.contains_key(&leaving.conn) {
                let reason = format!("did not leave in time: {}", labels.join(", "));
                self.fail_client(leaving.conn, reason);
            }
        }
    }
}
