//! Calls of a node to itself.

use super::wire::ReplyStatus;
use crate::lock::Mutex;
use crate::wait::Waiters;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Places for replies that are kept for the next calls.
const SPARES: usize = 32;
/// The longest buffer that is kept with one, in bytes.
const LONGEST_SPARE: usize = 1 << 16;

/// Where a caller on the same node waits.
#[derive(Default)]
pub(crate) struct LocalReply {
    reply: Mutex<Reply>,
    arrival: Waiters,
}

#[derive(Default)]
struct Reply {
    /// Its status, and its length or a limit.
    status: Option<(ReplyStatus, u64)>,
    bytes: Vec<u8>,
}

impl LocalReply {
    pub(crate) fn set(&self, status: ReplyStatus, data: &[u8], len: u64) {
        let mut reply = self.reply.lock();
        reply.bytes.clear();
        reply.bytes.extend_from_slice(data);
        reply.status = Some((status, len));
        drop(reply);
        self.arrival.wake_all();
    }

    /// Waits for the reply and gives it to `take`.
    pub(crate) async fn wait<T>(&self, mut take: impl FnMut(ReplyStatus, u64, &[u8]) -> T) -> T {
        self.arrival
            .until(|| {
                let mut reply = self.reply.lock();
                let (status, len) = reply.status.take()?;
                Some(take(status, len, &reply.bytes))
            })
            .await
    }
}

/// Places for replies that nobody uses.
#[derive(Default)]
pub(crate) struct LocalReplies(Mutex<Vec<Arc<LocalReply>>>);

impl LocalReplies {
    pub(crate) fn take(&self) -> Arc<LocalReply> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps a place whose reply has been taken, unless the server still has it.
    pub(crate) fn give(&self, mut reply: Arc<LocalReply>) {
        let Some(it) = Arc::get_mut(&mut reply) else { return };
        let it = it.reply.get_mut();
        it.status = None;
        if it.bytes.capacity() > LONGEST_SPARE {
            it.bytes = Vec::new();
        }
        let mut spares = self.0.lock();
        if spares.len() < SPARES {
            spares.push(reply);
        }
    }
}
