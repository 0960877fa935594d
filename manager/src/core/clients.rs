//! Clients: requests to list nodes and to wait for them, and the shutdown of the cluster.

use super::service::Drain;
use super::{Action, ConnId, Core};
use platform::Instant;
use proto::{FromClient, JobQos, NodeId, Reason, Refusal, Terms, ToClient, ToNode, UserRole, printable};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest time for which a client may let the manager wait for nodes.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The first protocol version that has [`ToClient::Refused`].
const KINDS_OF_REFUSALS: u16 = 10;

/// Clients that wait for nodes.
#[derive(Debug, Default)]
pub(super) struct Clients(BTreeMap<ConnId, Waiting>);

#[derive(Debug)]
struct Waiting {
    count: u16,
    since: Instant,
    timeout: Duration,
}

impl Waiting {
    fn deadline(&self) -> Instant {
        self.since + self.timeout
    }
}

impl Clients {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().map(Waiting::deadline).min()
    }

    /// Moves the starts of all waits by `later`.
    pub(super) fn forgive(&mut self, later: impl Fn(&mut Instant)) {
        self.0.values_mut().for_each(|waiting| later(&mut waiting.since));
    }

    /// Ends the wait of a client.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.0.remove(&conn);
    }

    /// Removes and returns the clients whose waits satisfy `over`.
    fn take(&mut self, over: impl Fn(&Waiting) -> bool) -> Vec<(ConnId, Waiting)> {
        let taken: Vec<ConnId> = self.0.iter().filter(|(_, w)| over(w)).map(|(&conn, _)| conn).collect();
        taken.into_iter().filter_map(|conn| self.0.remove_entry(&conn)).collect()
    }
}

/// A shutdown of the cluster.
#[derive(Debug)]
pub(super) struct Leaving {
    conn: ConnId,
    /// The time when the nodes were told.
    pub(super) since: Instant,
}

impl Core {
    pub(super) fn client_says(&mut self, conn: ConnId, message: FromClient) {
        self.audit_request(conn, &message);
        if let Some(reason) = self.objection_to(conn, &message) {
            return self.refuse_client(conn, Refusal::Denied, reason);
        }
        self.obey(conn, message);
    }

    /// Does what a client may ask for.
    fn obey(&mut self, conn: ConnId, message: FromClient) {
        match message {
            FromClient::Nodes { after } => self.tell_nodes(conn, after),
            FromClient::WaitNodes { count, timeout_ms } => self.wait_nodes(conn, count, timeout_ms),
            FromClient::Submit(request) => {
                self.submit(conn, request.into(), Terms::default(), &JobQos::default());
            }
            FromClient::SubmitOn { request, terms } => {
                self.submit(conn, request.into(), terms, &JobQos::default());
            }
            FromClient::SubmitWith { request, terms, qos } => {
                self.submit(conn, request.into(), terms, &qos);
            }
            FromClient::JobList { after, ended } => self.tell_jobs(conn, after, ended),
            FromClient::JobShow { job } => self.show_job(conn, job),
            FromClient::JobWait { job, timeout_ms } => self.wait_job(conn, job, timeout_ms),
            FromClient::JobLog { job, offset } => self.tell_log(conn, job, offset),
            FromClient::JobOutput { job, offset } => self.tell_output(conn, job, offset),
            FromClient::Input { job, bytes } => self.job_input(conn, job, &bytes),
            FromClient::Attach { job, output } => self.attach(conn, job, output),
            FromClient::OutputTaken { bytes } => self.output_taken(conn, bytes),
            FromClient::Shutdown => self.shutdown(conn),
            FromClient::Jobs => {
                let jobs = self.job_statuses();
                self.tell_client(conn, ToClient::Jobs(jobs));
            }
            FromClient::Cancel { job } => self.cancel_for(conn, job),
            FromClient::Datasets => self.tell_datasets(conn),
            FromClient::DropDataset { name } => self.drop_dataset(conn, name),
            FromClient::Power { node, action } => self.power(conn, &node, action),
            FromClient::Bmc { node, verb, force } => self.bmc(conn, &node, verb, force),
            FromClient::Inventory { after } => self.tell_inventory(conn, &after),
            FromClient::Boot { node, image } => self.boot(conn, &node, image),
            FromClient::Backup => {
                // The answer does not pass through here.
                self.audit_unanswered(conn, "begun");
                self.actions.push(Action::Backup { conn });
            }
            FromClient::Support => self.tell_support(conn),
            FromClient::ImagePiece { bytes } if self.images.arrives_from(conn) => {
                self.kept_piece(conn, &bytes);
            }
            FromClient::ImagePiece { bytes } => self.image_piece(conn, bytes),
            FromClient::NodeList { after } => self.tell_node_list(conn, &after),
            FromClient::Drain { node, reason, deadline_ms, force } => {
                let deadline = deadline_ms.map(Duration::from_millis);
                self.drain(conn, Drain { node, reason, deadline, force });
            }
            FromClient::Undrain { node } => self.undrain(conn, &node),
            request @ (FromClient::ImageAdd { .. }
            | FromClient::Images
            | FromClient::ImageRemove { .. }
            | FromClient::RolloutStart(_)
            | FromClient::Rollout
            | FromClient::RolloutStop
            | FromClient::RolloutUndo) => self.image_request(conn, request),
            FromClient::WhoAmI => self.tell_asker(conn),
            FromClient::Users => self.tell_users(conn),
            FromClient::AddUser(user) => self.add_user(conn, user),
            FromClient::RemoveUser { name } => self.remove_user(conn, &name),
            FromClient::SetUserRole { name, role } => self.set_user_role(conn, name, role),
            FromClient::Audit { after } => self.tell_audit(conn, after),
        }
    }

    fn tell_nodes(&mut self, conn: ConnId, after: NodeId) {
        let (nodes, more) = self.statuses(after);
        self.tell_client(conn, ToClient::Nodes { nodes, more });
    }

    fn wait_nodes(&mut self, conn: ConnId, count: u16, timeout_ms: u64) {
        let timeout = Duration::from_millis(timeout_ms).min(MAX_WAIT);
        let waiting = Waiting { count, since: self.now, timeout };
        if self.clients.0.insert(conn, waiting).is_some() {
            return self.fail_client(conn, "this connection already waits for nodes".into());
        }
        self.members_changed();
    }

    /// Refuses a client's request, or reports its failure, and ends the connection.
    pub(super) fn fail_client(&mut self, conn: ConnId, reason: Reason) {
        self.end_client(conn, &reason.clone(), ToClient::Failed { reason });
    }

    /// Refuses a client's request for a reason that programs tell from others, and ends the connection.
    pub(super) fn refuse_client(&mut self, conn: ConnId, kind: Refusal, reason: Reason) {
        // The release before had one kind of refusal.
        let answer = if self.version(conn) < KINDS_OF_REFUSALS {
            ToClient::Failed { reason: reason.clone() }
        } else {
            ToClient::Refused { kind, reason: reason.clone() }
        };
        self.end_client(conn, &reason, answer);
    }

    fn end_client(&mut self, conn: ConnId, reason: &str, answer: ToClient) {
        let peer = self.peer(conn);
        // The line names a user, and whatever that user has asked for.
        self.log_for(UserRole::Operator, format!("{peer}: {reason}"));
        self.audit_answer(conn, &answer);
        self.client_forgotten(conn, "its client broke the protocol");
        self.tell_client(conn, answer);
        self.close(conn);
    }

    pub(super) fn client_gone(&mut self, conn: ConnId, reason: &str) {
        self.client_forgotten(conn, &format!("its client has disconnected: {reason}"));
    }

    /// Drops the wait and the jobs of a client whose connection has ended.
    fn client_forgotten(&mut self, conn: ConnId, reason: &str) {
        self.clients.forget(conn);
        self.audit_unanswered(conn, "not answered");
        self.history.forget(conn);
        self.cancel_jobs_of(conn, reason);
        self.forget_order_of(conn);
        self.images.forget(conn);
        if let Some(leaving) = &mut self.leaving
            && leaving.conn == conn
        {
            // The nodes have been told and continue to leave, though no client waits for it. The deadline
            // still ends the shutdown.
            leaving.conn = ConnId(u64::MAX);
        }
    }

    fn shutdown(&mut self, conn: ConnId) {
        if self.leaving.is_some() {
            return self.fail_client(conn, "the cluster is being shut down already".into());
        }
        self.log(format!("{} shuts the cluster down", self.peer(conn)));
        self.leaving = Some(Leaving { conn, since: self.now });
        self.fail_arrivals("the cluster is shut down");
        self.fail_all_jobs("the cluster is shut down");
        self.tell_members(&ToNode::Shutdown);
        self.members_changed();
    }

    /// Fails the pending requests of clients. Members, jobs and the queue stay as they are, for the next
    /// process of the manager.
    pub(super) fn stop(&mut self) {
        let reason = "the manager stops";
        self.stopping = true;
        self.fail_arrivals(reason);
        self.leave_jobs(reason);
        self.fail_orders(reason);
        self.fail_bmc_orders(reason);
        let waiting = std::mem::take(&mut self.clients.0).into_keys();
        let waiting: Vec<ConnId> = waiting.chain(self.leaving.take().map(|leaving| leaving.conn)).collect();
        for conn in waiting {
            if self.connections.contains_key(&conn) {
                self.fail_client(conn, reason.into());
            }
        }
    }

    /// Answers the clients that waited for members to join or to leave, and starts jobs on new members.
    pub(super) fn members_changed(&mut self) {
        self.schedule();
        let here = self.members.0.len();
        for (conn, _) in self.clients.take(|waiting| usize::from(waiting.count) <= here) {
            // The nodes are told first.
            let (nodes, more) = self.statuses(NodeId(0));
            self.commit_to_client(conn, ToClient::Nodes { nodes, more });
        }
        if here == 0
            && let Some(leaving) = self.leaving.take()
        {
            self.log("all nodes have left".into());
            if self.connections.contains_key(&leaving.conn) {
                self.tell_client(leaving.conn, ToClient::Done { run_us: 0, stream_us: 0 });
            }
        }
    }

    pub(super) fn expire_clients(&mut self) {
        let (here, now) = (self.members.0.len(), self.now);
        for (conn, waiting) in self.clients.take(|waiting| waiting.deadline() <= now) {
            let reason = format!("{here} of {} nodes joined in time", waiting.count);
            self.refuse_client(conn, Refusal::TimedOut, reason);
        }
        if self.leaving.as_ref().is_some_and(|leaving| leaving.since + self.config.leave <= self.now)
            && let Some(leaving) = self.leaving.take()
        {
            let nodes: Vec<NodeId> = self.members.0.keys().copied().collect();
            let labels: Vec<String> = nodes.iter().map(|&node| self.members.label(node)).collect();
            for node in nodes {
                self.remove_member(node, "did not leave in time");
            }
            if self.connections.contains_key(&leaving.conn) {
                let reason = format!("did not leave in time: {}", labels.join(", "));
                self.fail_client(leaving.conn, printable(&reason));
            }
        }
    }
}
