//! Membership: joins and refusals, leases, relayed messages, and the end of members.

use super::rate::Rate;
use super::{ConnId, Core, MemberRecord, Message, Record, Role};
use crate::planted::{Bug, planted};
use platform::Instant;
use proto::{
    Incarnation, JobId, Join, Member, NameError, NodeId, NodeState, NodeStatus, Reason, RnicOffer,
    RunningImage, ToManager, ToNode, Welcome, check_text, printable,
};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::ops::Bound;
use std::time::Duration;
use verbs::{Gid, LinkKind, MacAddr, QpNum};

/// The greatest number of lines of a report on hardware that are logged.
const MAX_HARDWARE_LINES: usize = 1000;
/// The length of the longest relayed message, in bytes.
const MAX_RELAY: usize = 4096;

/// The maximum number of ended incarnations that not all members have seen: twice the maximum number of
/// members.
const MAX_DEPARTURES: usize = 8192;

/// The least amount that a relayed message or a voucher counts for, in bytes.
pub(super) const MIN_RELAY: usize = 256;

/// The number of bytes that a member may have relayed at once, and again in each second. To connect to 4,095
/// members at once takes about 2 MB.
const RELAYS: u64 = 8 << 20;

/// The maximum number of nodes that a line for people names.
const MAX_LABELS: usize = 8;

/// The length of a page of the list of members, in bytes.
const PAGE: usize = 256 << 10;
/// The reason for which a node that leaves is gone.
const LEFT: &str = "left";
/// The reason why no new work begins while no number for it is reserved on the disk.
pub(super) const STORE_IS_SLOW: &str = "the manager waits for its disk: try again";

/// A live member.
#[derive(Debug)]
pub(super) struct Live {
    /// The node's connection; `None` while the node is silent.
    pub(super) conn: Option<ConnId>,
    /// True if the manager has started since the node joined, and the node has not resumed yet.
    pub(super) awaited: bool,
    /// True if the node has resumed and has not told its parts of jobs yet.
    pub(super) asked: bool,
    pub(super) member: Member,
    pub(super) join: Join,
    /// The time at which the lease ends.
    pub(super) expires: Instant,
    pub(super) last_heartbeat: Instant,
    /// The job in which the member takes part, until the member's part is over.
    pub(super) job: Option<JobId>,
    /// The allowance of relayed messages and vouchers.
    pub(super) relays: Rate,
    /// The queue pair at which it receives datagrams, if its RNIC has them.
    pub(super) datagrams: Option<QpNum>,
    /// The image that the node runs, once it has told it.
    pub(super) image: Option<RunningImage>,
    /// True once the node has told the end of its machine's former boot.
    former_end_told: bool,
    /// True once the node has told about its machine's hardware.
    hardware_told: bool,
    /// The report on its machine's hardware in printable text, empty if there is none.
    hardware: String,
}

impl Live {
    /// Returns the node's number and name, for people.
    pub(super) fn label(&self) -> String {
        format!("{} ({})", self.member.node, self.member.name)
    }

    /// Returns a member with a lease from `now` on.
    fn joined(conn: Option<ConnId>, member: Member, join: Join, now: Instant, lease: Duration) -> Self {
        Self {
            conn,
            awaited: false,
            asked: false,
            member,
            join,
            expires: now + lease,
            last_heartbeat: now,
            job: None,
            relays: Rate::new(RELAYS, Duration::from_secs(1)),
            datagrams: None,
            image: None,
            former_end_told: false,
            hardware_told: false,
            hardware: String::new(),
        }
    }

    /// Returns a member as the store has it, which has a lease from `now` on to resume.
    pub(super) fn restored(record: MemberRecord, now: Instant, lease: Duration) -> Self {
        let MemberRecord { node, incarnation, gid, join } = record;
        let member = Member { node, incarnation, name: join.name.clone(), gid, rnic: join.rnic.clone() };
        Self {
            awaited: true,
            // A machine tells both right after it has joined.
            former_end_told: true,
            hardware_told: true,
            ..Self::joined(None, member, join, now, lease)
        }
    }
}

/// The live members, by id.
#[derive(Debug, Default)]
pub(super) struct Members(pub(super) BTreeMap<NodeId, Live>);

impl Members {
    pub(super) fn get(&self, node: NodeId) -> Option<&Live> {
        self.0.get(&node)
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Live> {
        self.0.get_mut(&node)
    }

    /// Returns the member of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Live> {
        self.0.values().find(|live| live.member.name == name)
    }

    /// Returns the node's number and name, for people, whether it lives or not.
    pub(super) fn label(&self, node: NodeId) -> String {
        self.get(node).map_or_else(|| node.to_string(), Live::label)
    }

    /// Returns the labels of some nodes, for people: those of the first few, and the number of the others.
    pub(super) fn labels(&self, nodes: impl Iterator<Item = NodeId>) -> String {
        let mut nodes = nodes.fuse();
        let first: Vec<String> = nodes.by_ref().take(MAX_LABELS).map(|node| self.label(node)).collect();
        let first = first.join(", ");
        match nodes.count() {
            0 => first,
            more => format!("{first} and {more} more"),
        }
    }

    /// Returns the members by free memory, the most first. Of equals, the one with the lower id is first.
    fn most_free(&self) -> Vec<(NodeId, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(&node, live)| (node, live.join.memory_free)).collect();
        all.sort_by_key(|&(node, free)| (std::cmp::Reverse(free), node));
        all.truncate(ToNode::MOST_FREE);
        all
    }

    /// Returns a node's report on its machine's hardware; empty without one.
    pub(super) fn hardware(&self, node: NodeId) -> &str {
        self.get(node).map_or("", |live| &live.hardware)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|live| live.expires).min()
    }

    pub(super) fn expired(&self, now: Instant) -> Vec<NodeId> {
        self.0.iter().filter(|(_, live)| live.expires <= now).map(|(&node, _)| node).collect()
    }

    /// Corrects the leases after the manager was deaf for `late`, which ends no lease. Each lease keeps its
    /// remaining time, or starts again if `late` is longer than a whole lease.
    pub(super) fn forgive(&mut self, now: Instant, late: Duration, lease: Duration) {
        for live in self.0.values_mut().filter(|_| !planted(Bug::DeafnessCounts)) {
            let extended = if late < lease { live.expires + late } else { now + lease };
            live.expires = extended.min(now + lease);
        }
    }

    /// Returns the reason why a node cannot be a member beside the present ones.
    fn objection(&self, join: &Join, trust_hosts: bool) -> Option<Reason> {
        if let Err(reason) = join.check() {
            return Some(reason);
        }
        if join.rnic.links.is_empty() {
            return Some("its RNIC supports no link type".into());
        }
        if join.rnic.gid.is_some_and(|gid| !is_unicast(gid)) {
            return Some("the GID that its RNIC has is not one of a single port".into());
        }
        for other in self.0.values() {
            let label = other.label();
            let theirs = &other.member.rnic;
            if other.member.name == join.name {
                return Some(format!("the name {} is in use by {label}", join.name));
            }
            if !join.rnic.links.iter().any(|link| theirs.links.contains(link)) {
                let (ours, theirs) = (kinds(&join.rnic), kinds(theirs));
                return Some(format!(
                    "{} speaks {ours} and {label} speaks {theirs}: no link in common",
                    join.name
                ));
            }
            let shares_port = shares_port(&join.rnic, theirs);
            if join.rnic.gid == Some(other.member.gid) && !shares_port {
                return Some(format!("{label} already has the GID {}", other.member.gid));
            }
            if join.rnic.mac == theirs.mac && theirs.mac != MacAddr([0; 6]) && !shares_port {
                return Some(format!("{label} already has the Ethernet address {}", theirs.mac));
            }
            if join.rnic.physical != theirs.physical && !trust_hosts {
                let (host, appliance) =
                    if theirs.physical { (&join.name, &label) } else { (&label, &join.name) };
                return Some(format!(
                    "{host} is a process on a host and {appliance} an appliance whose memory it could reach; \
                     --trust-hosts allows it"
                ));
            }
        }
        None
    }

    /// Returns the silent members whose place a joining node takes: those with its name, GID or Ethernet
    /// address. The node cannot join while they live, so its join shows that they do not.
    pub(super) fn replaced_by(&self, join: &Join) -> Vec<NodeId> {
        let same = |live: &&Live| {
            let theirs = &live.member.rnic;
            let port = join.rnic.gid == Some(live.member.gid)
                || join.rnic.mac == theirs.mac && theirs.mac != MacAddr([0; 6]);
            live.member.name == join.name || port && !shares_port(&join.rnic, theirs)
        };
        let silent = self.0.values().filter(|live| live.conn.is_none());
        silent.filter(same).map(|live| live.member.node).collect()
    }

    /// Returns the GID for a node: 10.77.x.y from its number, unless another member has that address.
    fn assign_gid(&self, node: NodeId) -> Option<Gid> {
        let [high, low] = node.0.to_be_bytes();
        (0..16u8)
            .map(|block| Gid::from_ipv4([10, 77, block << 4 | high & 15, low]))
            .find(|gid| self.0.values().all(|live| live.member.gid != *gid))
    }
}

/// Returns a node's name, for people.
pub(super) fn named(name: &str) -> String {
    format!("the node {}", printable(name.get(..Join::MAX_TEXT).unwrap_or(name)))
}

/// Returns whether two nodes are processes of one host on the same RNIC, whose queue pair numbers distinguish
/// them.
fn shares_port(one: &RnicOffer, other: &RnicOffer) -> bool {
    let brought = one.gid.is_some() && one.gid == other.gid;
    brought && one.mac == other.mac && one.lid == other.lid && !one.physical && !other.physical
}

/// Returns whether a GID can be that of a port.
fn is_unicast(gid: Gid) -> bool {
    let ip = Ipv6Addr::from(gid.0).to_canonical();
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

/// Returns the link types of an RNIC, for people.
fn kinds(rnic: &RnicOffer) -> String {
    let name = |link: &LinkKind| match link {
        LinkKind::RoceV2 => "RoCE v2",
        LinkKind::RoceV1 => "RoCE v1",
        LinkKind::InfiniBand => "InfiniBand",
    };
    rnic.links.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Core {
    pub(super) fn join(&mut self, conn: ConnId, join: Join) {
        let who = named(&join.name);
        if self.leaving.is_some() {
            return self.refuse_node(conn, &who, "the cluster is shutting down".into());
        }
        if let Some(reason) = join.check().err().or_else(|| self.store_objection()) {
            return self.refuse_node(conn, &who, reason);
        }
        for former in self.members.replaced_by(&join) {
            self.remove_member(former, "a new incarnation of it joins");
        }
        if let Some(reason) = self.members.objection(&join, self.config.rules.trust_hosts) {
            return self.refuse_node(conn, &who, reason);
        }
        let mut save = Vec::new();
        let lives = |node: &NodeId| self.members.get(*node).is_some();
        let node = self.identities.node(&join.name, join.keep_id, lives, &mut save);
        let placed = node.and_then(|node| {
            let gid = join.rnic.gid.or_else(|| self.members.assign_gid(node))?;
            Some((node, gid))
        });
        let Some((node, gid)) = placed else {
            return self.refuse_node(conn, &who, "the cluster is full".into());
        };
        let incarnation = self.identities.incarnation(&mut save);
        let Some(incarnation) = incarnation else {
            self.save(save);
            return self.refuse_node(conn, &who, STORE_IS_SLOW.into());
        };
        save.push(Record::Member(Box::new(MemberRecord { node, incarnation, gid, join: join.clone() })));
        self.save(save);
        let member = Member { node, incarnation, name: join.name.clone(), gid, rnic: join.rnic.clone() };
        let mut others = self.members.0.values().map(|live| live.member.clone());
        let welcome = Welcome {
            node,
            incarnation,
            gid,
            lease_ms: u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX),
            time: self.identities.time(self.now),
            key: self.vouchers.member(node, incarnation),
            secret: self.vouchers.resume(node, incarnation),
            epoch: self.identities.epoch,
            members: others.by_ref().take(Welcome::MAX_MEMBERS).collect(),
        };
        let rest: Vec<Member> = others.collect();
        self.tell_members(&ToNode::Joined(member.clone()));
        let (name, version) = (join.name.clone(), join.version);
        let live = Live::joined(Some(conn), member, join, self.now, self.config.lease);
        let (label, peer) = (live.label(), self.peer(conn));
        let (driver, links) = (live.member.rnic.driver.clone(), kinds(&live.member.rnic));
        self.members.0.insert(node, live);
        self.set_role(conn, Role::Node(node));
        self.set_version(conn, version);
        self.has_been_turned_on(&name);
        self.commit_to_node(conn, ToNode::Welcome(welcome));
        for member in rest {
            self.commit_to_node(conn, ToNode::Joined(member));
        }
        self.ask_image(node);
        self.vacate_if_withdrawn(node);
        self.log(format!("{label} joined from {peer} as {gid}, {driver} with {links}"));
        self.members_changed();
    }

    pub(super) fn node_says(&mut self, node: NodeId, message: ToManager) {
        self.observe_part(node, &message);
        match message {
            ToManager::Telemetry(report) => self.telemetry_told(node, report),
            ToManager::Log { lines } => self.lines_told(node, &lines),
            message => self.member_says(node, message),
        }
    }

    fn member_says(&mut self, node: NodeId, message: ToManager) {
        let Some(conn) = self.members.get(node).and_then(|live| live.conn) else { return };
        let Some(live) = self.members.get_mut(node) else { return };
        match message {
            ToManager::Heartbeat { seq } => {
                live.expires = self.now + self.config.lease;
                live.last_heartbeat = self.now;
                self.tell_node(conn, ToNode::HeartbeatAck { seq, time: self.identities.time(self.now) });
            }
            ToManager::Relay { body, .. } if body.len() > MAX_RELAY => {
                self.remove_member(node, &format!("it relayed a message of more than {MAX_RELAY} bytes"));
            }
            ToManager::Relay { to, incarnation, body } => self.relay(node, to, incarnation, body),
            ToManager::NameBind { request, name, value } => {
                let incarnation = live.member.incarnation;
                let bound = self.bind_name((node, incarnation, request), name, value);
                let result = bound.map(|number| (node, number.to_le_bytes().to_vec()));
                self.commit_to_node(conn, ToNode::Name { request, result });
            }
            ToManager::NameUnbind { request, name } => {
                let result = self.unbind_name(node, name).map(|()| (node, Vec::new()));
                self.commit_to_node(conn, ToNode::Name { request, result });
            }
            ToManager::NameGive { request, name, to, incarnation, value } => {
                self.give_name(node, (conn, request), (to, incarnation), &name, value);
            }
            ToManager::NameLookup { request, name } => {
                let result = self.names.lookup(&name);
                self.commit_to_node(conn, ToNode::Name { request, result });
            }
            ToManager::MemoryFree { bytes } => live.join.memory_free = bytes,
            ToManager::AskMemoryFree { request } => {
                let nodes = self.members.most_free();
                self.tell_node(conn, ToNode::MemoryFree { request, nodes });
            }
            ToManager::LeftSeen { node: of, incarnation } => {
                let settled = self.departures.seen(node, of, incarnation);
                self.tell_settled(settled);
            }
            ToManager::JobAccepted { job } => self.job_accepted(node, job),
            ToManager::JobProgress { job, phase, done, total } => {
                self.job_progress(node, job, &phase, done, total);
            }
            ToManager::JobOutput { job, offset, bytes } => self.job_output(node, job, offset, bytes),
            ToManager::Jobs { jobs, kept } => self.jobs_told(node, jobs, &kept),
            ToManager::JobDone { job, report } => self.job_done(node, job, report),
            ToManager::JobFailed { job, reason } => self.job_failed_by(node, job, &reason),
            ToManager::JobInputCredit { job, bytes } => self.job_credit(node, job, bytes),
            ToManager::JobOver { job } => self.job_over(node, job),
            ToManager::Datagrams { queue_pair } => live.datagrams = queue_pair,
            ToManager::AskVoucher { request, to, incarnation } => {
                self.vouch(node, to, incarnation, request);
            }
            ToManager::Leave => self.remove_member(node, LEFT),
            ToManager::LastWords { reason } => self.remove_member(node, &format!("died: {reason}")),
            message => self.machine_says(node, message),
        }
    }

    /// Handles a node's message about its machine and the service of the node.
    fn machine_says(&mut self, node: NodeId, message: ToManager) {
        let Some(live) = self.members.get_mut(node) else { return };
        match message {
            // Once for each incarnation, so that a node cannot flood the log.
            ToManager::FormerEnd { reason } if !std::mem::replace(&mut live.former_end_told, true) => {
                let (label, reason) = (live.label(), printable(&reason));
                self.log(format!("{label}: the former boot of its machine ended: {reason}"));
            }
            ToManager::HardwareReport { lines } => self.log_hardware(node, &lines),
            ToManager::Image(image) if check_text("the version", &image.version, Join::MAX_TEXT).is_ok() => {
                live.image = Some(image);
                self.advance_rollout();
            }
            ToManager::Checked { request, result } => self.node_has_checked(node, request, result),
            ToManager::Vacated { result } => self.vacated(node, result),
            ToManager::ImageTaken { bytes } => self.image_taken(node, bytes),
            ToManager::ImageReady => self.image_ready(node),
            ToManager::ImageRefused { reason } => self.image_refused(node, &reason),
            _ => {}
        }
    }

    /// Asks a machine which image it runs, if its release tells that.
    pub(super) fn ask_image(&mut self, node: NodeId) {
        let machine = self.members.get(node).filter(|live| live.member.rnic.physical);
        let conn = machine.and_then(|live| live.conn);
        if let Some(conn) = conn.filter(|&conn| self.knows(conn, &ToNode::AskImage)) {
            self.commit_to_node(conn, ToNode::AskImage);
        }
    }

    /// Logs the report on a node's hardware, once for each incarnation, so that a node cannot flood the log.
    fn log_hardware(&mut self, node: NodeId, report: &str) {
        let Some(live) = self.members.get_mut(node).filter(|live| !live.hardware_told) else { return };
        live.hardware_told = true;
        live.hardware = report.lines().take(MAX_HARDWARE_LINES).map(printable).collect::<Vec<_>>().join("\n");
        let label = live.label();
        for line in report.lines().take(MAX_HARDWARE_LINES) {
            self.log(format!("{label}: hardware: {}", printable(line)));
        }
    }

    /// Relays a message to one incarnation of a member. Messages in excess count against their sender, not
    /// against the receiver whose queue they would fill.
    fn relay(&mut self, from: NodeId, to: NodeId, incarnation: Incarnation, body: Vec<u8>) {
        let now = self.now;
        let Some(live) = self.members.get_mut(from) else { return };
        if !live.relays.take(now, body.len().max(MIN_RELAY) as u64) {
            return self.remove_member(from, "it relayed more messages than any connection setup needs");
        }
        let sender = live.member.incarnation;
        let receiver = self.members.get(to).filter(|receiver| receiver.member.incarnation == incarnation);
        // A silent receiver misses the message; the sender repeats it when the receiver resumes.
        if let Some(conn) = receiver.and_then(|receiver| receiver.conn) {
            self.tell_node(conn, ToNode::Relayed { from, incarnation: sender, body });
        }
    }

    /// Ends the incarnation of a member: its peers are told, its names are unbound, and its job fails.
    pub(super) fn remove_member(&mut self, node: NodeId, reason: &str) {
        let reason = printable(reason);
        self.log_end_of(node, &reason);
        let Some(live) = self.members.0.remove(&node) else { return };
        let label = live.label();
        self.log(format!("{label} is gone: {reason}"));
        if !planted(Bug::NamesOutliveOwner) {
            let names = self.names.forget(node);
            self.save(names.into_iter().map(Record::Unname).collect());
        }
        if let Some(conn) = live.conn.filter(|conn| self.connections.contains_key(conn)) {
            self.close(conn);
        }
        let incarnation = live.member.incarnation;
        self.telemetry_ends(node, incarnation, &live.member.name, &reason);
        self.save(vec![Record::Left(node, incarnation)]);
        self.tell_members(&ToNode::Left { node, incarnation, reason: reason.clone() });
        let told = self.members.0.keys().copied().filter(|_| !planted(Bug::SettledAtOnce));
        let settled = self.departures.begin(node, incarnation, told);
        self.tell_settled(settled);
        if self.departures.len() > MAX_DEPARTURES {
            for slow in self.departures.slowest() {
                self.remove_member(slow, "it does not acknowledge the departure of other nodes");
            }
        }
        // Before the part is over: a job that waits for this node alone would start again without it.
        self.fail_restarts_on(node, &format!("{label}: {reason}"));
        if let Some(job) = live.job {
            self.part_is_over(node, job);
            self.job_lost_node(job, &format!("{label}: {reason}"));
        }
        self.drop_datasets_of(node, &label);
        self.ordered_is_gone(node, &live, &reason, reason == LEFT);
        self.rollout_node_is_gone(&live, &reason);
        self.members_changed();
    }

    pub(super) fn tell_settled(&mut self, lives: Vec<(NodeId, Incarnation)>) {
        for (node, incarnation) in lives {
            self.save(vec![Record::Settled(node, incarnation)]);
            self.tell_members(&ToNode::Settled { node, incarnation });
        }
    }

    pub(super) fn tell_members(&mut self, message: &ToNode) {
        let message = Message::to_nodes(message);
        let conns: Vec<ConnId> = self.members.0.values().filter_map(|live| live.conn).collect();
        for conn in conns {
            self.commit(conn, message.clone());
        }
    }

    /// Binds a name, or finds the binding that the same request has made before.
    fn bind_name(
        &mut self,
        by: (NodeId, Incarnation, u32),
        name: String,
        value: Vec<u8>,
    ) -> Result<u64, NameError> {
        if let Some(number) = self.names.bound_by(by.0, by.2, &name) {
            return Ok(number);
        }
        if self.commit.is_full() || self.unsaved.is_some() {
            return Err(NameError::Unsaved);
        }
        let mut save = Vec::new();
        let number = self.identities.binding(&mut save).ok_or(NameError::Unsaved);
        let bound = number.and_then(|number| self.names.bind(by, name, value, number));
        let bound = bound.map(|record| {
            let number = record.number;
            save.push(Record::Name(record));
            number
        });
        self.save(save);
        bound
    }

    /// Passes a name of `owner` to another member, and answers.
    fn give_name(
        &mut self,
        owner: NodeId,
        (conn, request): (ConnId, u32),
        to: (NodeId, Incarnation),
        name: &str,
        value: Vec<u8>,
    ) {
        let result = self.pass_name(owner, to, name, value);
        self.commit_to_node(conn, ToNode::Name { request, result });
    }

    fn pass_name(
        &mut self,
        owner: NodeId,
        to: (NodeId, Incarnation),
        name: &str,
        value: Vec<u8>,
    ) -> Result<(NodeId, Vec<u8>), NameError> {
        if self.commit.is_full() || self.unsaved.is_some() {
            return Err(NameError::Unsaved);
        }
        if self.members.get(to.0).is_none_or(|live| live.member.incarnation != to.1) {
            return Err(NameError::NotFound);
        }
        let mut save = Vec::new();
        let number = self.identities.binding(&mut save).ok_or(NameError::Unsaved)?;
        let given = self.names.give(owner, to, name, value, number);
        save.extend(given.iter().flatten().cloned().map(Record::Name));
        self.save(save);
        given?;
        let number = self.names.number(name).ok_or(NameError::NotFound)?;
        Ok((to.0, number.to_le_bytes().to_vec()))
    }

    fn unbind_name(&mut self, owner: NodeId, name: String) -> Result<(), NameError> {
        if self.commit.is_full() {
            return Err(NameError::Unsaved);
        }
        self.names.unbind(owner, &name)?;
        self.save(vec![Record::Unname(name)]);
        Ok(())
    }

    /// Returns a page of the members for people, by id: those after `after`, and whether more follow the
    /// page.
    pub(super) fn statuses(&self, after: NodeId) -> (Vec<NodeStatus>, bool) {
        let (mut page, mut bytes) = (Vec::new(), 0);
        for live in self.members.0.range((Bound::Excluded(after), Bound::Unbounded)).map(|(_, live)| live) {
            let status = self.status(live);
            bytes += proto::encode(&status).len();
            if bytes > PAGE {
                return (page, true);
            }
            page.push(status);
        }
        (page, false)
    }

    pub(super) fn status(&self, live: &Live) -> NodeStatus {
        let rnic = &live.member.rnic;
        NodeStatus {
            node: live.member.node,
            name: live.member.name.clone(),
            rnic: format!("{} {} {}", rnic.driver, live.member.gid, kinds(rnic)),
            memory: live.join.memory,
            cpus: live.join.cpus,
            apps: live.join.apps.clone(),
            boot: live.join.boot.clone(),
            heartbeat_age_ms: self.millis_since(live.last_heartbeat),
            incarnation: live.member.incarnation,
            boot_id: live.join.boot_id,
            state: match live.conn {
                Some(_) => NodeState::Ready,
                None if live.awaited => NodeState::Awaited,
                None => NodeState::Silent,
            },
        }
    }
}
