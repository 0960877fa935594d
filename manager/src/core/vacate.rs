//! Nodes out of service move their memory of regions to other nodes, so that nobody loses a byte when they
//! leave.

use super::{ConnId, Core};
use platform::Instant;
use proto::{Incarnation, NodeId, Reason, ToNode, printable};
use std::time::Duration;

/// The pause before a node that could not move its memory is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// The progress of one incarnation of a node.
#[derive(Debug)]
pub(super) struct Vacation {
    incarnation: Incarnation,
    state: State,
    /// The reason for which the last attempt has failed.
    failed: Option<Reason>,
}

#[derive(Debug)]
enum State {
    /// The node was told on this connection. If that ends, the order or the answer may be lost.
    Told(ConnId),
    /// No memory of a region is on the node.
    Done,
    /// The node is told again at this time.
    Failed(Instant),
}

impl Vacation {
    /// Returns the reason for which the node still has memory of regions, for people.
    pub(super) fn obstacle(&self) -> Option<Reason> {
        let failed = self.failed.as_ref()?;
        Some(format!("its memory of regions cannot move: {failed}"))
    }

    /// Moves the time of the next attempt by the time for which the manager was deaf.
    pub(super) fn forgive(&mut self, late: Duration) {
        if let State::Failed(again) = &mut self.state {
            *again = *again + late;
        }
    }
}

impl Core {
    /// Returns true if a node out of service has no memory of regions. Tells the node to move that elsewhere,
    /// unless it was told. A node of a release that cannot keeps its memory, and counts as one without.
    pub(super) fn is_vacant(&mut self, name: &str) -> bool {
        let Some(live) = self.members.named(name) else { return true };
        let (conn, incarnation) = (live.conn, live.member.incarnation);
        let Some(conn) = conn else { return false };
        let order = ToNode::Vacate { begin: true };
        if !self.knows(conn, &order) {
            return true;
        }
        let now = self.now;
        let Some(vacation) = self.service.vacation(name) else { return false };
        let former = vacation.take().filter(|former| former.incarnation == incarnation);
        let (waits, done) = match former.as_ref().map(|former| &former.state) {
            Some(State::Done) => (true, true),
            Some(State::Told(at)) => (*at == conn, false),
            Some(State::Failed(again)) => (*again > now, false),
            None => (false, false),
        };
        if waits {
            *vacation = former;
            return done;
        }
        let failed = former.and_then(|former| former.failed);
        *vacation = Some(Vacation { incarnation, state: State::Told(conn), failed });
        self.commit_to_node(conn, order);
        false
    }

    /// Tells a node that has joined or resumed, and is out of service, to accept no memory of regions.
    pub(super) fn vacate_if_withdrawn(&mut self, node: NodeId) {
        let name = self.members.get(node).map(|live| live.member.name.clone()).unwrap_or_default();
        if self.members.get(node).is_some_and(|live| live.job.is_none()) && self.service.is_withdrawn(&name) {
            self.is_vacant(&name);
        }
    }

    /// Handles the end of a node's attempt.
    pub(super) fn vacated(&mut self, node: NodeId, result: Result<(), Reason>) {
        let Some(live) = self.members.get(node) else { return };
        let (label, incarnation) = (live.label(), live.member.incarnation);
        let name = live.member.name.clone();
        let again = self.now + AGAIN;
        let Some(Some(vacation)) = self.service.vacation(&name) else { return };
        if vacation.incarnation != incarnation || !matches!(vacation.state, State::Told(_)) {
            return;
        }
        let line = match result {
            Ok(()) => {
                (vacation.state, vacation.failed) = (State::Done, None);
                format!("{label} has no memory of regions any more")
            }
            Err(reason) => {
                let reason = printable(&reason);
                let line = format!("{label} cannot move its memory of regions: {reason}");
                let is_known = vacation.failed.as_ref() == Some(&reason);
                (vacation.state, vacation.failed) = (State::Failed(again), Some(reason));
                if is_known {
                    return;
                }
                line
            }
        };
        self.log(line);
        self.advance_rollout();
    }

    /// Lets a node that is back in service accept memory of regions again.
    pub(super) fn end_vacation(&mut self, name: &str, vacation: Option<Vacation>) {
        let Some(live) = self.members.named(name) else { return };
        let is_present = vacation.is_some_and(|vacation| vacation.incarnation == live.member.incarnation);
        if let Some(conn) = live.conn.filter(|_| is_present) {
            self.commit_to_node(conn, ToNode::Vacate { begin: false });
        }
    }
}
