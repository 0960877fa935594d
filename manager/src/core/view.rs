//! The state of the cluster for people: a copy that others read while the core goes on.

use super::inventory::InventoryView;
use super::telemetry::{Departed, NodeTelemetry};
use super::timeline::Timeline;
use super::{Core, Role};
use platform::Instant;
use proto::{
    JobId, JobInfo, JobStatus, NodeStanding, NodeStatus, Reason, RnicOffer, RolloutStatus, UserRole,
    UserStatus,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The number of events that are kept.
const EVENTS: usize = 1000;

/// The number of jobs of the queue that people see.
const QUEUE: usize = 50;

/// Something that the manager has logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreEvent {
    /// The number of the event, from zero on.
    pub number: u64,
    /// The time.
    pub at: Instant,
    /// The text, printable.
    pub text: String,
    /// The least role that may read the event.
    pub least: UserRole,
}

/// The last events, the oldest first. A reader gets those of its role only.
#[derive(Clone, Debug, Default)]
pub struct EventList(Arc<VecDeque<Arc<CoreEvent>>>);

impl EventList {
    /// Returns the events that a role may read.
    pub fn of(&self, role: UserRole) -> impl DoubleEndedIterator<Item = &CoreEvent> {
        self.0.iter().map(Arc::as_ref).filter(move |event| event.least <= role)
    }
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: EventList,
    next: u64,
}

impl Events {
    pub(super) fn add(&mut self, at: Instant, text: &str, least: UserRole) {
        let kept = Arc::make_mut(&mut self.kept.0);
        if kept.len() == EVENTS {
            kept.pop_front();
        }
        kept.push_back(Arc::new(CoreEvent { number: self.next, at, text: text.to_owned(), least }));
        self.next += 1;
    }
}

/// A member.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// The member as the command line shows it.
    pub status: NodeStatus,
    /// The state: in service, or out of service with a reason.
    pub standing: NodeStanding,
    /// The job in which the member takes part.
    pub job: Option<JobId>,
    /// The member's RNIC.
    pub rnic: RnicOffer,
    /// The reports of the node on itself.
    pub told: NodeTelemetry,
}

/// The state of the cluster at one time.
#[derive(Clone, Debug)]
pub struct View {
    /// The time of the manager's clock.
    pub at: Instant,
    /// The number of the manager's process.
    pub epoch: u64,
    /// The lease of members.
    pub lease: Duration,
    /// The reason why nothing can be saved at present, or why this manager may not act.
    pub trouble: Option<Reason>,
    /// The users, by name.
    pub users: Vec<UserStatus>,
    /// True if the cluster's key for clients alone is that of an administrator.
    pub shared_key: bool,
    /// The number of clients that are connected.
    pub clients: usize,
    /// The members, by number.
    pub nodes: Vec<NodeView>,
    /// The nodes that are out of service and have not joined, by name.
    pub absent: Vec<(String, NodeStanding)>,
    /// The inventory against the members; `None` if it lists no node.
    pub inventory: Option<InventoryView>,
    /// The last rollout.
    pub rollout: Option<RolloutStatus>,
    /// The nodes that departed last, the last one at the end.
    pub departed: Vec<Arc<Departed>>,
    /// The present jobs, by number.
    pub jobs: Vec<JobStatus>,
    /// The first jobs of the queue, in the order of their turns, each with its owner.
    pub queue: Vec<(JobInfo, String)>,
    /// The number of all jobs of the queue.
    pub queued: usize,
    /// The jobs that this process of the manager has seen, by number.
    pub timelines: Vec<Arc<Timeline>>,
    /// The last events.
    pub events: EventList,
    /// The number of all events.
    pub events_total: u64,
}

impl Core {
    /// Returns a copy of the state for people. The lines of logs, the events and the jobs are shared, not
    /// copied.
    #[must_use]
    pub fn view(&self) -> View {
        let nodes = self.members.0.iter().map(|(id, live)| NodeView {
            status: self.status(live),
            standing: self.standing(&live.member.name, Some(live)),
            job: live.job,
            rnic: live.member.rnic.clone(),
            told: self.told.nodes.get(id).cloned().unwrap_or_default(),
        });
        View {
            at: self.now,
            epoch: self.identities.epoch,
            lease: self.config.lease,
            trouble: self.stale.clone().or_else(|| self.unsaved.clone()),
            users: self.users.statuses(),
            shared_key: self.accepts_shared_key(),
            clients: self.connections.values().filter(|conn| conn.role == Role::Client).count(),
            nodes: nodes.collect(),
            absent: self.absent(),
            inventory: self.inventory_view(),
            rollout: self.rollout.status().cloned(),
            departed: self.told.departed.iter().cloned().collect(),
            jobs: self.job_statuses(),
            queue: self.queue_head(QUEUE),
            queued: self.jobs.queued(),
            timelines: self.timelines.all(),
            events: self.events.kept.clone(),
            events_total: self.events.next,
        }
    }
}
