//! A node of the cluster: connects one RNIC, the control connection, LITE and the applications.

mod apps;
pub(crate) mod control_link;
#[cfg(feature = "selftest")]
mod flaw;
mod image;
#[cfg_attr(not(feature = "perftest"), path = "no_perftest.rs")]
mod perftest;
mod pollers;
mod refusal;
mod remote_access;
mod rnic;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use lite::Lite;
use proto::{BootReport, Join, PROTOCOL_VERSION, PowerAction, RnicOffer, ToManager, Welcome};
use verbs::{Gid, Rnic};

use crate::boot::acpi;
use crate::machine::Machine;
use crate::net::stack::Buffers;
use crate::net::{self, Net};
use crate::power::{self, Code};
use crate::{chart, cmdline, console, exec, io_addresses, mm, report};
use control_link::ManagerLink;
use platform::Platform;
pub(crate) use refusal::stay;
use rnic::{NodeRnic, Wanted};
use spin::Once;

/// The time that a message gets to leave the machine before it ends.
const FAREWELL: Duration = Duration::from_millis(20);
/// The longest time that calls and operations in flight get to end when the node leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// Machines with less memory get short TCP buffers and small pools.
const SMALL: u64 = 96 << 20;
/// The least memory in which a node was seen to join and work (`cargo xtask bench --only size`).
const LEAST: u64 = 9 << 20;

/// Joins the cluster and serves it until the manager ends this node, or runs perftest if `perftest=` asks for
/// it. If that fails, prints one line with the reason, and stays as it is.
pub(crate) async fn run() {
    if let Some(words) = perftest::words() {
        let checked = io_addresses::check(&acpi::tables().iommus);
        let ran = match checked {
            Ok(()) => perftest::run(words).await,
            Err(why) => Err(why),
        };
        return match ran {
            Ok(()) => (),
            Err(why) => refusal::stay_alone(&why).await,
        };
    }
    match start().await {
        Ok(node) => node.serve().await,
        Err(why) => refusal::stay(&why).await,
    }
}

/// Returns the network, which the first call starts.
fn network() -> Result<&'static Net, String> {
    static NETWORK: Once<&'static Net> = Once::new();
    NETWORK.try_call_once(|| net::init(true)).copied()
}

struct Node {
    rnic: NodeRnic,
    lite: Lite,
    apps: Vec<Box<dyn runtime::App>>,
}

async fn start() -> Result<Node, String> {
    io_addresses::check(&acpi::tables().iommus)?;
    control_link::check()?;
    let wanted = Wanted::from_command_line()?;
    let (total, _) = mm::frames::totals();
    let config = lite_config(total)?;
    let key = control_link::KeySource::of_settings()?;
    remote_access::set()?;
    let network = network()?;
    chart::mark("network devices");
    let rnic = NodeRnic::start(wanted, network).await?;
    chart::mark("rnic");
    report::rnic(&*rnic.rnic());
    let stack = network.management()?;
    let key = key.key(stack).await?;

    let buffers = if total < SMALL {
        Buffers { receive: 256 << 10, send: 64 << 10 }
    } else {
        Buffers { receive: 1 << 20, send: 256 << 10 }
    };
    let apps = apps::all(perftest::application(network, &rnic));
    // DHCP may set the name.
    let name = || {
        let of_port = || format!("node-{}", rnic.rnic().attributes().port.mac);
        cmdline::get("node").map_or_else(of_port, ToOwned::to_owned)
    };
    let keep_id = match cmdline::get("id").unwrap_or("fresh") {
        "fresh" => false,
        "keep" => true,
        other => return Err(format!("id={other}: want fresh or keep")),
    };
    let gid = rnic.own_address(network).await?;
    let offer = || Join { keep_id, ..join_offer(&*rnic.rnic(), gid, &name(), total, &apps) };
    #[cfg(feature = "selftest")]
    let offer = || {
        let join = offer();
        Join { rnic: flaw::offer(join.rnic.clone()), ..join }
    };
    let (link, welcome) = control_link::join(stack, key, buffers, config.silence, &offer).await?;
    let name = name();
    log::info!("joined as {} ({name}), {} other members", welcome.node, welcome.members.len());

    let config = lite::Config { name, ..config };
    let lite = attach(&rnic, link, welcome, config, total)?;
    let manager = lite.clone();
    rnic.watch(|reason| async move {
        // The manager notices the end even if this fails.
        let _ = manager.send_control(&ToManager::LastWords { reason }).await;
        exec::sleep(FAREWELL).await;
    });
    chart::mark("lite");
    chart::print();
    Ok(Node { rnic, lite, apps })
}

/// Returns LITE's sizes and times: small pools on a machine with little memory, then the settings of the
/// command line.
fn lite_config(total: u64) -> Result<lite::Config, String> {
    let mut config = lite::Config::default();
    if total < SMALL {
        config.operations = 256;
        config.bounce = [(256, 64), (4096, 32), (32768, 8)];
        config.ring = 32 << 10;
    }
    for (name, value) in cmdline::lite_settings() {
        config.set(name, value).map_err(|error| format!("{}{error}", bootconfig::LITE))?;
    }
    Ok(config)
}

/// Returns the random number of this boot.
fn boot_id() -> u64 {
    static ID: spin::Once<u64> = spin::Once::new();
    *ID.call_once(|| {
        let mut bytes = [0; 8];
        crate::random::fill(&mut bytes);
        u64::from_le_bytes(bytes)
    })
}

/// Returns this node's description for the manager.
fn join_offer(
    rnic: &dyn Rnic,
    gid: Option<Gid>,
    name: &str,
    memory: u64,
    apps: &[Box<dyn runtime::App>],
) -> Join {
    let attributes = rnic.attributes();
    let mut stages = Vec::new();
    chart::each(|stage, us| stages.push((stage.to_owned(), us)));
    Join {
        version: PROTOCOL_VERSION,
        name: name.to_owned(),
        keep_id: false,
        rnic: RnicOffer {
            driver: attributes.driver.to_owned(),
            links: attributes.links.to_vec(),
            mac: attributes.port.mac,
            gid,
            lid: attributes.port.lid,
            mtu: attributes.max_mtu,
            max_rd_atomic: attributes.max_rd_atomic,
            key: rnic.memory_key(),
            physical: true,
        },
        memory,
        memory_free: Machine.memory().stats().free,
        cpus: u16::try_from(Machine.cpus()).unwrap_or(u16::MAX),
        apps: apps.iter().map(|app| app.manifest()).collect(),
        boot: BootReport { stages },
        boot_id: boot_id(),
    }
}

/// Assigns the manager's address to the RNIC, and starts LITE on it.
fn attach(
    node_rnic: &NodeRnic,
    link: Arc<ManagerLink>,
    welcome: Welcome,
    config: lite::Config,
    total: u64,
) -> Result<Lite, String> {
    node_rnic.set_gid(welcome.gid)?;
    let rnic = node_rnic.rnic();
    let lite = Lite::start(Arc::new(Machine), rnic, link, welcome, config).map_err(|e| match e {
        lite::Error::NoMemory { .. } => {
            format!("too little memory: a node needs {} MiB, has {} MiB ({e})", LEAST >> 20, total >> 20)
        }
        e => format!("LITE: {e}"),
    })?;
    pollers::register_lite(&lite);
    Ok(lite)
}

impl Node {
    /// Serves jobs until the membership ends, then ends the machine, or boots another image.
    async fn serve(self) {
        let loader = image::Loader::default();
        let end = runtime::serve_on(&loader, self.lite.clone(), self.apps).await;
        if end == runtime::End::Lost {
            log::error!("this node ends: it has lost its membership");
            power::exit(Code::Refused);
        }
        if let Err(e) = self.lite.with_deadline(LEAVE_WITHIN).leave().await {
            log::warn!("left with calls or operations in flight: {e}");
        }
        exec::sleep(FAREWELL).await;
        match end {
            runtime::End::Boot => {
                self.rnic.shut_down();
                loader.boot()
            }
            runtime::End::Power(PowerAction::Reset) => {
                log::info!("the manager resets this machine");
                console::flush();
                power::reset()
            }
            _ => {
                log::info!("the manager has ended this node");
                power::exit(Code::Success)
            }
        }
    }
}
