//! The order of the disk and of messages: nobody learns of a change before its record is saved.
//!
//! The core changes its state at once, and asks for the records of the change to be saved. Messages that tell
//! of changes are held until all records that were requested before them are on the disk. Messages that
//! depend on no record (acknowledgements of heartbeats, the input and output of jobs, relayed messages) are
//! not held, so neither a lease nor the progress of a job waits for a disk.

use super::{Action, ConnId, Core, Message, Record, Role};
use proto::{ToClient, ToNode};
use std::collections::VecDeque;

/// The messages that wait for the disk.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// The number of records that were requested to be saved, and the number of those that are saved.
    requested: u64,
    saved: u64,
    /// The messages, each with the number of records that must be saved before.
    held: VecDeque<(u64, ConnId, Message)>,
}

/// The number of messages that wait for the disk above which no more changes of names are accepted.
const MANY: usize = 100_000;
/// The number of messages for which memory stays reserved.
const FEW: usize = 256;

impl Commit {
    /// Returns true if too many messages wait for the disk. Requests for changes are refused then.
    pub(super) fn is_full(&self) -> bool {
        self.held.len() > MANY
    }
}

/// Returns true for the answer to a node that joins or resumes.
fn is_welcome(message: &Message) -> bool {
    matches!(message, Message::ToNode(ToNode::Welcome(_) | ToNode::Resumed(_)))
}

impl Core {
    /// Returns true while messages wait for the disk.
    #[must_use]
    pub fn holds_messages(&self) -> bool {
        !self.commit.held.is_empty()
    }

    /// Requests records to be saved.
    pub(super) fn save(&mut self, records: Vec<Record>) {
        self.commit.requested += records.len() as u64;
        self.actions.extend(records.into_iter().map(Action::Save));
    }

    /// Sends a message once all records that were requested so far are saved.
    pub(super) fn commit(&mut self, conn: ConnId, message: Message) {
        let Commit { requested, saved, held } = &mut self.commit;
        if requested == saved && held.is_empty() {
            self.actions.push(Action::Send { conn, message });
        } else {
            held.push_back((*requested, conn, message));
        }
    }

    /// Tells a node once all records that were requested so far are saved.
    pub(super) fn commit_to_node(&mut self, conn: ConnId, message: ToNode) {
        if !self.knows(conn, &message) {
            return;
        }
        self.commit(conn, Message::ToNode(message));
    }

    /// Tells a client once all records that were requested so far are saved.
    pub(super) fn commit_to_client(&mut self, conn: ConnId, message: ToClient) {
        self.audit_answer(conn, &message);
        self.commit(conn, Message::ToClient(message));
    }

    /// Releases the messages that waited for a record that is saved now.
    pub(super) fn release_held(&mut self) {
        self.commit.saved += 1;
        while let Some((_, conn, message)) =
            self.commit.held.pop_front_if(|(after, ..)| *after <= self.commit.saved)
        {
            if self.connections.contains_key(&conn) {
                if is_welcome(&message) {
                    // The node sends heartbeats from now on.
                    self.renew(conn);
                }
                self.actions.push(Action::Send { conn, message });
            }
        }
        if self.commit.held.is_empty() {
            self.commit.held.shrink_to(FEW);
        }
    }

    /// Renews the leases of the members that have joined or resumed and whose answer waits for the disk: they
    /// send no heartbeat before it.
    pub(super) fn spare_unanswered(&mut self) {
        let unanswered = self.commit.held.iter().filter(|(_, _, message)| is_welcome(message));
        let conns: Vec<ConnId> = unanswered.map(|(_, conn, _)| *conn).collect();
        conns.into_iter().for_each(|conn| self.renew(conn));
    }

    /// Renews the lease of the member at a connection.
    fn renew(&mut self, conn: ConnId) {
        if let Some(Role::Node(node)) = self.connections.get(&conn).map(|connection| &connection.role)
            && let Some(live) = self.members.get_mut(*node).filter(|live| live.conn == Some(conn))
        {
            live.expires = self.now + self.config.lease;
        }
    }
}
