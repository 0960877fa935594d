//! Orders to power controllers, and the inventory against the members, on a virtual clock.

use crate::support::*;
use manager::core::{Config, Event, PowerOrder, PowerReport, Rules, Saved};
use manager::inventory::{Bmc, Expected, Inventory, Way};
use proto::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Returns a manager that expects the nodes a and b, each with a power controller, and c without one.
fn harness() -> Harness {
    let bmc = Bmc { way: Way::Command(PathBuf::from("/power")), timeout: Duration::from_secs(30) };
    let with = Expected { bmc: Some(bmc), ..Expected::default() };
    let nodes = [("a", with.clone()), ("b", with), ("c", Expected { cpus: Some(9), ..Expected::default() })];
    let inventory = Inventory(nodes.map(|(name, node)| (name.to_owned(), node)).into());
    Harness::with(
        Config { rules: Rules { inventory: Arc::new(inventory), ..Rules::default() }, ..Config::default() },
        Saved::default(),
    )
}

fn bmc(node: &str, verb: PowerVerb, force: bool) -> FromClient {
    FromClient::Bmc { node: node.into(), verb, force }
}

fn tell(h: &mut Harness, report: PowerReport) {
    h.event(Event::Power { report: &report });
}

/// Returns the only order that was given since the last call.
fn order(h: &mut Harness) -> PowerOrder {
    let mut orders = std::mem::take(&mut h.powers);
    assert_eq!(orders.len(), 1, "{orders:?}");
    orders.remove(0)
}

fn state(h: &mut Harness, name: &str) -> &'static str {
    let nodes = h.node_list();
    nodes.iter().find(|node| node.name == name).map_or("unknown", |node| node.standing.word())
}

#[test]
fn power_that_is_confirmed_off_ends_a_life_at_once() {
    let mut h = harness();
    let ((_a, welcome), (b, _)) = (h.join("a"), h.join("b"));
    h.node_heard(b);
    let client = h.client();
    h.say(client, &bmc("a", PowerVerb::Off, true));
    let PowerOrder { number, node, verb, .. } = order(&mut h);
    assert_eq!((node.as_str(), verb), ("a", PowerVerb::Off));
    assert_eq!((h.node_heard(b), h.client_heard(client)), (vec![], vec![]));
    tell(&mut h, PowerReport::Off { number });
    let reason = "its power is off, as its BMC confirms".to_owned();
    let left = ToNode::Left { node: welcome.node, incarnation: welcome.incarnation, reason };
    assert_eq!(h.node_heard(b), [left]);
    tell(&mut h, PowerReport::Ended { number, result: Ok(false) });
    assert_eq!(h.client_heard(client), [ToClient::Powered { on: false }]);
    assert_eq!(state(&mut h, "a"), "off");
    // The machine is turned on by hand.
    h.join("a");
    assert_eq!(state(&mut h, "a"), "ready");
}

#[test]
fn a_late_report_ends_no_later_life() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &bmc("a", PowerVerb::Cycle, true));
    let PowerOrder { number, .. } = order(&mut h);
    h.dies(a);
    h.join("a");
    tell(&mut h, PowerReport::Off { number });
    tell(&mut h, PowerReport::Ended { number, result: Ok(true) });
    assert_eq!(h.client_heard(client), [ToClient::Powered { on: true }]);
    assert_eq!(state(&mut h, "a"), "ready");
    // A report of an order that has ended changes nothing.
    tell(&mut h, PowerReport::Off { number });
    assert_eq!(state(&mut h, "a"), "ready");
}

#[test]
fn a_node_that_answers_needs_force_and_status_does_not() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let reason = h.refusal(&bmc("a", PowerVerb::Cycle, false));
    assert!(reason.contains("node 1 (a) answers") && reason.contains("--bmc"), "{reason}");
    let worker = h.client();
    h.say(worker, &submit(1, &[]));
    assert!(h.refusal(&bmc("a", PowerVerb::Off, false)).contains("takes part in job 1"));
    // A silent node may come back to its job.
    h.drop(a);
    let off = FromClient::Power { node: "a".into(), action: PowerAction::Off };
    assert!(h.refusal(&off).contains("takes part in job 1, and does not answer: use --bmc"));
    assert!(h.powers.is_empty());
    let client = h.client();
    h.say(client, &bmc("a", PowerVerb::Status, false));
    assert_eq!(order(&mut h).verb, PowerVerb::Status);
}

#[test]
fn the_controller_takes_the_place_of_a_node_that_does_not_answer() {
    for (action, verb, on) in
        [(PowerAction::Off, PowerVerb::Off, false), (PowerAction::Reset, PowerVerb::Cycle, true)]
    {
        let mut h = harness();
        let (a, _) = h.join("a");
        let message = FromClient::Power { node: "a".into(), action };
        // A node that answers leaves by itself.
        let client = h.client();
        h.say(client, &message);
        assert_eq!((h.node_heard(a), h.powers.len()), (vec![ToNode::Power(action)], 0));
        h.say(a, &ToManager::Leave);
        assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
        // It hangs after its next boot, before it is asked or after that.
        h.join("a");
        let client = h.client();
        if on {
            h.pass(Duration::from_secs(6));
        }
        h.say(client, &message);
        h.pass(Duration::from_secs(6));
        let PowerOrder { number, verb: given, .. } = order(&mut h);
        assert_eq!(given, verb);
        tell(&mut h, PowerReport::Off { number });
        tell(&mut h, PowerReport::Ended { number, result: Ok(on) });
        assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
    }
}

#[test]
fn orders_that_cannot_be_given_are_refused() {
    let mut h = harness();
    h.join("c");
    for (node, why) in [("c", "the inventory has no BMC of c"), ("d", "no node d is known")] {
        assert_eq!(h.refusal(&bmc(node, PowerVerb::On, false)), why);
    }
    let first = h.client();
    h.say(first, &bmc("a", PowerVerb::On, false));
    assert_eq!(h.refusal(&bmc("a", PowerVerb::Off, false)), "the BMC of a has another order already");
    // The order to another controller does not wait.
    let other = h.client();
    h.say(other, &bmc("b", PowerVerb::Status, false));
    let numbers: Vec<u64> = h.powers.iter().map(|order| order.number).collect();
    assert_eq!(numbers.len(), 2);
    tell(&mut h, PowerReport::Ended { number: numbers[1], result: Ok(true) });
    assert_eq!(h.client_heard(other), [ToClient::Powered { on: true }]);
    tell(
        &mut h,
        PowerReport::Ended { number: numbers[0], result: Err("the BMC of a: wrong password".into()) },
    );
    assert_eq!(h.failure(first), "the BMC of a: wrong password");
    // The order goes on without its client.
    let gone = h.client();
    h.say(gone, &bmc("a", PowerVerb::Off, false));
    let number = h.powers.last().unwrap().number;
    h.drop(gone);
    tell(&mut h, PowerReport::Off { number });
    tell(&mut h, PowerReport::Ended { number, result: Ok(false) });
    assert_eq!(state(&mut h, "a"), "off");
    let waiting = h.client();
    h.say(waiting, &bmc("a", PowerVerb::On, false));
    h.event(Event::Stop);
    assert_eq!(h.failure(waiting), "the manager stops");
}

#[test]
fn the_inventory_is_compared_with_the_members() {
    let mut h = harness();
    h.join("a");
    h.join("c");
    h.join("d");
    let ToClient::Inventory { nodes, more: false } = h.ask(&FromClient::Inventory { after: String::new() })
    else {
        panic!("no inventory")
    };
    let differs = Presence::Differs(vec!["it has 1 processors, not 9".into()]);
    let wanted =
        [("a", Presence::Present), ("b", Presence::Absent), ("c", differs), ("d", Presence::Unlisted)];
    let found: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.presence.clone())).collect();
    assert_eq!(found, wanted);
    assert_eq!((nodes[1].bmc.as_deref(), nodes[1].standing.word()), (Some("command"), "missing"));
    let after = FromClient::Inventory { after: "c".into() };
    assert!(matches!(h.ask(&after), ToClient::Inventory { nodes, .. } if nodes.len() == 1));
    // The view shows the nodes that are not as listed.
    let view = h.core.view().inventory.expect("an inventory");
    assert_eq!((view.listed, view.present), (3, 1));
    assert_eq!(view.others, nodes[1..]);
}
