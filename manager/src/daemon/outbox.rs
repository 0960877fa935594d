//! The queue of messages to a peer: control messages, which overtake the bytes of jobs, and those bytes.

use crate::core::{ConnId, Message};
use proto::{JobId, ToNode};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The limit of bytes queued to a peer, above which its connection is ended.
const MAX_QUEUED: usize = 16 << 20;

/// The limit of relayed bytes that one sender may have in the queue of a receiver.
const MAX_RELAYED: usize = 4 << 20;

/// The limit of relayed bytes that all senders together may have in the queue of a receiver. It is less than
/// [`MAX_QUEUED`], so that relayed messages alone never cost the receiver its connection.
const MAX_RELAYED_BY_ALL: usize = 8 << 20;

/// The number of entries for which an empty queue keeps memory.
const KEPT: usize = 16;

/// The result of an attempt to queue a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The message is queued. If it cancels a job, the job's input was removed from the queue, which counts
    /// as handed to the network.
    Queued {
        /// The [`Message::bulk`] of the removed input.
        dropped: usize,
    },
    /// There is no room: the peer does not receive what is sent to it.
    Full,
    /// The message was dropped, because this connection has sent the peer more relayed messages than it
    /// receives.
    Flood(ConnId),
}

/// The core's end of a connection. When it is dropped, the connection sends its queued messages and ends.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Arc<Queue>,
    reading: watch::Sender<bool>,
}

impl Outbox {
    /// Returns an outbox with its queue, and a flag that is true while the core wants messages of the peer.
    pub(super) fn new() -> (Self, Arc<Queue>, watch::Receiver<bool>) {
        let queue = Arc::new(Queue::default());
        let (reading, gate) = watch::channel(true);
        (Self { queue: queue.clone(), reading }, queue, gate)
    }

    /// Queues a message that the core sends, because of one from `cause` if there was one.
    pub(super) fn send(&self, message: Message, cause: Option<ConnId>) -> Pushed {
        let pushed = self.queue.lines().push(message, cause);
        self.queue.filled.notify_one();
        pushed
    }

    /// Sets whether messages of the peer are wanted.
    pub(super) fn reading(&self, on: bool) {
        self.reading.send_replace(on);
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.queue.lines().closed = true;
        self.queue.filled.notify_one();
    }
}

/// The queue between the core and the task that writes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    /// Notified when a message was queued, or the core's end was dropped. One task waits for it.
    filled: Notify,
    /// Notified when messages were taken. One task waits for it.
    emptied: Notify,
}

impl Queue {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for messages, and takes about `bytes` of them. Returns `None` once the queue is empty and the
    /// core's end is dropped.
    pub(super) async fn take(&self, bytes: usize) -> Option<Vec<Message>> {
        loop {
            let (taken, closed) = {
                let mut lines = self.lines();
                (lines.take(bytes), lines.closed)
            };
            if !taken.is_empty() {
                self.emptied.notify_one();
                return Some(taken);
            }
            if closed {
                return None;
            }
            self.filled.notified().await;
        }
    }

    /// Waits until no more than `bytes` are queued.
    pub(super) async fn drained(&self, bytes: usize) {
        while self.lines().bytes > bytes {
            self.emptied.notified().await;
        }
    }
}

/// A message and its length.
#[derive(Debug)]
struct Entry {
    message: Message,
    bytes: usize,
    /// The sender of the message, if it is a relayed one.
    sender: Option<ConnId>,
}

#[derive(Debug, Default)]
struct Lines {
    /// The messages that are not in `bulk`, in order.
    control: VecDeque<Entry>,
    /// The bytes of jobs and the messages that must not overtake them, in order.
    bulk: VecDeque<Entry>,
    /// The total length of the messages, in bytes.
    bytes: usize,
    /// The total length of the relayed messages of each sender, in bytes.
    relayed: HashMap<ConnId, usize>,
    /// True if no more messages are accepted.
    closed: bool,
}

impl Lines {
    fn push(&mut self, message: Message, cause: Option<ConnId>) -> Pushed {
        if self.closed {
            return Pushed::Queued { dropped: 0 };
        }
        let bytes = message.encoded_len();
        let sender = cause.filter(|_| matches!(message, Message::ToNode(ToNode::Relayed { .. })));
        if let Some(flooder) = sender.and_then(|sender| self.flooder(sender, bytes)) {
            return Pushed::Flood(flooder);
        }
        let dropped = match message {
            Message::ToNode(ToNode::JobCancel { job, .. }) => self.forget(job),
            _ => 0,
        };
        // A message to a peer whose queue is empty is never too long.
        if self.bytes > 0 && self.bytes + bytes > MAX_QUEUED {
            return Pushed::Full;
        }
        self.bytes += bytes;
        if let Some(sender) = sender {
            *self.relayed.entry(sender).or_default() += bytes;
        }
        let line = if keeps_order_with_bulk(&message) { &mut self.bulk } else { &mut self.control };
        line.push_back(Entry { message, bytes, sender });
        Pushed::Queued { dropped }
    }

    /// Returns the sender whose quota a relayed message of `sender` exceeds, if any: `sender` itself, or the
    /// one that fills the queue most.
    fn flooder(&self, sender: ConnId, bytes: usize) -> Option<ConnId> {
        let own = self.relayed.get(&sender).copied().unwrap_or(0);
        if own + bytes > MAX_RELAYED {
            return Some(sender);
        }
        let all: usize = self.relayed.values().sum();
        let most = self.relayed.iter().max_by_key(|(_, bytes)| **bytes).map(|(&most, _)| most);
        most.filter(|_| all + bytes > MAX_RELAYED_BY_ALL)
    }

    /// Removes the input of a job from the queue, and returns its charge.
    fn forget(&mut self, cancelled: JobId) -> usize {
        let (mut dropped, mut bytes) = (0, 0);
        self.bulk.retain(|entry| {
            let of = match entry.message {
                Message::ToNode(ToNode::JobInput { job, .. } | ToNode::JobInputEnd { job }) => Some(job),
                _ => None,
            };
            if of == Some(cancelled) {
                dropped += entry.message.bulk();
                bytes += entry.bytes;
            }
            of != Some(cancelled)
        });
        self.bytes -= bytes;
        dropped
    }

    /// Takes about `bytes` of messages, the control messages first.
    fn take(&mut self, bytes: usize) -> Vec<Message> {
        let (mut taken, mut len) = (Vec::new(), 0);
        while len < bytes
            && let Some(entry) = self.control.pop_front().or_else(|| self.bulk.pop_front())
        {
            len += entry.bytes;
            if let Some(sender) = entry.sender {
                self.relay_ended(sender, entry.bytes);
            }
            taken.push(entry.message);
        }
        self.bytes -= len;
        if self.bytes == 0 {
            // A new member of a large cluster gets thousands of messages at once, and few later.
            self.control.shrink_to(KEPT);
            self.bulk.shrink_to(KEPT);
        }
        taken
    }

    fn relay_ended(&mut self, sender: ConnId, bytes: usize) {
        if let Some(left) = self.relayed.get_mut(&sender) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.relayed.remove(&sender);
            }
        }
    }
}

/// Returns whether a message must not overtake the bytes of a job that were queued before it. Messages to
/// clients always keep their order. A node's `JobCancel` may overtake: it removes the job's input from the
/// queue.
fn keeps_order_with_bulk(message: &Message) -> bool {
    match message {
        Message::ToClient(_) => true,
        // The start of a job and news of members: these never come after the job's input.
        Message::ToNodes(_) => false,
        Message::ToNode(message) => matches!(message, ToNode::JobInput { .. } | ToNode::JobInputEnd { .. }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{Incarnation, NodeId, ToClient};

    fn input(job: u64, len: usize) -> Message {
        let bytes = vec![0; len];
        let (job, file, offset, end_of_split) = (JobId(job), 0, 0, false);
        Message::ToNode(ToNode::JobInput { job, file, offset, bytes, end_of_split })
    }

    fn end(job: u64) -> Message {
        Message::ToNode(ToNode::JobInputEnd { job: JobId(job) })
    }

    fn cancel(job: u64) -> Message {
        Message::ToNode(ToNode::JobCancel { job: JobId(job), reason: String::new() })
    }

    fn ack(seq: u64) -> Message {
        Message::ToNode(ToNode::HeartbeatAck { seq, time: 0 })
    }

    fn relayed(len: usize) -> Message {
        let (from, incarnation, body) = (NodeId(1), Incarnation(1), vec![0; len]);
        Message::ToNode(ToNode::Relayed { from, incarnation, body })
    }

    const QUEUED: Pushed = Pushed::Queued { dropped: 0 };

    #[test]
    fn control_overtakes_input_and_nothing_else_changes_its_order() {
        let mut lines = Lines::default();
        for message in [input(1, 1000), ack(1), input(1, 2000), end(1), ack(2)] {
            assert_eq!(lines.push(message, None), QUEUED);
        }
        assert_eq!(lines.take(1), [ack(1)], "at least one");
        assert_eq!(lines.push(ack(3), None), QUEUED);
        assert_eq!(lines.take(1 << 20), [ack(2), ack(3), input(1, 1000), input(1, 2000), end(1)]);
        assert_eq!(lines.bytes, 0);
    }

    #[test]
    fn what_a_client_gets_keeps_its_order() {
        let mut lines = Lines::default();
        let output = Message::ToClient(ToClient::Output { bytes: vec![1; 100] });
        let done = Message::ToClient(ToClient::Done { run_us: 0, stream_us: 0 });
        let messages = [output.clone(), output, done];
        for message in &messages {
            assert_eq!(lines.push(message.clone(), None), QUEUED);
        }
        assert_eq!(lines.take(1 << 20), messages);
    }

    #[test]
    fn a_cancelled_job_leaves_the_queue() {
        let mut lines = Lines::default();
        for message in [input(1, 1000), end(1), input(2, 700)] {
            assert_eq!(lines.push(message, None), QUEUED);
        }
        assert_eq!(lines.push(cancel(1), None), Pushed::Queued { dropped: 1000 });
        assert_eq!(lines.take(1 << 20), [cancel(1), input(2, 700)]);
        assert_eq!(lines.bytes, 0);
    }

    #[test]
    fn a_queue_is_bounded_by_bytes() {
        let mut lines = Lines::default();
        let long = input(1, 1 << 20);
        let pushed = (0..100).take_while(|_| lines.push(long.clone(), None) == QUEUED).count();
        assert_eq!(pushed, MAX_QUEUED / (1 << 20) - 1, "with what the encoding adds");
        assert_eq!(lines.push(long, None), Pushed::Full);
        assert_eq!(lines.push(ack(1), None), QUEUED, "short ones still fit");
        lines.take(usize::MAX);
        assert_eq!(lines.push(input(1, 2 * MAX_QUEUED), None), QUEUED, "alone it is never too long");
    }

    #[test]
    fn who_floods_a_receiver_is_named() {
        let mut lines = Lines::default();
        let [flooder, other, third] = [1, 2, 3].map(ConnId);
        while lines.push(relayed(4096), Some(flooder)) == QUEUED {}
        assert_eq!(lines.push(relayed(4096), Some(flooder)), Pushed::Flood(flooder));
        assert_eq!(lines.push(relayed(4096), Some(other)), QUEUED, "another's share is free");
        assert_eq!(lines.push(ack(1), Some(flooder)), QUEUED, "only relayed messages are a flood");
        // When all shares together are too much, the largest pays, no matter who sends last.
        while lines.push(relayed(4096), Some(other)) == QUEUED {}
        let pushed = std::iter::repeat_with(|| lines.push(relayed(4096), Some(third)));
        let refused = pushed.take(10).find(|&pushed| pushed != QUEUED);
        assert!(
            refused == Some(Pushed::Flood(flooder)) || refused == Some(Pushed::Flood(other)),
            "{refused:?}"
        );
        lines.take(usize::MAX);
        assert!(lines.relayed.is_empty());
        assert_eq!(lines.push(relayed(4096), Some(flooder)), QUEUED);
    }
}
