//! Calls of a node to its own functions.

use crate::base::lock::Mutex;
use crate::base::wait::Waiters;
use crate::channel::wire::ReplyStatus;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The number of reply buffers that are kept for the next calls.
const SPARES: usize = 32;
/// The length of the longest buffer that is kept with one, in bytes.
const LONGEST_SPARE: usize = 1 << 16;

/// The reply that a caller on the same node waits for.
#[derive(Default)]
pub(crate) struct LocalReply {
    reply: Mutex<Reply>,
    arrival: Waiters,
}

#[derive(Default)]
struct Reply {
    /// The status, and the reply's length or a limit.
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

    /// Waits for the reply and passes it to `take`.
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

/// The reply buffers that are not in use.
#[derive(Default)]
pub(crate) struct LocalReplies(Mutex<Vec<Arc<LocalReply>>>);

impl LocalReplies {
    pub(crate) fn take(&self) -> Arc<LocalReply> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps the buffer of a reply that was taken for a later call, unless the server still uses it.
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
