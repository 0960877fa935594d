//! Orders of clients to the power controllers of machines.
//!
//! The driver reaches the controllers, and reports. Power that a controller confirms off is the surest sign
//! that a member is dead: its membership ends at once, not with its lease.

use super::members::Live;
use super::{Action, ConnId, Core};
use crate::inventory::Bmc;
use proto::{Incarnation, NodeId, PowerAction, PowerVerb, Reason, Refusal, ToClient, printable};
use std::collections::BTreeMap;

/// An order to the power controller of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerOrder {
    /// The number of the order. A number is never used again.
    pub number: u64,
    /// The name of the node.
    pub node: String,
    /// The change of the power, or the look at it.
    pub verb: PowerVerb,
    /// The controller.
    pub bmc: Bmc,
}

/// A report about an order to a power controller. The end of each order is reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerReport {
    /// The controller has told that the machine is off.
    Off {
        /// The number of the order.
        number: u64,
    },
    /// The order has ended.
    Ended {
        /// The number of the order.
        number: u64,
        /// True if the machine is on, or the reason why the order is not done.
        result: Result<bool, Reason>,
    },
}

/// The orders that have not ended.
#[derive(Debug, Default)]
pub(super) struct Powers {
    next: u64,
    orders: BTreeMap<u64, Order>,
}

#[derive(Debug)]
struct Order {
    conn: ConnId,
    /// The client, for people.
    who: String,
    node: String,
    verb: PowerVerb,
    /// The member of this name when the order was given. Its life is over when the power is off; that of a
    /// later one is not.
    life: Option<(NodeId, Incarnation)>,
    /// True if the order takes the place of one to the node itself, whose answer the client expects.
    instead: bool,
}

impl Core {
    /// Does something by the power controller of a node's machine.
    pub(super) fn bmc(&mut self, conn: ConnId, name: &str, verb: PowerVerb, force: bool) {
        let changes = matches!(verb, PowerVerb::Off | PowerVerb::Cycle);
        if changes
            && !force
            && let Some(live) = self.members.named(name)
            && let Some(reason) = is_used(live)
        {
            let word = verb.word();
            return self.fail_client(conn, format!("{reason}: --bmc does `power {word}` all the same"));
        }
        self.order_bmc(conn, name, verb, false);
    }

    /// Passes an order on to the power controller of a node that does not answer, in the place of one to the
    /// node itself. Returns false if the node answers or has no controller.
    pub(super) fn bmc_instead(&mut self, conn: ConnId, name: &str, action: PowerAction) -> bool {
        let live = self.members.named(name);
        if self.config.rules.inventory.bmc(name).is_none() || live.is_some_and(|live| live.conn.is_some()) {
            return false;
        }
        if let Some(reason) = live.and_then(is_used) {
            self.fail_client(conn, format!("{reason}, and does not answer: use --bmc"));
            return true;
        }
        let verb = match action {
            PowerAction::Off => PowerVerb::Off,
            PowerAction::Reset => PowerVerb::Cycle,
        };
        self.order_bmc(conn, name, verb, true);
        true
    }

    fn order_bmc(&mut self, conn: ConnId, name: &str, verb: PowerVerb, instead: bool) {
        let shown = printable(name);
        let Some(bmc) = self.config.rules.inventory.bmc(name).cloned() else {
            let live = self.members.named(name).is_some() || self.config.rules.inventory.0.contains_key(name);
            if !live {
                return self.refuse_client(conn, Refusal::NotFound, format!("no node {shown} is known"));
            }
            return self.fail_client(conn, format!("the inventory has no BMC of {shown}"));
        };
        if self.leaving.is_some() && matches!(verb, PowerVerb::On | PowerVerb::Cycle) {
            return self.fail_client(conn, "the cluster is shutting down".into());
        }
        if self.powers.orders.values().any(|order| order.node == name || order.conn == conn) {
            return self.fail_client(conn, format!("the BMC of {shown} has another order already"));
        }
        let number = self.powers.next;
        self.powers.next += 1;
        let (who, live) = (self.who(conn), self.members.named(name));
        let life = live.map(|live| (live.member.node, live.member.incarnation));
        let (word, kind) = (verb.word(), bmc.kind());
        self.log(format!("{who} asks the BMC of {shown} ({kind}): power {word}"));
        let order = Order { conn, who, node: name.into(), verb, life, instead };
        self.powers.orders.insert(number, order);
        let order = PowerOrder { number, node: name.into(), verb, bmc };
        self.actions.push(Action::Power(Box::new(order)));
    }

    /// Handles a report about an order to a power controller.
    pub(super) fn power_told(&mut self, report: &PowerReport) {
        match report {
            PowerReport::Off { number } => self.is_off(*number),
            PowerReport::Ended { number, result } => self.bmc_has_ended(*number, result),
        }
    }

    /// Ends the life of a member whose machine is off.
    fn is_off(&mut self, number: u64) {
        let Some(Order { who, node: name, verb, life, .. }) = self.powers.orders.get(&number) else { return };
        let (who, name, verb, life) = (who.clone(), name.clone(), *verb, *life);
        if let Some((node, incarnation)) = life
            && self.members.get(node).is_some_and(|live| live.member.incarnation == incarnation)
        {
            self.remove_member(node, "its power is off, as its BMC confirms");
        }
        if verb == PowerVerb::Off {
            self.has_been_turned_off(&name, who);
        }
    }

    fn bmc_has_ended(&mut self, number: u64, result: &Result<bool, Reason>) {
        let Some(Order { conn, node, instead, .. }) = self.powers.orders.remove(&number) else { return };
        match result {
            Ok(on) => {
                let word = if *on { "on" } else { "off" };
                self.log(format!("the BMC of {}: the power is {word}", printable(&node)));
                if self.connections.contains_key(&conn) {
                    let answer = if instead { ToClient::NodeLeft } else { ToClient::Powered { on: *on } };
                    self.commit_to_client(conn, answer);
                }
            }
            Err(reason) if self.connections.contains_key(&conn) => self.fail_client(conn, reason.clone()),
            Err(reason) => self.log(printable(reason)),
        }
    }

    /// Fails all orders, because the manager stops.
    pub(super) fn fail_bmc_orders(&mut self, reason: &str) {
        for order in std::mem::take(&mut self.powers.orders).into_values() {
            if self.connections.contains_key(&order.conn) {
                self.fail_client(order.conn, reason.into());
            }
        }
    }
}

/// Returns the reason why a member's power is not simply taken away.
fn is_used(live: &Live) -> Option<Reason> {
    let label = live.label();
    match live.job {
        Some(job) => Some(format!("{label} takes part in job {}", job.0)),
        None => live.conn.is_some().then(|| format!("{label} answers, and leaves by `power off` or `reset`")),
    }
}
