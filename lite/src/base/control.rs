//! The control connection as tasks see it: the messages to the manager, and its answers.

use super::lock::Mutex;
use super::names::Bindings;
use super::wait::Waiters;
use crate::Error;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use proto::{NameError, NodeId, ToManager, ToNode};

/// The number of queued messages at which [`Lite::send_control`](crate::Lite::send_control) waits.
pub(crate) const SEND_QUEUE: usize = 16;
/// The bytes that a message in an [`Inbox`] counts for beyond its encoded length.
const MESSAGE_COST: usize = 64;

/// The answer of the directory to a request.
pub(crate) type NameResult = Result<(NodeId, Vec<u8>), NameError>;

/// A request to the directory.
pub(crate) struct Asked {
    pub(crate) message: ToManager,
    /// True if it was sent again after a break of the connection. The manager may have done it twice then.
    again: bool,
    pub(crate) answer: Option<NameResult>,
}

impl Asked {
    pub(crate) const fn new(message: ToManager) -> Self {
        Self { message, again: false, answer: None }
    }

    /// Notes the answer. A name that the first of two requests has unbound is unknown to the second.
    pub(crate) fn answered(&mut self, answer: NameResult) {
        let unbinds = self.again && matches!(self.message, ToManager::NameUnbind { .. });
        self.answer = Some(match answer {
            Err(NameError::NotFound | NameError::NotOwner) if unbinds => Ok((NodeId(0), Vec::new())),
            answer => answer,
        });
    }
}

/// The state shared by tasks and the two control tasks.
pub(crate) struct Control {
    pub(crate) out: Mutex<VecDeque<Vec<u8>>>,
    pub(crate) out_change: Waiters,
    pub(crate) names: Mutex<BTreeMap<u32, Asked>>,
    pub(crate) names_change: Waiters,
    pub(crate) bindings: Bindings,
    /// The free memory of the members, and the number of the request that it answers.
    pub(crate) free: Mutex<(u32, Vec<(NodeId, u64)>)>,
    /// The last request for the free memory of the members.
    pub(crate) asked_free: AtomicU32,
    /// The free memory that this node has reported last; `u64::MAX`: none yet.
    told_free: AtomicU64,
    pub(crate) next_request: AtomicU32,
    /// The messages that are not for LITE.
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) inbox_change: Waiters,
    ended: AtomicBool,
    /// The version of the protocol between this node and the manager.
    version: u16,
}

/// Encoded messages of the manager that are not for LITE and that wait to be taken. The receiver never waits
/// for the task that takes them, because the acknowledgements of heartbeats behind them would wait as well.
#[derive(Default)]
pub(crate) struct Inbox {
    messages: VecDeque<Vec<u8>>,
    /// The sum of the messages' lengths and costs.
    bytes: usize,
}

impl Inbox {
    fn cost(message: &[u8]) -> usize {
        message.len().saturating_add(MESSAGE_COST)
    }

    /// Appends a message; returns false if it exceeds the [limit](ToNode::MAX_WAITING).
    pub(crate) fn push(&mut self, message: Vec<u8>) -> bool {
        let bytes = self.bytes.saturating_add(Self::cost(&message));
        if bytes > ToNode::MAX_WAITING {
            return false;
        }
        self.bytes = bytes;
        self.messages.push_back(message);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= Self::cost(&message);
        Some(message)
    }
}

impl Control {
    pub(crate) fn new(version: u16) -> Self {
        Self {
            version,
            out: Mutex::default(),
            out_change: Waiters::default(),
            names: Mutex::default(),
            names_change: Waiters::default(),
            bindings: Bindings::default(),
            free: Mutex::default(),
            asked_free: AtomicU32::new(0),
            told_free: AtomicU64::new(u64::MAX),
            next_request: AtomicU32::new(1),
            inbox: Mutex::default(),
            inbox_change: Waiters::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Fails if the manager is of a former release, which does not know the messages of version `since`.
    pub(crate) fn check_known(&self, since: u16) -> Result<(), Error> {
        if since > self.version {
            let version = self.version;
            return Err(Error::Refused(format!("the manager speaks version {version} of the protocol")));
        }
        Ok(())
    }

    /// Queues a message to the manager. A manager of a former release is not sent what it does not know.
    pub(crate) fn post(&self, message: &ToManager) {
        if self.check_known(message.since()).is_err() {
            return;
        }
        self.out.lock().push_back(proto::encode(message));
        self.out_change.wake_all();
    }

    /// Sends all requests again that wait for an answer: they, or the answers, may have been lost with the
    /// connection.
    pub(crate) fn ask_again(&self) {
        let waiting: Vec<ToManager> = {
            let mut names = self.names.lock();
            let waiting = names.values_mut().filter(|asked| asked.answer.is_none());
            waiting
                .map(|asked| {
                    asked.again = true;
                    asked.message.clone()
                })
                .collect()
        };
        waiting.iter().for_each(|message| self.post(message));
        let request = self.asked_free.load(Ordering::SeqCst);
        if self.free.lock().0 < request {
            self.post(&ToManager::AskMemoryFree { request });
        }
        self.told_free.store(u64::MAX, Ordering::SeqCst);
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
        self.inbox_change.wake_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
