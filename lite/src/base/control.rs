//! The control connection as tasks see it: the messages to the manager, and its answers.

use super::lock::Mutex;
use super::names::Bindings;
use super::wait::Waiters;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use proto::{NameError, NodeId, ToManager, ToNode};

/// The number of queued messages at which [`Lite::send_control`](crate::Lite::send_control) waits.
pub(crate) const SEND_QUEUE: usize = 16;
/// The bytes of job messages that may be queued: the input of two jobs that this node was ready to accept,
/// one of which was cancelled, and room for other messages. The receiver never waits for the task that
/// takes them, because the acknowledgements behind them would wait as well.
const JOB_BYTES: usize = 4 * ToNode::INPUT_WINDOW as usize;
/// The bytes that a queued job message counts for beyond its encoded length.
const JOB_COST: usize = 64;

/// The answer of the directory to a request.
pub(crate) type NameResult = Result<(NodeId, Vec<u8>), NameError>;

/// The state shared by tasks and the two control tasks.
pub(crate) struct Control {
    pub(crate) out: Mutex<VecDeque<Vec<u8>>>,
    pub(crate) out_change: Waiters,
    pub(crate) names: Mutex<BTreeMap<u32, Option<NameResult>>>,
    pub(crate) names_change: Waiters,
    pub(crate) bindings: Bindings,
    /// The free memory of the members, and the number of the request that it answers.
    pub(crate) free: Mutex<(u32, Vec<(NodeId, u64)>)>,
    /// The free memory that this node has reported last; `u64::MAX`: none yet.
    told_free: AtomicU64,
    pub(crate) next_request: AtomicU32,
    pub(crate) jobs: Mutex<JobQueue>,
    pub(crate) jobs_change: Waiters,
    ended: AtomicBool,
}

/// Job messages that wait to be taken.
#[derive(Default)]
pub(crate) struct JobQueue {
    /// The messages, each with its cost in bytes.
    messages: VecDeque<(usize, ToNode)>,
    /// The sum of the costs.
    bytes: usize,
}

impl JobQueue {
    /// Appends a message of `encoded` bytes; returns false if too many are queued.
    pub(crate) fn push(&mut self, encoded: usize, message: ToNode) -> bool {
        let cost = encoded.saturating_add(JOB_COST);
        let bytes = self.bytes.saturating_add(cost);
        if bytes > JOB_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.messages.push_back((cost, message));
        true
    }

    pub(crate) fn pop(&mut self) -> Option<ToNode> {
        let (cost, message) = self.messages.pop_front()?;
        self.bytes -= cost;
        Some(message)
    }
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            out: Mutex::default(),
            out_change: Waiters::default(),
            names: Mutex::default(),
            names_change: Waiters::default(),
            bindings: Bindings::default(),
            free: Mutex::default(),
            told_free: AtomicU64::new(u64::MAX),
            next_request: AtomicU32::new(1),
            jobs: Mutex::default(),
            jobs_change: Waiters::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Queues a message to the manager.
    pub(crate) fn post(&self, message: &ToManager) {
        self.out.lock().push_back(proto::encode(message));
        self.out_change.wake_all();
    }

    /// Reports the free memory if it differs by more than `much` from the last report.
    pub(crate) fn report_free(&self, free: u64, much: u64) {
        let told = self.told_free.load(Ordering::SeqCst);
        if (told == u64::MAX || told.abs_diff(free) > much)
            && self.told_free.compare_exchange(told, free, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.post(&ToManager::MemoryFree { bytes: free });
        }
    }

    /// Ends all waits for the manager, because the membership is over.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.out_change.wake_all();
        self.names_change.wake_all();
        self.jobs_change.wake_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
