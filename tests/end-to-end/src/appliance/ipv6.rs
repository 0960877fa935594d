//! Nodes that reach their manager by IPv6, and refusals of malformed addresses.

use super::cluster::{LIMIT, refused_option, wait_for_console};
pub(crate) use super::patience::free_port;
use crate::runner::{Case, Outcome};
use anyhow::{Result, ensure};
use lab::appliances::SUCCESS;
use lab::cargo::Profile;
use lab::cluster::Cluster;
use lab::manager::{self, Manager};
use lab::network_services::{Addresses, Answers, NetworkServices};
use lab::tool;
use qemu::Uplink;
use std::path::Path;

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("cluster::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("ipv6-manager-node", by_a_router),
        case("ipv6-manager-by-name", by_name),
        case("ipv6-manager-by-name-with-both-kinds", by_name_with_both_kinds),
        case("ipv6-manager-of-several", of_several),
        case("bad-ipv6-manager-node", |log| {
            refused_option("manager=fd00::1:18500", "an IPv6 address without brackets: [IPV6]:PORT", log)
        }),
        case("bad-ipv6-address-node", |log| {
            refused_option("ip6=fd00::1", "ip6=fd00::1: want ADDRESS/PREFIX, auto or off", log)
        }),
    ]
}

/// Starts a manager on all addresses of the host, waits for the node of `cluster`, and ends it.
pub(crate) fn joins(cluster: &Cluster, port: u16, log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    // The copy has the permissions of the file.
    std::fs::copy(cluster.manager.key(), dir.path().join("cluster.key"))?;
    let manager = Manager::start_on_all(&manager::build(Profile::Dev)?, port, dir.path())?;
    ensure!(manager.address() == format!("[::]:{port}"), "the manager listens on {}", manager.address());
    let mut nodes = manager.client("nodes");
    tool::run_ok(nodes.args(["--wait", "1", "--timeout", "120"]), log, LIMIT)?;
    tool::run_ok(&mut manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a node without an address says so, gets one of a router, and joins once there is a manager.
fn by_a_router(log: &Path) -> Result<()> {
    let port = free_port()?;
    let cluster = Cluster::on_one_network(1, &format!("manager=[fec0::2]:{port}"), log)?;
    let manager = format!("cannot join: no manager at [fec0::2]:{port}: ");
    wait_for_console(0, &format!("{manager}the port has no address of that family"), log)?;
    let _uplink = Uplink::ipv6(cluster.qemu(), cluster.fabric().socket(1))?;
    wait_for_console(0, &format!("{manager}connection refused"), log)?;
    joins(&cluster, port, log)
}

/// Checks that a node with a fixed address and a list of managers joins that which it reaches by IPv6.
fn of_several(log: &Path) -> Result<()> {
    let port = free_port()?;
    let options = format!("ip=off ip6=fec0::60/64 gw6=fe80::2 manager=10.0.2.2:{port},[fec0::2]:{port}");
    let cluster = Cluster::on_one_network(1, &options, log)?;
    let _uplink = Uplink::ipv6(cluster.qemu(), cluster.fabric().socket(1))?;
    let says =
        format!("no manager at 10.0.2.2:{port}: the port has no address of that family; no manager at");
    wait_for_console(0, &says, log)?;
    joins(&cluster, port, log)
}

/// Checks that a node finds the IPv6 address of a manager whose name has no other.
fn by_name(log: &Path) -> Result<()> {
    joins_by_name(Addresses::Ipv6, "connection refused", log)
}

/// Checks that a node tries the IPv6 address of a manager whose IPv4 address does not answer.
fn by_name_with_both_kinds(log: &Path) -> Result<()> {
    joins_by_name(Addresses::Both, "no answer in time", log)
}

/// Boots a node whose manager is named, waits until it says `why` it has not joined, and starts the manager.
fn joins_by_name(addresses: Addresses, why: &str, log: &Path) -> Result<()> {
    let (port, name) = (free_port()?, "boss.ferrolite.test");
    let options = format!("ip=10.0.2.60/24 dns=10.0.2.77 manager={name}:{port}");
    let cluster = Cluster::on_one_network(1, &options, log)?;
    let _uplink = Uplink::ipv6(cluster.qemu(), cluster.fabric().socket(1))?;
    let answers = Answers { name: name.to_owned(), addresses, ..Answers::default() };
    let _services = NetworkServices::start(cluster.fabric().socket(2), answers)?;
    wait_for_console(0, &format!("no manager at {name}:{port}: {why}"), log)?;
    joins(&cluster, port, log)
}
