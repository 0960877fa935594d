//! Orders of clients to the machine of one node: power-off, reset, and the boot of another image. The node
//! leaves the cluster before its machine obeys. An image is forwarded in pieces, as fast as the node takes
//! them.

use super::images::KeptImage;
use super::members::Live;
use super::{ConnId, Core};
use platform::Instant;
use proto::{BootImage, NodeId, PowerAction, Reason, Refusal, ToClient, ToNode, printable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The orders that are not carried out yet, by node.
#[derive(Debug, Default)]
pub(super) struct Orders(BTreeMap<NodeId, Order>);

#[derive(Debug)]
struct Order {
    /// The client, for people, if the machine is turned off.
    turned_off_by: Option<String>,
    /// The change of the machine's power, if it is one.
    power: Option<PowerAction>,
    /// The party that has given the order.
    by: By,
    /// The time of the last progress.
    since: Instant,
    stage: Stage,
}

/// The party that gives an order.
#[derive(Debug)]
enum By {
    /// A client, which sends an image in pieces.
    Client(ConnId),
    /// A rollout, with its image.
    Rollout(Arc<[u8]>),
}

impl By {
    const fn client(&self) -> Option<ConnId> {
        match self {
            Self::Client(conn) => Some(*conn),
            Self::Rollout(_) => None,
        }
    }
}

#[derive(Debug)]
enum Stage {
    /// An image is sent: its length, the bytes that the node was sent, and those that it has taken.
    Image { len: u64, sent: u64, taken: u64 },
    /// The node leaves.
    Leaving,
}

impl Orders {
    /// Returns true if the node's machine has an order, so that no job may start there.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.0.contains_key(&node)
    }

    /// Returns the node to whose machine a client has given an order.
    fn of(&self, conn: ConnId) -> Option<NodeId> {
        self.0.iter().find(|(_, order)| order.by.client() == Some(conn)).map(|(&node, _)| node)
    }

    /// Moves the times of the last progress by `later`.
    pub(super) fn forgive(&mut self, later: impl Fn(&mut Instant)) {
        self.0.values_mut().for_each(|order| later(&mut order.since));
    }
}

impl Core {
    /// Returns the deadline of the order that ends first.
    pub(super) fn next_order_deadline(&self) -> Option<Instant> {
        self.orders.0.values().map(|order| self.order_deadline(order)).min()
    }

    fn order_deadline(&self, order: &Order) -> Instant {
        let limit = match order.stage {
            Stage::Image { .. } => self.config.reply_timeout,
            Stage::Leaving => self.config.leave,
        };
        order.since + limit
    }

    /// Tells a node to leave, and its machine to change its power. The power controller of a node that does
    /// not answer does it, if the inventory has one.
    pub(super) fn power(&mut self, conn: ConnId, name: &str, action: PowerAction) {
        if self.bmc_instead(conn, name, action) {
            return;
        }
        let what = match action {
            PowerAction::Off => "turns off",
            PowerAction::Reset => "resets",
        };
        self.order(conn, name, what, Stage::Leaving, ToNode::Power(action));
    }

    /// Tells a node that an image follows.
    pub(super) fn boot(&mut self, conn: ConnId, name: &str, image: BootImage) {
        if image.len == 0 || image.len > BootImage::MAX_LEN {
            let most = BootImage::MAX_LEN;
            return self.fail_client(conn, format!("an image has 1 to {most} bytes, not {}", image.len));
        }
        let stage = Stage::Image { len: image.len, sent: 0, taken: 0 };
        if self.order(conn, name, "boots an image on", stage, ToNode::Image(image)) {
            self.tell_client(conn, ToClient::ImageTaken { bytes: 0 });
        }
    }

    /// Passes an order on. Returns false if it is refused.
    fn order(&mut self, conn: ConnId, name: &str, what: &str, stage: Stage, message: ToNode) -> bool {
        let node = match self.machine(conn, name) {
            Ok(node) => node,
            Err((Some(kind), reason)) => {
                self.refuse_client(conn, kind, reason);
                return false;
            }
            Err((None, reason)) => {
                self.fail_client(conn, reason);
                return false;
            }
        };
        self.log(format!("{} {what} {}", self.peer(conn), self.members.label(node)));
        let power = match message {
            ToNode::Power(action) => Some(action),
            _ => None,
        };
        let turned_off_by = (power == Some(PowerAction::Off)).then(|| self.who(conn));
        let order = Order { turned_off_by, power, by: By::Client(conn), since: self.now, stage };
        self.orders.0.insert(node, order);
        self.tell_ordered(node, message);
        true
    }

    /// Returns the node of this name, whose machine can be given an order.
    fn machine(&self, conn: ConnId, name: &str) -> Result<NodeId, (Option<Refusal>, Reason)> {
        let mut members = self.members.0.iter();
        let Some((&node, live)) = members.find(|(_, live)| live.member.name == name) else {
            return Err((Some(Refusal::NotFound), format!("no node {} has joined", printable(name))));
        };
        self.is_free(conn, node, live).map(|()| node).map_err(|reason| (None, reason))
    }

    /// Returns an error if a node's machine cannot be given an order by this client now.
    fn is_free(&self, conn: ConnId, node: NodeId, live: &Live) -> Result<(), Reason> {
        if self.leaving.is_some() {
            return Err("the cluster is shutting down".into());
        }
        if self.orders.of(conn).is_some() {
            return Err("this connection has given an order already".into());
        }
        let label = live.label();
        if live.conn.is_none() {
            return Err(format!("{label} is silent"));
        }
        if !live.member.rnic.physical {
            return Err(format!("{label} is a process on a host, and no machine of its own"));
        }
        if self.orders.contains(node) {
            return Err(format!("{label} has another order already"));
        }
        match live.job {
            Some(job) => Err(format!("{label} takes part in job {}", job.0)),
            None => Ok(()),
        }
    }

    fn tell_ordered(&mut self, node: NodeId, message: ToNode) {
        if let Some(conn) = self.members.get(node).and_then(|live| live.conn) {
            self.tell_node(conn, message);
        }
    }

    /// Forwards a piece of an image.
    pub(super) fn image_piece(&mut self, conn: ConnId, bytes: Vec<u8>) {
        let node = self.orders.of(conn);
        let order = node.and_then(|node| Some((node, self.orders.0.get_mut(&node)?)));
        let piece = bytes.len() as u64;
        if let Some((node, Order { stage: Stage::Image { len, sent, taken }, .. })) = order
            && (1..=BootImage::PIECE).contains(&bytes.len())
            && *sent + piece <= (*len).min(*taken + BootImage::WINDOW)
        {
            *sent += piece;
            return self.tell_ordered(node, ToNode::ImagePiece { bytes });
        }
        self.fail_client(conn, "a piece of an image that nobody waits for".into());
    }

    /// Notes that a node has taken the first `bytes` bytes of its image.
    pub(super) fn image_taken(&mut self, node: NodeId, bytes: u64) {
        let now = self.now;
        let Some(order) = self.orders.0.get_mut(&node) else { return };
        let Stage::Image { sent, taken, .. } = &mut order.stage else { return };
        // An answer about an image that was dropped may come late.
        if bytes <= *taken || bytes > *sent {
            return;
        }
        *taken = bytes;
        order.since = now;
        match order.by.client() {
            Some(conn) => self.tell_client(conn, ToClient::ImageTaken { bytes }),
            None => self.send_kept(node),
        }
    }

    /// Notes that a node has checked its image, and leaves to boot it.
    pub(super) fn image_ready(&mut self, node: NodeId) {
        let now = self.now;
        if let Some(order) = self.orders.0.get_mut(&node)
            && matches!(order.stage, Stage::Image { len, sent, .. } if sent == len)
        {
            (order.stage, order.since) = (Stage::Leaving, now);
        }
    }

    /// Ends the order of a node that does not boot its image.
    pub(super) fn image_refused(&mut self, node: NodeId, reason: &str) {
        if let Some(order) = self.orders.0.remove(&node) {
            let label = self.members.label(node);
            self.order_has_failed(&order, node, printable(&format!("{label}: {reason}")));
        }
    }

    /// Ends the order of a node whose connection has ended before its image was whole: pieces that were on
    /// their way are lost. The order of a node that leaves goes on: the node may leave on another connection.
    pub(super) fn order_is_cut_off(&mut self, node: NodeId, reason: &str) {
        if matches!(self.orders.0.get(&node), Some(Order { stage: Stage::Image { .. }, .. })) {
            self.image_refused(node, reason);
        }
    }

    /// Ends the order of a node that is no member any more.
    pub(super) fn ordered_is_gone(&mut self, node: NodeId, gone: &Live, reason: &str, has_left: bool) {
        let label = gone.label();
        match self.orders.0.remove(&node) {
            Some(Order { by, stage: Stage::Leaving, turned_off_by, .. }) if has_left => {
                if let Some(who) = turned_off_by {
                    self.has_been_turned_off(&gone.member.name, who);
                }
                if let By::Client(conn) = by {
                    self.commit_to_client(conn, ToClient::NodeLeft);
                }
            }
            Some(Order { by: By::Client(conn), power, .. }) => {
                let name = &gone.member.name;
                if !power.is_some_and(|action| self.bmc_instead(conn, name, action)) {
                    self.fail_client(conn, format!("{label}: {reason}"));
                }
            }
            Some(_) => self.rollout_is_refused(&gone.member.name, &format!("{label}: {reason}")),
            None => {}
        }
    }

    /// Forgets the order of a client that is gone, unless the node leaves already.
    pub(super) fn forget_order_of(&mut self, conn: ConnId) {
        let Some(node) = self.orders.of(conn) else { return };
        if let Some(Order { stage: Stage::Image { .. }, .. }) = self.orders.0.remove(&node) {
            self.tell_ordered(node, ToNode::ImageDrop);
        }
    }

    /// Ends the orders whose deadline is over.
    pub(super) fn expire_orders(&mut self) {
        let late = self.orders.0.iter().filter(|(_, order)| self.order_deadline(order) <= self.now);
        let late: Vec<NodeId> = late.map(|(&node, _)| node).collect();
        for node in late {
            let reason = format!("{} did not obey in time", self.members.label(node));
            match self.orders.0.get(&node).and_then(|order| order.by.client()) {
                Some(conn) => self.refuse_client(conn, Refusal::TimedOut, reason),
                None => {
                    if let Some(order) = self.orders.0.remove(&node) {
                        self.tell_ordered(node, ToNode::ImageDrop);
                        self.order_has_failed(&order, node, reason);
                    }
                }
            }
        }
    }

    fn order_has_failed(&mut self, order: &Order, node: NodeId, reason: Reason) {
        match order.by.client() {
            Some(conn) => self.fail_client(conn, reason),
            None => {
                let name = self.members.get(node).map(|live| live.member.name.clone()).unwrap_or_default();
                self.rollout_is_refused(&name, &reason);
            }
        }
    }

    /// Tells a node to boot an image that the manager keeps.
    pub(super) fn order_kept(&mut self, node: NodeId, image: &KeptImage) {
        let BootImage { len, sha256 } = BootImage { len: image.info.len, sha256: image.info.sha256 };
        let stage = Stage::Image { len, sent: 0, taken: 0 };
        let by = By::Rollout(image.bytes.clone());
        self.log(format!("a rollout boots an image on {}", self.members.label(node)));
        self.orders.0.insert(node, Order { turned_off_by: None, power: None, by, since: self.now, stage });
        self.tell_ordered(node, ToNode::Image(BootImage { len, sha256 }));
        self.send_kept(node);
    }

    /// Sends a node the next pieces of an image that the manager keeps.
    fn send_kept(&mut self, node: NodeId) {
        let mut pieces = Vec::new();
        if let Some(Order { by: By::Rollout(bytes), stage: Stage::Image { len, sent, taken }, .. }) =
            self.orders.0.get_mut(&node)
        {
            let most = (*len).min(*taken + BootImage::WINDOW);
            while *sent < most {
                let piece = (most - *sent).min(BootImage::PIECE as u64);
                let range = *sent as usize..(*sent + piece) as usize;
                pieces.push(bytes.get(range).unwrap_or_default().to_vec());
                *sent += piece;
            }
        }
        pieces.into_iter().for_each(|bytes| self.tell_ordered(node, ToNode::ImagePiece { bytes }));
    }

    /// Fails all orders.
    pub(super) fn fail_orders(&mut self, reason: &str) {
        let clients: Vec<ConnId> = self.orders.0.values().filter_map(|order| order.by.client()).collect();
        clients.into_iter().for_each(|conn| self.fail_client(conn, reason.into()));
    }
}
