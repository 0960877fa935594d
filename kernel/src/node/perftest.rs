//! perftest on this kernel: as an application of a node, and alone without a manager (`perftest=`, `fabric_ip=`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv4Addr;
use perftest::{Error, Host, Options, Perftest};
use platform::NetworkError;
use verbs::Gid;

use super::pollers;
use super::rnic::{Fabric, Wanted};
use crate::boot::cmdline;
use crate::machine::Machine;
use crate::net::fabric::FabricNetwork;
use crate::net::{self, Net};
use crate::power::{self, Code};
use crate::println;

/// Bits of prefix of the network in which the manager assigns addresses: 10.77.0.0/16.
const PREFIX: u8 = 16;

/// perftest over the RNIC, if that has a port for the TCP connection of its programs.
fn on(net: &'static Net, fabric: &Fabric, prefix: u8) -> Option<Arc<Perftest>> {
    let rnic = fabric.rnic();
    let network = Arc::new(FabricNetwork::new(net, fabric.port()?, rnic.clone(), prefix));
    Some(Arc::new(Perftest::new(Host { platform: Arc::new(Machine), rnic, network })))
}

/// As an application of a node that has joined.
pub fn application(net: &'static Net, fabric: &Fabric) -> Option<perftest::Job> {
    on(net, fabric, PREFIX).map(perftest::Job)
}

/// What `perftest=` asks for: the words of a command line, separated by commas.
pub fn asked() -> Option<&'static str> {
    cmdline::get("perftest")
}

/// Serves clients one after the other for as long as the machine runs; or, with a server's address among the words, runs
/// one test and ends the machine.
pub async fn run(words: &str) -> Result<(), String> {
    let options = Options::parse(words.split(',')).map_err(|e| format!("perftest={words}: {e}"))?;
    let (address, prefix) = address()?;
    let wanted = Wanted::asked()?;
    let network = net::init(false)?;
    let fabric = Fabric::start(wanted, network.fabric).await?;
    let perftest = on(network, &fabric, prefix)
        .ok_or("perftest= needs TCP at the RNIC's own port, which mlx4 does not give: want nic=softroce")?;
    fabric.set_gid(Gid::from_ipv4(address.octets()))?;
    pollers::register_rnic(fabric.rnic());
    if options.server.is_some() {
        let report = perftest.run(&options).await.map_err(|e| format!("{}: {e}", options.program))?;
        say(&report);
        power::exit(Code::Success);
    }
    let listener = perftest.listen(&options).map_err(|e| format!("{}: {e}", options.program))?;
    log::info!("perftest: {} serves at {address}:{}", options.program, options.port);
    loop {
        match perftest.serve(&options, &*listener).await {
            Ok(report) => say(&report),
            Err(Error::Exchange { error: NetworkError::Deadline, .. }) => {}
            Err(error) => log::error!("perftest: {}: {error}", options.program),
        }
    }
}

fn say(report: &perftest::Report) {
    for line in report.text.lines().chain(report.json.lines()) {
        println!("{line}");
    }
}

/// `fabric_ip=`.
fn address() -> Result<(Ipv4Addr, u8), String> {
    let text = cmdline::get("fabric_ip").ok_or("perftest= needs fabric_ip=ADDRESS/PREFIX")?;
    let parts = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse().ok()?, prefix.parse::<u8>().ok().filter(|p| (1..=32).contains(p))?))
    });
    parts.ok_or_else(|| format!("fabric_ip={text}: want ADDRESS/PREFIX"))
}
