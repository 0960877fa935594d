//! Calls and messages: each is executed at most once, a refused one never, and those of one task in order.

use super::{Check, Tick};
use lite::NodeId;
use std::collections::BTreeMap;

/// The end of a call or a message for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The call has run, or the message is in the queue.
    Done,
    /// The call has not run, and will not.
    Never,
    /// The call may have run, or may yet run.
    Unknown,
}

/// A message in its receiver's queue.
struct Sent {
    at: Tick,
    id: u64,
}

#[derive(Default)]
pub(super) struct Calls {
    runs: BTreeMap<u64, u32>,
    refused: BTreeMap<u64, ()>,
    /// The moments at which messages were sent.
    begun: BTreeMap<u64, Tick>,
    /// The messages in the queues of receivers that were not received yet, by sending task and receiver.
    queued: BTreeMap<(u64, NodeId), Vec<Sent>>,
}

/// Returns the task of a call or message.
const fn task(id: u64) -> u64 {
    id >> 32
}

impl Check {
    /// Records that a handler has this call, or a receiver this message.
    pub(crate) fn executed(&self, id: u64) {
        let mut state = self.lock();
        let times = state.calls.runs.entry(id).or_default();
        *times += 1;
        let times = *times;
        if times > 1 {
            state.violated("a call runs at most once", format!("call {id:#x} ran {times} times"));
        }
        if state.calls.refused.contains_key(&id) {
            state.violated("a call runs at most once", format!("call {id:#x} ran, and was refused"));
        }
    }

    /// Records the end of a call or a message for its sender.
    pub(crate) fn called(&self, id: u64, end: CallEnd) {
        let mut state = self.lock();
        let ran = state.calls.runs.contains_key(&id);
        match end {
            CallEnd::Done if !ran => {
                state.violated(
                    "a call runs at most once",
                    format!("call {id:#x} was answered and did not run"),
                );
            }
            CallEnd::Never if ran => {
                state.violated("a call runs at most once", format!("call {id:#x} ran, and was refused"));
            }
            CallEnd::Never => {
                state.calls.refused.insert(id, ());
            }
            CallEnd::Done | CallEnd::Unknown => {}
        }
    }

    /// Records that a message is sent.
    pub(crate) fn sends(&self, id: u64) {
        let mut state = self.lock();
        let now = state.tick();
        state.calls.begun.insert(id, now);
    }

    /// Records that the sending of a message has ended.
    pub(crate) fn sent(&self, id: u64, to: NodeId, end: CallEnd) {
        let mut state = self.lock();
        let at = state.tick();
        match end {
            CallEnd::Done if !state.calls.runs.contains_key(&id) => {
                state.calls.queued.entry((task(id), to)).or_default().push(Sent { at, id });
            }
            CallEnd::Done | CallEnd::Unknown => {}
            CallEnd::Never => {
                drop(state);
                self.called(id, end);
            }
        }
    }

    /// Records that a node begins to receive messages. The queue of a former incarnation with the same number
    /// ended with it.
    pub(crate) fn receives(&self, at: NodeId) {
        self.lock().calls.queued.retain(|(_, to), _| *to != at);
    }

    /// Records that node `at` has received a message: messages that its sender knew to be in the queue before
    /// must have come before.
    pub(crate) fn received(&self, id: u64, at: NodeId) {
        self.executed(id);
        let mut state = self.lock();
        let begun = state.calls.begun.get(&id).copied().unwrap_or(Tick::MAX);
        let queued = state.calls.queued.entry((task(id), at)).or_default();
        queued.retain(|sent| sent.id != id);
        if let Some(before) = queued.iter().find(|sent| sent.at < begun) {
            let seen = format!("{at} received {id:#x} and not {:#x}, which was sent before", before.id);
            state.violated("messages come in order", seen);
        }
    }
}
