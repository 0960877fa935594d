//! The control connection: one task that sends, one that receives, the name directory, and messages of
//! jobs.

use crate::lock::Mutex;
use crate::names::{Bearer, Bindings, Named};
use crate::node::Node;
use crate::rpc::Ask;
use crate::wait::Waiters;
use crate::{Error, Lite};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use platform::{ControlLink, Instant};
use proto::{NameError, NodeId, ToManager, ToNode};

/// The number of queued messages at which [`Lite::send_control`] waits.
const SEND_QUEUE: usize = 16;
/// The bytes of job messages that may be queued: the input of two jobs that this node was ready to accept,
/// one of which was cancelled, and room for other messages. The receiver never waits for the task that
/// takes them, because the acknowledgements behind them would wait as well.
const JOB_BYTES: usize = 4 * ToNode::INPUT_WINDOW as usize;
/// The bytes that a queued job message counts for beyond its encoded length.
const JOB_COST: usize = 64;

type NameResult = Result<(NodeId, Vec<u8>), NameError>;

/// The state shared by tasks and the two control tasks.
pub(crate) struct Control {
    out: Mutex<VecDeque<Vec<u8>>>,
    out_change: Waiters,
    names: Mutex<BTreeMap<u32, Option<NameResult>>>,
    names_change: Waiters,
    pub(crate) bindings: Bindings,
    /// The free memory of the members, and the number of the request that it answers.
    free: Mutex<(u32, Vec<(NodeId, u64)>)>,
    /// The free memory that this node has reported last; `u64::MAX`: none yet.
    told_free: AtomicU64,
    next_request: AtomicU32,
    jobs: Mutex<JobQueue>,
    jobs_change: Waiters,
    ended: AtomicBool,
}

/// Job messages that wait to be taken.
#[derive(Default)]
struct JobQueue {
    /// The messages, each with its cost in bytes.
    messages: VecDeque<(usize, ToNode)>,
    /// The sum of the costs.
    bytes: usize,
}

impl JobQueue {
    /// Appends a message of `encoded` bytes; returns false if too many are queued.
    fn push(&mut self, encoded: usize, message: ToNode) -> bool {
        let cost = encoded.saturating_add(JOB_COST);
        let bytes = self.bytes.saturating_add(cost);
        if bytes > JOB_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.messages.push_back((cost, message));
        true
    }

    fn pop(&mut self) -> Option<ToNode> {
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

    /// Wakes the tasks that wait for the directory.
    pub(crate) fn names_changed(&self) {
        self.names_change.wake_all();
    }

    /// Waits until `ready` returns a value; it is asked whenever the directory has answered.
    pub(crate) async fn until_names<T>(&self, ready: impl Fn() -> Option<T>) -> T {
        self.names_change.until(ready).await
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

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A request to the directory whose answer is awaited.
struct NameRequest<'a> {
    control: &'a Control,
    request: u32,
}

impl Drop for NameRequest<'_> {
    fn drop(&mut self) {
        self.control.names.lock().remove(&self.request);
    }
}

impl Node {
    /// Starts the two tasks.
    pub(crate) fn start_control(self: &Arc<Self>, link: Arc<dyn ControlLink>) {
        let (node, l) = (self.clone(), link.clone());
        self.platform.spawn("lite-control-out", Box::pin(async move { node.send_all(&*l).await }));
        let node = self.clone();
        self.platform.spawn("lite-control-in", Box::pin(async move { node.receive_all(&*link).await }));
    }

    async fn send_all(&self, link: &dyn ControlLink) {
        loop {
            let next = || match self.control.out.lock().pop_front() {
                Some(message) => Some(Some(message)),
                None if self.control.has_ended() => Some(None),
                None => None,
            };
            let Some(message) = self.control.out_change.until(next).await else { return };
            // A task that waits for room may go on.
            self.control.out_change.wake_all();
            if core::future::poll_fn(|cx| link.poll_send(cx, &message)).await.is_err() {
                return self.fence();
            }
        }
    }

    async fn receive_all(self: &Arc<Self>, link: &dyn ControlLink) {
        loop {
            let Ok(bytes) = core::future::poll_fn(|cx| link.poll_recv(cx)).await else {
                return self.fence();
            };
            let Ok(message) = proto::decode::<ToNode>(&bytes) else {
                log::warn!("lite: malformed control message of {} bytes", bytes.len());
                continue;
            };
            match message {
                // The link has noted which heartbeat this acknowledges.
                ToNode::HeartbeatAck { .. } => {
                    self.extend_lease(link.lease_until());
                    self.report_memory();
                }
                ToNode::MemoryFree { request, nodes } => {
                    let mut free = self.control.free.lock();
                    if free.0 < request {
                        *free = (request, nodes);
                    }
                    drop(free);
                    self.control.names_change.wake_all();
                }
                ToNode::Joined(member) => self.on_joined(member),
                ToNode::Left { node, incarnation, reason } => {
                    if (node, incarnation) == (self.me, self.incarnation) {
                        log::error!("lite: the manager has declared this node dead: {reason}");
                        return self.fence();
                    }
                    log::info!("lite: {node} has departed: {reason}");
                    self.on_left(node, incarnation, reason);
                }
                ToNode::Settled { node, incarnation } => self.on_settled((node, incarnation)),
                ToNode::Relayed { from, incarnation, body } => self.on_relayed(from, incarnation, &body),
                ToNode::Name { request, result } => {
                    if let Some(place) = self.control.names.lock().get_mut(&request) {
                        *place = Some(result);
                    }
                    self.control.names_change.wake_all();
                }
                ToNode::Refused { reason } => {
                    log::error!("lite: the manager has ended the membership: {reason}");
                    return self.fence();
                }
                ToNode::Welcome(_) => log::warn!("lite: unexpected control message"),
                job @ (ToNode::JobStart(_)
                | ToNode::JobInput { .. }
                | ToNode::JobInputEnd { .. }
                | ToNode::JobOutputAck { .. }
                | ToNode::JobCancel { .. }
                | ToNode::Shutdown) => {
                    if !self.control.jobs.lock().push(bytes.len(), job) {
                        log::error!(
                            "lite: the manager has sent more input than this node was ready to accept"
                        );
                        return self.fence();
                    }
                    self.control.jobs_change.wake_all();
                }
            }
        }
    }

    /// Waits until the manager answers, if it is silent, or until `deadline`. Nothing is sent to a silent
    /// manager, so that requests without a waiter do not pile up.
    async fn answered_by(&self, deadline: Instant) -> Result<(), Error> {
        if self.lease.may_begin() {
            return Ok(());
        }
        self.timers.before(deadline, self.resumed()).await.unwrap_or(Err(Error::Deadline))
    }

    async fn ask_directory(
        &self,
        message: impl FnOnce(u32) -> ToManager,
        deadline: Instant,
        after: Error,
    ) -> Result<(NodeId, Vec<u8>), Error> {
        self.answered_by(deadline).await?;
        let request = self.control.next_request.fetch_add(1, Ordering::Relaxed);
        self.control.names.lock().insert(request, None);
        let waiting = NameRequest { control: &self.control, request };
        self.control.post(&message(request));
        let answer = || {
            let answered = self.control.names.lock().get_mut(&request).and_then(Option::take);
            match answered {
                Some(result) => Some(result.map_err(|e| match e {
                    NameError::NotFound => Error::NoSuchName,
                    NameError::Taken => Error::NameTaken,
                    NameError::NotOwner => Error::Permission,
                    NameError::Length | NameError::Quota | NameError::Unsaved => {
                        Error::Refused(alloc::format!("{e}"))
                    }
                })),
                None if self.control.has_ended() => Some(Err(Error::LinkDown)),
                None => None,
            }
        };
        let result = self.timers.before(deadline, self.control.names_change.until(answer)).await;
        drop(waiting);
        result.unwrap_or(Err(after))
    }

    /// Returns the free memory of the members, the most first, as far as they have reported it.
    pub(crate) async fn free_memory(&self, deadline: Instant) -> Result<Vec<(NodeId, u64)>, Error> {
        self.answered_by(deadline).await?;
        let request = self.control.next_request.fetch_add(1, Ordering::Relaxed);
        self.control.post(&ToManager::AskMemoryFree { request });
        let told = || {
            let free = self.control.free.lock();
            if free.0 >= request {
                return Some(Ok(free.1.clone()));
            }
            self.control.has_ended().then_some(Err(Error::LinkDown))
        };
        let result = self.timers.before(deadline, self.control.names_change.until(told)).await;
        result.unwrap_or(Err(Error::Deadline))
    }

    /// Binds a name and returns the number of the binding.
    pub(crate) async fn bind(&self, name: &str, value: Vec<u8>, deadline: Instant) -> Result<u64, Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameBind { request, name, value };
        let (_, number) = self.ask_directory(message, deadline, Error::Unknown).await?;
        let number = number.try_into().map(u64::from_le_bytes);
        number.map_err(|_| Error::Refused("the manager returned no number for the binding".into()))
    }

    pub(crate) async fn unbind(&self, name: &str, deadline: Instant) -> Result<(), Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameUnbind { request, name };
        self.ask_directory(message, deadline, Error::Unknown).await.map(drop)
    }

    pub(crate) async fn lookup(&self, name: &str, deadline: Instant) -> Result<(NodeId, Vec<u8>), Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameLookup { request, name };
        self.ask_directory(message, deadline, Error::Deadline).await
    }
}

/// The control messages of jobs, for the application runtime.
#[derive(Clone)]
pub struct JobMessages {
    node: Arc<Node>,
}

impl JobMessages {
    /// Returns the next message about jobs, or [`ToNode::Shutdown`]. Once this node is no longer a member,
    /// and all earlier messages have been taken, returns [`ToNode::Refused`] each time.
    pub async fn next(&self) -> ToNode {
        let control = &self.node.control;
        let take = || match control.jobs.lock().pop() {
            Some(message) => Some(message),
            None if control.has_ended() => {
                Some(ToNode::Refused { reason: "this node has lost its membership".into() })
            }
            None => None,
        };
        control.jobs_change.until(take).await
    }
}

impl Lite {
    /// Returns the control messages of jobs. One task should take them, because each message goes to the
    /// first task that asks.
    #[must_use]
    pub fn jobs(&self) -> JobMessages {
        JobMessages { node: self.by.node.clone() }
    }

    /// Sends a message to the manager; waits while many messages are queued.
    pub async fn send_control(&self, message: &ToManager) -> Result<(), Error> {
        let control = &self.by.node.control;
        let room = || {
            if control.has_ended() {
                return Some(Err(Error::LinkDown));
            }
            let mut out = control.out.lock();
            (out.len() < SEND_QUEUE).then(|| {
                out.push_back(proto::encode(message));
                Ok(())
            })
        };
        let sent = self.by.node.timers.before(self.deadline(), control.out_change.until(room)).await;
        sent.unwrap_or(Err(Error::Deadline))?;
        control.out_change.wake_all();
        Ok(())
    }

    /// Frees a name of a region, or a name under which this node has published another object. The region
    /// stays if it is mapped or has other names. Only the region's master and nodes with `ADMIN` may do
    /// this.
    pub async fn unpublish(&self, name: &str) -> Result<(), Error> {
        let (node, deadline) = (&self.by.node, self.deadline());
        match node.find_named(name, deadline).await {
            Ok(Named::Region { owner, region, .. }) => {
                let ask = Ask::Unpublish { region, name: name.into() };
                node.ask_node(node.life_of(owner)?, &ask, deadline).await.map(drop)
            }
            Ok(Named::Object(place)) if place.home() == (node.me, node.incarnation) => {
                node.unbind_from(name, Bearer::Object(place.number), deadline).await
            }
            Ok(_) | Err(Error::Refused(_)) => node.unbind(name, deadline).await,
            Err(error) => Err(error),
        }
        .inspect(|()| self.by.scope.forget_name(name))
    }
}
