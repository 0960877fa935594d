//! Silence and resumption: members whose connection has ended go on with their membership on a new one, also
//! after a restart of the manager.

use super::members::Live;
use super::{ConnId, Core, Message, Record, Role, Saved};
use proto::{Departures, NodeId, Resume, Resumed, ToNode};
use std::collections::BTreeSet;

impl Core {
    /// Takes over the state of a former process. Its members have one lease to resume.
    pub(super) fn restore(&mut self, saved: Saved) {
        let Saved {
            members,
            departures,
            names,
            jobs,
            datasets,
            history,
            spool,
            withdrawn,
            images,
            rollout,
            epoch,
            ..
        } = saved;
        let (now, lease) = (self.now, self.config.lease);
        for record in members {
            self.members.0.insert(record.node, Live::restored(record, now, lease));
        }
        // Names whose owner's end was recorded, and that were not forgotten before the process ended.
        let lives = |node: NodeId, incarnation| {
            self.members.get(node).is_some_and(|live| live.member.incarnation == incarnation)
        };
        let (names, orphans): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| lives(name.owner, name.incarnation));
        self.names = super::Directory::restore(names);
        self.save(orphans.into_iter().map(|name| Record::Unname(name.name)).collect());
        // Confirmations are not saved: all members are asked again.
        let all: BTreeSet<NodeId> = self.members.0.keys().copied().collect();
        let (departures, settled) = Departures::restore(departures, &all);
        self.departures = departures;
        self.save(
            settled.into_iter().map(|(node, incarnation)| Record::Settled(node, incarnation)).collect(),
        );
        self.restore_service(withdrawn);
        self.images.restore(images);
        self.rollout.restore(rollout);
        self.restore_datasets(datasets);
        self.restore_history(history);
        self.restore_jobs(jobs);
        self.restore_spool(&spool);
        let count = self.members.0.len();
        if epoch > 0 {
            let lease = lease.as_secs_f64();
            self.log(format!(
                "goes on as process {} with {count} members, which have {lease} s to come back",
                epoch + 1
            ));
        }
    }

    /// Handles the end of a member's connection: the member is silent, and dead when its lease ends.
    pub(super) fn fall_silent(&mut self, node: NodeId, conn: ConnId, reason: &str) {
        let Some(live) = self.members.get_mut(node).filter(|live| live.conn == Some(conn)) else { return };
        live.conn = None;
        let (label, job) = (live.label(), live.job);
        let reason = proto::printable(reason);
        self.log(format!("{label} is silent: {reason}"));
        if let Some(job) = job {
            self.part_is_cut_off(job, &format!("{label}: {reason}"));
        }
        self.order_is_cut_off(node, &reason);
        if self.leaving.is_some() {
            // The node was told to leave, and does not come back.
            self.remove_member(node, "left");
        }
    }

    /// Handles the wish of a member to go on with its membership on this connection.
    pub(super) fn resume(&mut self, conn: ConnId, resume: &Resume) {
        let Resume { version, node, incarnation, ref secret, epoch } = *resume;
        let who = format!("{node} in incarnation {}", incarnation.0);
        if epoch > self.identities.epoch {
            let own = self.identities.epoch;
            let reason = format!(
                "the state of this manager is too old: it is of process {own}, and {node} knows process {epoch}"
            );
            if self.stale.is_none() {
                self.log(reason.clone());
            }
            self.stale = Some(reason);
            // The node tries again, and may find the later manager.
            return self.close(conn);
        }
        let known = self.vouchers.resume(node, incarnation) == *secret;
        let live = self.members.get_mut(node).filter(|live| live.member.incarnation == incarnation && known);
        let Some(live) = live else {
            return self.refuse_node(conn, &who, "its membership has ended".into());
        };
        let former = live.conn.replace(conn);
        (live.awaited, live.asked) = (false, true);
        (live.expires, live.last_heartbeat) = (self.now + self.config.lease, self.now);
        let (label, member) = (live.label(), live.member.clone());
        let is_machine = member.rnic.physical;
        if let Some(former) = former.filter(|former| self.connections.contains_key(former)) {
            if let Some(job) = self.members.get(node).and_then(|live| live.job) {
                self.part_is_cut_off(job, &format!("{label}: its connection was replaced"));
            }
            self.order_is_cut_off(node, "its connection was replaced");
            self.close(former);
        }
        self.set_role(conn, Role::Node(node));
        self.set_version(conn, version);
        let peer = self.peer(conn);
        self.log(format!("{label} resumes from {peer}"));
        let unsettled = self.departures.all();
        for &(node, incarnation) in &unsettled {
            let reason = "it ended while this node was silent".into();
            self.commit_to_node(conn, ToNode::Left { node, incarnation, reason });
        }
        let mut others = Vec::new();
        let mut conns = Vec::new();
        for live in self.members.0.values().filter(|live| live.member.node != node) {
            others.push(live.member.clone());
            conns.extend(live.conn);
        }
        for member in others {
            self.commit_to_node(conn, ToNode::Joined(member));
        }
        // Messages that they have sent to the silent node are lost: they repeat those that they rely on.
        let back = Message::to_nodes(&ToNode::Joined(member));
        for conn in conns {
            self.commit(conn, back.clone());
        }
        let (epoch, time) = (self.identities.epoch, self.identities.time(self.now));
        self.commit_to_node(conn, ToNode::Resumed(Resumed { epoch, time, unsettled }));
        self.commit_to_node(conn, ToNode::AskJobs);
        self.ask_image(node);
        self.vacate_if_withdrawn(node);
        if is_machine && !self.orders.contains(node) {
            // The order for an image of which it has a part has failed.
            self.commit_to_node(conn, ToNode::ImageDrop);
        }
        if self.leaving.is_some() {
            self.tell_node(conn, ToNode::Shutdown);
        }
    }
}
