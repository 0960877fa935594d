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
use core::time::Duration;
use platform::Instant;
use proto::{Attempt, Member, NodeId, ToManager, VoucherKey};
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

impl Connections {
    /// Returns a message to the responder of an attempt.
    pub(crate) fn to_responder(&self, to: &Member, voucher: &Voucher, message: &SetUp) -> Letter {
        let responder = (to.node, to.incarnation);
        let attempt = Attempt { requester: self.own_id(), responder, stamp: voucher.stamp };
        let bytes = self.datagram(&voucher.key, &attempt, Sender::Requester, message);
        Letter { to: to.clone(), stamp: voucher.stamp, queue_pair: voucher.queue_pair, bytes }
    }

    /// Returns a message to the requester of an attempt, who receives datagrams at `queue_pair`.
    pub(crate) fn to_requester(
        &self,
        to: &Member,
        stamp: u64,
        queue_pair: Option<QpNum>,
        message: &SetUp,
    ) -> Letter {
        let attempt = Attempt { requester: (to.node, to.incarnation), responder: self.own_id(), stamp };
        let bytes = self.datagram(&self.vouching.key(&attempt), &attempt, Sender::Responder, message);
        Letter { to: to.clone(), stamp, queue_pair, bytes }
    }

    fn datagram(&self, key: &VoucherKey, attempt: &Attempt, sender: Sender, message: &SetUp) -> Vec<u8> {
        let mut nonce = [0; 12];
        self.platform.fill_random(&mut nonce);
        datagram::write(key, attempt, sender, nonce, message)
    }

    /// Sends a message as a datagram, or through the manager if that is impossible.
    pub(super) fn dispatch(&self, letter: &Letter) {
        if !self.send_datagram(letter) {
            self.send_relayed(letter);
        }
    }

    fn send_datagram(&self, letter: &Letter) -> bool {
        let Some(queue_pair) = letter.queue_pair else { return false };
        let Some(link) = self.common_link(&letter.to) else { return false };
        let to = self.address_of(&letter.to, link);
        self.endpoint.send(to, queue_pair, &letter.bytes)
    }

    fn send_relayed(&self, letter: &Letter) {
        self.counters.set_ups_relayed.add(1);
        self.tell(&letter.to, letter.stamp, Message::SetUp(letter.bytes.clone()));
    }

    /// Sends a message, and repeats it until the attempt has got further. Abandons the attempt if it has not
    /// succeeded in time.
    pub(super) fn send_until_open(self: &Arc<Self>, letter: Letter) {
        self.dispatch(&letter);
        self.watch_attempt(letter.to.node, letter.stamp, Some(letter));
    }

    /// Abandons `attempt` if it has not succeeded in time. Meanwhile repeats its last message.
    pub(super) fn watch_attempt(self: &Arc<Self>, node: NodeId, attempt: u64, letter: Option<Letter>) {
        let me = self.clone();
        let until = self.platform.now() + self.config.connect_timeout;
        let task = async move {
            if let Some(letter) = letter.filter(|letter| letter.queue_pair.is_some()) {
                for pause in PAUSES {
                    if me.passes((me.platform.now() + pause).min(until), node, attempt).await {
                        return;
                    }
                    sometimes!("a message of a set-up was repeated");
                    if !me.lease.is_suspended() {
                        me.send_datagram(&letter);
                    }
                }
                if me.passes((me.platform.now() + PAUSES[3]).min(until), node, attempt).await {
                    return;
                }
                sometimes!("a set-up went through the manager after all");
                me.send_relayed(&letter);
            }
            if !me.passes(until, node, attempt).await {
                me.abandon(node, attempt);
            }
        };
        self.platform.spawn("lite-connect", Box::pin(task));
    }

    /// Waits until an attempt has got further, or until a time. Returns true if the attempt has.
    async fn passes(&self, until: Instant, node: NodeId, attempt: u64) -> bool {
        let over = || {
            let open = self.peers.lock().get(&node).is_some_and(|peer| peer.link.waits_for(attempt));
            (!open).then_some(())
        };
        self.timers.before(until, self.peer_change.until(over)).await.is_some()
    }

    // ---- Arrivals ----

    /// Opens the endpoint for datagrams, and starts the task that takes them.
    pub(crate) fn start_datagrams(self: &Arc<Self>) {
        self.endpoint.open(&*self.platform);
        self.announce();
        if self.endpoint.queue_pair().is_some() {
            let me = self.clone();
            self.platform.spawn("lite-datagrams", Box::pin(async move { me.take_datagrams().await }));
        }
    }

    /// Tells the manager where this node receives datagrams.
    fn announce(&self) {
        self.control.post(&ToManager::Datagrams { queue_pair: self.endpoint.queue_pair() });
    }

    async fn take_datagrams(self: Arc<Self>) {
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
    pub(super) fn on_datagram(self: &Arc<Self>, bytes: &mut [u8], carrier: Carrier) -> bool {
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
    fn on_requester(self: &Arc<Self>, attempt: &Attempt, bytes: &mut [u8], carrier: Carrier) -> bool {
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
    fn on_responder(self: &Arc<Self>, attempt: &Attempt, bytes: &mut [u8], carrier: Carrier) -> bool {
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
