//! A manager that only admits nodes, forwards messages and keeps names. It ends no lease by itself, and
//! acknowledges no heartbeat unless it is told to.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use platform::{ControlLink, Instant, LinkDown};
use proto::{
    Attempt, Departures, Incarnation, Member, NameError, NodeId, PROTOCOL_VERSION, RnicOffer, ToManager,
    ToNode, VouchingSecret, Welcome,
};
use spin::Mutex;
use verbs::{QpNum, Rnic};

/// The lease that nodes get unless another is set: a day, because nothing renews it.
const LEASE_MS: u32 = 86_400_000;
/// The least stamp of a voucher. The manager has no clock, so its vouchers never become old.
const FIRST_STAMP: u64 = 1 << 62;
/// The secret from which the keys of members are computed.
const SECRET: VouchingSecret = VouchingSecret::from_bytes([7; 32]);

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
    down: bool,
    /// The end of the member's lease, once it has been renewed.
    lease_until: Option<Instant>,
}

#[derive(Default)]
struct State {
    members: BTreeMap<NodeId, (Member, Arc<Mutex<Inbox>>)>,
    names: BTreeMap<String, (NodeId, Vec<u8>)>,
    departures: Departures,
    free: BTreeMap<NodeId, u64>,
    lease_ms: Option<u32>,
    /// The last number given to an incarnation or to the binding of a name.
    last: u64,
    /// The number of vouchers so far.
    vouchers: u64,
    /// The queue pairs at which members receive datagrams.
    datagrams: BTreeMap<NodeId, QpNum>,
    /// The members' messages about jobs that nobody has taken yet.
    jobs: VecDeque<(NodeId, ToManager)>,
}

impl State {
    /// Ends a membership and returns the member's inbox.
    fn remove(&mut self, node: NodeId, reason: &str) -> Option<Arc<Mutex<Inbox>>> {
        let (member, inbox) = self.members.remove(&node)?;
        self.names.retain(|_, (owner, _)| *owner != node);
        self.free.remove(&node);
        self.datagrams.remove(&node);
        let incarnation = member.incarnation;
        for (_, other) in self.members.values() {
            send(other, &ToNode::Left { node, incarnation, reason: reason.into() });
        }
        let settled = self.departures.begin(node, incarnation, self.members.keys().copied());
        self.tell_settled(settled);
        Some(inbox)
    }

    fn tell_settled(&self, lives: Vec<(NodeId, Incarnation)>) {
        for (node, incarnation) in lives {
            for (_, inbox) in self.members.values() {
                send(inbox, &ToNode::Settled { node, incarnation });
            }
        }
    }
}

/// The manager.
#[derive(Default)]
pub struct Hub(Mutex<State>);

struct Link {
    hub: Arc<Hub>,
    node: NodeId,
    inbox: Arc<Mutex<Inbox>>,
}

fn send(inbox: &Mutex<Inbox>, message: &ToNode) {
    let waker = {
        let mut inbox = inbox.lock();
        inbox.messages.push_back(proto::encode(message));
        inbox.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn hang_up(inbox: &Mutex<Inbox>) {
    let waker = {
        let mut inbox = inbox.lock();
        inbox.down = true;
        inbox.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns true if a message is about a job.
fn is_of_job(message: &ToManager) -> bool {
    matches!(
        message,
        ToManager::JobAccepted { .. }
            | ToManager::JobProgress { .. }
            | ToManager::JobInputCredit { .. }
            | ToManager::JobOutput { .. }
            | ToManager::JobDone { .. }
            | ToManager::JobFailed { .. }
            | ToManager::JobOver { .. }
            | ToManager::Jobs { .. }
    )
}

/// Returns the voucher for an attempt.
fn voucher(request: u64, attempt: Attempt, queue_pair: Option<QpNum>) -> ToNode {
    let key = SECRET.member(attempt.responder).voucher(&attempt);
    ToNode::Voucher { request, to: attempt.responder.0, stamp: attempt.stamp, key, queue_pair }
}

impl Hub {
    /// Returns a manager without members.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Admits a node under the lowest free number.
    ///
    /// # Panics
    /// If all numbers are in use.
    #[must_use]
    pub fn join(self: &Arc<Self>, rnic: &dyn Rnic) -> (Arc<dyn ControlLink>, Welcome) {
        let mut state = self.0.lock();
        let node = (1..4096).map(NodeId).find(|n| !state.members.contains_key(n)).expect("a free node id");
        state.last += 1;
        let incarnation = Incarnation(state.last);
        let a = rnic.attributes();
        let offer = RnicOffer {
            driver: a.driver.into(),
            links: a.links.to_vec(),
            mac: a.port.mac,
            gid: None,
            lid: a.port.lid,
            mtu: a.max_mtu,
            max_rd_atomic: a.max_rd_atomic,
            key: rnic.memory_key(),
            physical: false,
        };
        let gid = a.port.gid;
        let member = Member { node, incarnation, name: alloc::format!("host-{}", node.0), gid, rnic: offer };
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let members = state.members.values().map(|(m, _)| m.clone()).collect();
        for (_, other) in state.members.values() {
            send(other, &ToNode::Joined(member.clone()));
        }
        state.members.insert(node, (member, inbox.clone()));
        let link = Link { hub: self.clone(), node, inbox };
        (
            Arc::new(link),
            Welcome {
                node,
                incarnation,
                gid,
                lease_ms: state.lease_ms.unwrap_or(LEASE_MS),
                time: 0,
                key: SECRET.member((node, incarnation)),
                secret: SECRET.resume((node, incarnation)),
                epoch: 1,
                members,
            },
        )
    }

    /// Sets the lease, in milliseconds, of nodes that join from now on.
    pub fn set_lease(&self, ms: u32) {
        self.0.lock().lease_ms = Some(ms);
    }

    /// Acknowledges a heartbeat of a member, which extends its lease to `until`.
    pub fn renew(&self, node: NodeId, until: Instant) {
        let inbox = self.0.lock().members.get(&node).map(|(_, inbox)| inbox.clone());
        if let Some(inbox) = inbox {
            inbox.lock().lease_until = Some(until);
            send(&inbox, &ToNode::HeartbeatAck { seq: 0, time: 0 });
        }
    }

    /// Declares a member dead. The member is not told, and its own link stays up.
    pub fn declare_dead(&self, node: NodeId) {
        let _ = self.0.lock().remove(node, "lease expired");
    }

    /// Breaks the control connection of a member.
    pub fn cut(&self, node: NodeId) {
        let inbox = self.0.lock().members.get(&node).map(|(_, inbox)| inbox.clone());
        if let Some(inbox) = inbox {
            hang_up(&inbox);
        }
    }

    /// Sends a message to a member, as the manager would.
    pub fn send(&self, node: NodeId, message: &ToNode) {
        let state = self.0.lock();
        if let Some((_, inbox)) = state.members.get(&node) {
            send(inbox, message);
        }
    }

    /// Returns true if a member has sent a message about a job that has not been taken yet.
    #[must_use]
    pub fn has_job_message(&self) -> bool {
        !self.0.lock().jobs.is_empty()
    }

    /// Takes the first of the members' messages about jobs. This manager does not act on them.
    #[must_use]
    pub fn take_job_message(&self) -> Option<(NodeId, ToManager)> {
        self.0.lock().jobs.pop_front()
    }

    fn handle(&self, from: NodeId, via: &Arc<Mutex<Inbox>>, message: ToManager) {
        let mut state = self.0.lock();
        // Messages of a former incarnation are ignored.
        if !state.members.get(&from).is_some_and(|(_, inbox)| Arc::ptr_eq(inbox, via)) {
            return;
        }
        if message == ToManager::Leave {
            if let Some(inbox) = state.remove(from, "left") {
                hang_up(&inbox);
            }
            return;
        }
        let State { members, names, departures, free, last, vouchers, datagrams, jobs, .. } = &mut *state;
        let Some((member, inbox)) = members.get(&from) else { return };
        let answer = |request, result| send(inbox, &ToNode::Name { request, result });
        match message {
            ToManager::Relay { to, incarnation, body } => {
                if let Some((_, there)) = members.get(&to).filter(|(m, _)| m.incarnation == incarnation) {
                    send(there, &ToNode::Relayed { from, incarnation: member.incarnation, body });
                }
            }
            ToManager::Datagrams { queue_pair } => datagrams.extend(queue_pair.map(|number| (from, number))),
            ToManager::AskVoucher { request, to, incarnation }
                if members.get(&to).is_some_and(|(m, _)| m.incarnation == incarnation) =>
            {
                *vouchers += 1;
                let queue_pair = datagrams.get(&to).copied();
                let (requester, responder) = ((from, member.incarnation), (to, incarnation));
                let attempt = Attempt { requester, responder, stamp: FIRST_STAMP + *vouchers };
                send(inbox, &voucher(request, attempt, queue_pair));
            }
            ToManager::NameBind { request, name, value } => {
                if let Err(error) = proto::check_lengths(&name, &value) {
                    return answer(request, Err(error));
                }
                if names.contains_key(&name) {
                    return answer(request, Err(NameError::Taken));
                }
                names.insert(name, (from, value));
                *last += 1;
                answer(request, Ok((from, last.to_le_bytes().to_vec())));
            }
            ToManager::NameUnbind { request, name } => {
                answer(request, unbind(names, from, &name).map(|()| (from, Vec::new())));
            }
            ToManager::NameGive { request, name, to, value, .. } => {
                *last += 1;
                let given = give(names, from, to, name, value);
                answer(request, given.map(|()| (to, last.to_le_bytes().to_vec())));
            }
            ToManager::NameLookup { request, name } => {
                answer(request, names.get(&name).cloned().ok_or(NameError::NotFound));
            }
            ToManager::MemoryFree { bytes } => {
                state.free.insert(from, bytes);
            }
            ToManager::AskMemoryFree { request } => {
                let told = members.keys().filter_map(|node| Some((*node, *free.get(node)?)));
                let mut nodes: Vec<_> = told.collect();
                nodes.sort_by_key(|(node, free)| (core::cmp::Reverse(*free), *node));
                send(inbox, &ToNode::MemoryFree { request, nodes });
            }
            ToManager::LeftSeen { node, incarnation } => {
                let settled = departures.seen(from, node, incarnation);
                state.tell_settled(settled);
            }
            message if is_of_job(&message) => jobs.push_back((from, message)),
            _ => {}
        }
    }
}

impl ControlLink for Link {
    fn poll_send(&self, _: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        if self.inbox.lock().down {
            return Poll::Ready(Err(LinkDown));
        }
        let message = proto::decode(message).expect("a node's message is well formed");
        self.hub.handle(self.node, &self.inbox, message);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let mut inbox = self.inbox.lock();
        if inbox.down {
            return Poll::Ready(Err(LinkDown));
        }
        if let Some(message) = inbox.messages.pop_front() {
            return Poll::Ready(Ok(message));
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lease_until(&self) -> Instant {
        self.inbox.lock().lease_until.unwrap_or(Instant::MAX)
    }

    fn version(&self) -> u16 {
        PROTOCOL_VERSION
    }
}

/// Passes a name to another node.
fn give(
    names: &mut BTreeMap<String, (NodeId, Vec<u8>)>,
    from: NodeId,
    to: NodeId,
    name: String,
    value: Vec<u8>,
) -> Result<(), NameError> {
    match names.get(&name) {
        None => Err(NameError::NotFound),
        Some((owner, _)) if ![from, to].contains(owner) => Err(NameError::NotOwner),
        Some(_) => {
            names.insert(name, (to, value));
            Ok(())
        }
    }
}

/// Unbinds a name of a node.
fn unbind(
    names: &mut BTreeMap<String, (NodeId, Vec<u8>)>,
    from: NodeId,
    name: &str,
) -> Result<(), NameError> {
    match names.get(name) {
        None => Err(NameError::NotFound),
        Some((owner, _)) if *owner != from => Err(NameError::NotOwner),
        Some(_) => names.remove(name).map(drop).ok_or(NameError::NotFound),
    }
}
