//! The audit log: who has asked for a change, when, and with which result. Each entry has a hash over itself
//! and the entry before, so that a changed or missing entry shows.

use super::{ConnId, Core, Record};
use crate::access::{change, rule, shortened};
use proto::{AuditEntry, AuditHash, FromClient, ToClient};
use std::collections::{BTreeMap, VecDeque};

/// The number of entries that are kept.
const KEPT: usize = 20_000;

/// The number of entries of a page.
const PAGE: usize = 200;

/// The entries, and the changes whose result is not known yet.
#[derive(Debug, Default)]
pub(super) struct Audit {
    entries: VecDeque<AuditEntry>,
    /// The asker and the change of each connection.
    pending: BTreeMap<ConnId, (String, String)>,
}

impl Audit {
    pub(super) fn restore(entries: Vec<AuditEntry>) -> Self {
        Self { entries: entries.into(), pending: BTreeMap::new() }
    }
}

impl Core {
    /// Keeps a request that changes something, until its result is recorded.
    pub(super) fn audit_request(&mut self, conn: ConnId, request: &FromClient) {
        if let Some(what) = change(request) {
            let who = match self.asker(conn) {
                Ok((name, _)) if !name.is_empty() => format!("{name} at {}", self.address(conn)),
                _ => format!("the cluster's key at {}", self.address(conn)),
            };
            self.audit_unanswered(conn, "not answered");
            self.audit.pending.insert(conn, (who, what));
        }
    }

    /// Records the result of a change that a client waits for, if this message is the answer to it.
    pub(super) fn audit_answer(&mut self, conn: ConnId, answer: &ToClient) {
        let result = match answer {
            ToClient::Hello
            | ToClient::ImageTaken { .. }
            | ToClient::InputWanted { .. }
            | ToClient::Progress { .. } => return,
            ToClient::Failed { reason } => format!("failed: {reason}"),
            ToClient::Refused { reason, .. } => format!("refused: {reason}"),
            ToClient::Accepted { job, .. } | ToClient::Queued { job, .. } | ToClient::Submitted { job } => {
                format!("job {}", job.0)
            }
            _ => "done".into(),
        };
        self.audit_unanswered(conn, &result);
    }

    /// Records that a client gets no other answer to its change.
    pub(super) fn audit_unanswered(&mut self, conn: ConnId, result: &str) {
        let Some((who, what)) = self.audit.pending.remove(&conn) else { return };
        let last = self.audit.entries.back();
        let before = last.map_or(AuditHash::default(), |last| last.hash);
        let mut entry = AuditEntry {
            number: last.map_or(0, |last| last.number) + 1,
            time_ms: self.unix_ms(),
            who,
            what,
            result: shortened(proto::printable(result)),
            hash: before,
        };
        entry.hash = entry.expected_hash(before);
        let line = format!("audit {}: {}: {}: {}", entry.number, entry.who, entry.what, entry.result);
        self.log_for(rule(&FromClient::Audit { after: 0 }).least(), line);
        let mut records = vec![Record::Audit(entry.clone())];
        self.audit.entries.push_back(entry);
        if self.audit.entries.len() > KEPT
            && let Some(oldest) = self.audit.entries.pop_front()
        {
            records.push(Record::AuditGone(oldest.number));
        }
        self.save(records);
    }

    pub(super) fn tell_audit(&mut self, conn: ConnId, after: u64) {
        let mut rest = self.audit.entries.iter().filter(|entry| entry.number > after);
        let entries = rest.by_ref().take(PAGE).cloned().collect();
        let more = rest.next().is_some();
        self.tell_client(conn, ToClient::Audit { entries, more });
    }
}
