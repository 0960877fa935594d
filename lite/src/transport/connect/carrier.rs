//! The ways of a set-up's messages: as datagrams on the fabric, or through the manager.
//!
//! A datagram may be lost, so the end that waits for the other repeats its message, and at last sends it
//! through the manager, which loses nothing. It sends it through the manager at once if one of the two RNICs
//! has no datagrams. The bytes are the same on both ways, and each end checks them in the same manner: a
//! message is accepted only if it is encrypted with the key of a [voucher](super::vouching) for the two
//! incarnations, and a request only if the voucher is fresh and newer than all others of that peer.

use super::connections::Connections;
use super::datagram::{self, MAX_DATAGRAM, Sender};
use super::endpoint::Next;
use super::vouching::Voucher;
use super::wire::{Message, Request, SetUp};
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::peers::{Peer, PeerLink};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::time::Duration;
use platform::Instant;
use proto::{Attempt, Member, NodeId, Nonce, ToManager};
use verbs::QpNum;

/// The pauses before a message is sent again. After the last one it is sent through the manager.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];
/// The number of datagrams without effect after which the task that takes datagrams pauses.
const MAX_USELESS: u32 = 32;
/// The length of that pause.
const PAUSE: Duration = Duration::from_millis(1);
/// The pause before a failed queue pair for datagrams is replaced.
const REPLACE: Duration = Duration::from_millis(10);

/// The way on which a message came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Fabric,
    Manager,
}

/// A message of a set-up for one peer.
pub(crate) struct Letter {
    to: Member,
    stamp: u64,
    /// The queue pair at which the peer receives datagrams; `None`: the message goes through the manager.
    queue_pair: Option<QpNum>,
    pub(crate) bytes: Vec<u8>,
}

impl Letter {
    /// Returns a message to the responder of an attempt.
    pub(crate) fn to_responder(conns: &Connections, to: &Member, voucher: &Voucher, message: &SetUp) -> Self {
        let responder = (to.node, to.incarnation);
        let attempt = Attempt { requester: conns.own_id(), responder, stamp: voucher.stamp };
        let bytes = datagram::write(&voucher.key, &attempt, Sender::Requester, nonce(conns), message);
        Self { to: to.clone(), stamp: voucher.stamp, queue_pair: voucher.queue_pair, bytes }
    }

    /// Returns a message to the requester of an attempt, who receives datagrams at `queue_pair`.
    pub(crate) fn to_requester(
        conns: &Connections,
        to: &Member,
        stamp: u64,
        queue_pair: Option<QpNum>,
        message: &SetUp,
    ) -> Self {
        let attempt = Attempt { requester: (to.node, to.incarnation), responder: conns.own_id(), stamp };
        let key = conns.vouching.key(&attempt);
        let bytes = datagram::write(&key, &attempt, Sender::Responder, nonce(conns), message);
        Self { to: to.clone(), stamp, queue_pair, bytes }
    }

    /// Sends the message as a datagram, or through the manager if that is impossible.
    pub(super) fn dispatch(&self, conns: &Connections) {
        if !self.send_datagram(conns) {
            self.send_relayed(conns);
        }
    }

    /// Sends the message as a datagram. Returns false if that is impossible, or if this node is suspended: it
    /// posts nothing then.
    fn send_datagram(&self, conns: &Connections) -> bool {
        let Some(queue_pair) = self.queue_pair.filter(|_| !conns.lease.is_suspended()) else { return false };
        let Some(link) = conns.common_link(&self.to) else { return false };
        conns.endpoint.send(conns.address_of(&self.to, link), queue_pair, &self.bytes)
    }

    fn send_relayed(&self, conns: &Connections) {
        conns.counters.set_ups_relayed.add(1);
        conns.tell(&self.to, self.stamp, Message::SetUp(self.bytes.clone()));
    }

    /// Sends the message, and repeats it until the attempt has got further. Abandons the attempt if it has
    /// not succeeded in time.
    pub(super) fn send_until_open(self, conns: &Arc<Connections>) {
        self.dispatch(conns);
        watch(conns, self.to.node, self.stamp, Some(self));
    }

    /// Repeats the message until the attempt has got further; at last sends it through the manager.
    async fn repeat(&self, conns: &Connections, until: Instant) {
        let (node, attempt) = (self.to.node, self.stamp);
        let passed = |pause| {
            let at = (conns.platform.now() + pause).min(until);
            passes(conns, at, node, attempt)
        };
        for pause in PAUSES {
            if passed(pause).await {
                return;
            }
            sometimes!("a message of a set-up was repeated");
            self.send_datagram(conns);
        }
        if !passed(PAUSES[3]).await {
            sometimes!("a set-up went through the manager after all");
            self.send_relayed(conns);
        }
    }
}

fn nonce(conns: &Connections) -> Nonce {
    let mut nonce = Nonce::default();
    conns.platform.fill_random(&mut nonce);
    nonce
}

/// Abandons `attempt` if it has not succeeded in time. Meanwhile repeats its last message.
pub(super) fn watch(conns: &Arc<Connections>, node: NodeId, attempt: u64, letter: Option<Letter>) {
    let me = conns.clone();
    let until = conns.platform.now() + conns.config.connect_timeout;
    let task = async move {
        if let Some(letter) = letter.filter(|letter| letter.queue_pair.is_some()) {
            letter.repeat(&me, until).await;
        }
        if !passes(&me, until, node, attempt).await {
            me.abandon(node, attempt);
        }
    };
    conns.platform.spawn("lite-connect", Box::pin(task));
}

/// Waits until an attempt has got further, or until a time. Returns true if the attempt has.
async fn passes(conns: &Connections, until: Instant, node: NodeId, attempt: u64) -> bool {
    let over = || {
        let open = conns.peers.lock().get(&node).is_some_and(|peer| peer.link.waits_for(attempt));
        (!open).then_some(())
    };
    conns.timers.before(until, conns.peer_change.until(over)).await.is_some()
}

/// The handling of datagrams that arrive.
pub(crate) struct Arrivals(pub(crate) Arc<Connections>);

impl Deref for Arrivals {
    type Target = Arc<Connections>;

    fn deref(&self) -> &Arc<Connections> {
        &self.0
    }
}

impl Arrivals {
    /// Opens the endpoint for datagrams, and starts the task that takes them.
    pub(crate) fn start(self) {
        self.endpoint.open(&*self.platform);
        self.announce();
        if self.endpoint.queue_pair().is_some() {
            let platform = self.platform.clone();
            platform.spawn("lite-datagrams", Box::pin(async move { self.take_all().await }));
        }
    }

    /// Tells the manager where this node receives datagrams.
    fn announce(&self) {
        self.control.post(&ToManager::Datagrams { queue_pair: self.endpoint.queue_pair() });
    }

    async fn take_all(self) {
        let mut bytes = [0; MAX_DATAGRAM];
        let mut useless = 0;
        loop {
            match self.endpoint.arrival.until(|| self.endpoint.next(&mut bytes)).await {
                Next::Closed => return,
                Next::Failed => {
                    self.timers.until(self.platform.now() + REPLACE).await;
                    if self.endpoint.replace().is_ok() {
                        sometimes!("the queue pair for datagrams was replaced");
                        self.announce();
                    }
                    continue;
                }
                Next::Datagram(len) => {
                    let datagram = bytes.get_mut(..len).unwrap_or_default();
                    // A suspended node posts nothing new. The peer repeats its message.
                    let is_useful = !self.lease.is_suspended() && self.on_datagram(datagram, Carrier::Fabric);
                    useless = if is_useful { 0 } else { useless + 1 };
                }
            }
            if useless >= MAX_USELESS {
                useless = 0;
                sometimes!("many datagrams without effect came");
                self.timers.until(self.platform.now() + PAUSE).await;
            }
        }
    }

    /// Handles a datagram. Returns true if it had an effect.
    pub(super) fn on_datagram(&self, bytes: &mut [u8], carrier: Carrier) -> bool {
        let Some((attempt, sender)) = datagram::header(bytes) else { return self.refuse() };
        match sender {
            Sender::Requester => self.on_requester(&attempt, bytes, carrier),
            Sender::Responder => self.on_responder(&attempt, bytes, carrier),
        }
    }

    /// Counts a datagram that is forged, late or void.
    fn refuse(&self) -> bool {
        self.counters.set_ups_refused.add(1);
        false
    }

    /// Handles a message of the requester of an attempt.
    fn on_requester(&self, attempt: &Attempt, bytes: &mut [u8], carrier: Carrier) -> bool {
        let (node, incarnation) = attempt.requester;
        let is_requester = |peer: &&Peer| {
            let is_same = peer.member.incarnation == incarnation || planted(Bug::VoucherOfAnotherLife);
            is_same && !matches!(peer.link, PeerLink::Gone)
        };
        let member = self.peers.lock().get(&node).filter(is_requester).map(|peer| peer.member.clone());
        let Some(member) = member else { return self.refuse() };
        if attempt.responder != self.own_id() || !self.vouching.is_fresh(attempt.stamp, self.platform.now()) {
            return self.refuse();
        }
        match datagram::read(&self.vouching.key(attempt), bytes) {
            Some(SetUp::Request(Request { end, answer_to })) => {
                let answer_to = answer_to.filter(|_| carrier == Carrier::Fabric);
                self.on_request(&member, attempt, Request { end, answer_to })
            }
            Some(SetUp::Ready) => self.on_ready(node, attempt.stamp),
            _ => self.refuse(),
        }
    }

    /// Handles a message of the responder of an attempt.
    fn on_responder(&self, attempt: &Attempt, bytes: &mut [u8], carrier: Carrier) -> bool {
        let (node, incarnation) = attempt.responder;
        let asked = {
            let peers = self.peers.lock();
            let peer = peers.get(&node).filter(|peer| peer.member.incarnation == incarnation);
            let asked = peer.and_then(|peer| Some((peer.member.clone(), peer.voucher.clone()?)));
            asked.filter(|(_, voucher)| voucher.stamp == attempt.stamp)
        };
        let Some((member, voucher)) = asked.filter(|_| attempt.requester == self.own_id()) else {
            return self.refuse();
        };
        match datagram::read(&voucher.key, bytes) {
            Some(SetUp::Reply(end)) => {
                // The answer goes the same way.
                let queue_pair = voucher.queue_pair.filter(|_| carrier == Carrier::Fabric);
                self.on_reply(&member, &Voucher { queue_pair, ..voucher }, &end)
            }
            Some(SetUp::Refused(why)) => self.on_refused(node, attempt.stamp, why),
            Some(SetUp::Full) => self.on_full(node, attempt.stamp),
            _ => self.refuse(),
        }
    }
}
