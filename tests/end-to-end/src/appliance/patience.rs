//! Nodes that cannot join at first: the console names the cause, and the node joins once the cause is gone.

use super::cluster::{count_words, process, refused_option, wait_for_console};
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::Result;
use lab::appliances::SUCCESS;
use lab::cargo::Profile;
use lab::cluster::Cluster;
use lab::manager::{self, Manager};
use lab::network_services::{Answers, NetworkServices};
use lab::tool;
use qemu::Uplink;
use rustix::process::{Signal, kill_process};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

/// The longest wait for anything on a busy host.
const LIMIT: Duration = Duration::from_secs(120);
/// The address that the machines of [`Cluster::on_one_network`] have without DHCP.
const STATIC: &str = "ip=10.0.2.60/24 gw=10.0.2.2";

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("cluster::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("wrong-key-node-joins-later", wrong_key_node),
        case("absent-manager-node-joins-later", absent_manager_node),
        case("manager-that-falls-silent", falls_silent),
        case("several-managers-node", several_managers),
        case("no-lease-node-joins-later", no_lease),
        case("no-link-node-joins-later", no_link),
        case("manager-by-dhcp", manager_by_dhcp),
        case("manager-by-name", manager_by_name),
        case("rdma-address-by-dhcp", rdma_by_dhcp),
        case("bad-rdma-address-node", |log| {
            refused_option("rdma_ip=224.0.0.1", "rdma_ip=224.0.0.1: want manager, dhcp or the IPv4", log)
        }),
    ]
}

/// Starts a manager with this key on `port`, waits for a node, and ends the cluster.
fn manager_later(port: u16, key: &Path, log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    // The copy has the permissions of the file.
    std::fs::copy(key, dir.path().join("cluster.key"))?;
    let manager = Manager::start(&manager::build(Profile::Dev)?, port, dir.path())?;
    let mut nodes = manager.client("nodes");
    tool::run_ok(nodes.args(["--wait", "1", "--timeout", "120"]), log, LIMIT)?;
    tool::run_ok(&mut manager.client("shutdown"), log, LIMIT).map(|_| ())
}

/// Checks that a node whose key the manager does not accept says so, tries again, and joins once a manager
/// has that key.
fn wrong_key_node(log: &Path) -> Result<()> {
    let key = tempfile::NamedTempFile::new()?;
    std::fs::write(key.path(), format!("{}\n", "5a".repeat(32)))?;
    let cluster = Cluster::start(1, "", Some(key.path()), log)?;
    wait_for_console(0, "cannot join: wrong cluster key: the manager at 10.0.2.2:", log)?;
    let port = cluster.manager.port()?;
    kill_process(process(&cluster)?, Signal::KILL)?;
    wait_for_console(0, &format!("cannot join: no manager at 10.0.2.2:{port}"), log)?;
    manager_later(port, key.path(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Returns a port on which nothing listens.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Checks that a node without a manager says so, tries again, and joins once there is a manager.
fn absent_manager_node(log: &Path) -> Result<()> {
    let port = free_port()?;
    let cluster = Cluster::start(1, &format!("manager=10.0.2.2:{port}"), None, log)?;
    let says = format!("cannot join: no manager at 10.0.2.2:{port}: connection refused; next attempt in 1.");
    wait_for_console(0, &says, log)?;
    manager_later(port, cluster.manager.key(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a node names the refusal of a manager that refuses the connection at first and does not answer
/// the last try of an attempt, which the deadline of the attempt cuts short.
fn falls_silent(log: &Path) -> Result<()> {
    let options = format!("{STATIC} manager=10.0.2.77:1");
    let cluster = Cluster::on_one_network(1, &options, log)?;
    // An attempt takes 5 s, with a pause of 100 ms between two tries: less than 2 s are left for the next
    // try, which is less than the deadline of a try alone.
    let answers = Answers { refusals: 35, ..Answers::default() };
    let _services = NetworkServices::start(cluster.fabric().socket(1), answers)?;
    wait_for_console(0, "cannot join: no manager at 10.0.2.77:1: connection refused; next attempt", log)
}

/// Checks that a node tries all managers of a list.
fn several_managers(log: &Path) -> Result<()> {
    let cluster = Cluster::with_initrd(1, "", "manager=10.0.2.2:1\n", log)?;
    cluster.joined(log)?;
    drop(cluster);
    let port = free_port()?;
    let managers = format!("manager=10.0.2.2:1,10.0.2.2:{port}");
    let cluster = Cluster::start(1, &managers, None, log)?;
    let says = format!("no manager at 10.0.2.2:1: connection refused; no manager at 10.0.2.2:{port}: ");
    wait_for_console(0, &says, log)?;
    manager_later(port, cluster.manager.key(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Waits until the only node of a cluster is a member, and ends the cluster.
fn joins(cluster: &Cluster, log: &Path) -> Result<()> {
    cluster.joined(log)?;
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a node without a DHCP server joins once there is one.
fn no_lease(log: &Path) -> Result<()> {
    let port = free_port()?;
    let cluster = Cluster::on_one_network(1, &format!("manager=10.0.2.2:{port}"), log)?;
    wait_for_console(0, "cannot join: no DHCP server answers on port 52:54:00:fe:00:00", log)?;
    let _uplink = Uplink::start(cluster.qemu(), cluster.fabric().socket(1))?;
    wait_for_console(0, &format!("cannot join: no manager at 10.0.2.2:{port}"), log)?;
    manager_later(port, cluster.manager.key(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a node whose cable is not plugged in joins once it is.
fn no_link(log: &Path) -> Result<()> {
    let port = free_port()?;
    let cluster = Cluster::on_one_network(1, &format!("{STATIC} manager=10.0.2.2:{port}"), log)?;
    cluster.fabric().set_link(0, false)?;
    let _uplink = Uplink::start(cluster.qemu(), cluster.fabric().socket(1))?;
    wait_for_console(0, &format!("cannot join: no manager at 10.0.2.2:{port}: no answer in time"), log)?;
    cluster.fabric().set_link(0, true)?;
    manager_later(port, cluster.manager.key(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a node takes the manager's address from a DHCP server, and names the source.
fn manager_by_dhcp(log: &Path) -> Result<()> {
    let cluster = Cluster::on_one_network(1, "", log)?;
    let settings = format!("manager=10.0.2.2:{} nic=mlx4 node=other", cluster.manager.port()?);
    let answers = Answers { settings: Some(settings.clone()), ..Answers::default() };
    let _services = NetworkServices::start(cluster.fabric().socket(1), answers)?;
    wait_for_console(0, "DHCP: `nic=mlx4` is ignored: the key counts before DHCP", log)?;
    wait_for_console(0, "settings by DHCP: manager=10.0.2.2:", log)?;
    wait_for_console(0, "settings by DHCP, overridden: node=other", log)?;
    // The router comes only now, because it has a DHCP server of its own.
    let _uplink = Uplink::start(cluster.qemu(), cluster.fabric().socket(2))?;
    joins(&cluster, log)
}

/// Checks that a node resolves the manager's name, says if no server answers and if there is no such name,
/// and joins once there is.
fn manager_by_name(log: &Path) -> Result<()> {
    let (port, name) = (free_port()?, "boss.ferrolite.test");
    let options = format!("{STATIC} dns=10.0.2.77 manager={name}:{port}");
    let cluster = Cluster::on_one_network(1, &options, log)?;
    wait_for_console(0, &format!("no manager at {name}:{port}: no DNS server answers"), log)?;
    let answers = |name: &str| Answers { name: name.to_owned(), ..Answers::default() };
    let services = NetworkServices::start(cluster.fabric().socket(1), answers("other.ferrolite.test"))?;
    wait_for_console(0, &format!("no manager at {name}:{port}: DNS knows no address of that name"), log)?;
    services.set(answers(name));
    let _uplink = Uplink::start(cluster.qemu(), cluster.fabric().socket(2))?;
    wait_for_console(0, &format!("no manager at {name}:{port}: connection refused"), log)?;
    manager_later(port, cluster.manager.key(), log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that nodes with RDMA addresses of a DHCP server join with them, and do a job.
fn rdma_by_dhcp(log: &Path) -> Result<()> {
    let cluster = Cluster::on_one_network(2, "rdma_ip=dhcp", log)?;
    let settings = Some(format!("manager=10.0.2.2:{}", cluster.manager.port()?));
    let services = cluster.fabric().socket(2);
    let _services = NetworkServices::start(services, Answers { settings, ..Answers::default() })?;
    (0..2).try_for_each(|n| wait_for_console(n, "settings by DHCP: manager=", log))?;
    let _uplink = Uplink::start(cluster.qemu(), cluster.fabric().socket(3))?;
    (0..2).try_for_each(|n| wait_for_console(n, &format!("rnic: GID 10.0.2.5{n}"), log))?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let output = log.with_extension("out");
    tool::run_ok(count_words(&cluster, &input, &output).args(["--nodes", "2"]), log, LIMIT)?;
    compare(&expected, &output, log)
}
