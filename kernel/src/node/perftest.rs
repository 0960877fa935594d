//! perftest on this kernel: as an application of a node, and alone without a manager (`perftest=`,
//! `fabric_ip=`).

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv4Addr;
use perftest::{Error, Host, Options, Perftest};
use platform::NetworkError;
use runtime::App;
use verbs::Gid;

use super::remote_access;
use super::rnic::{NodeRnic, Wanted};
use crate::cmdline;
use crate::machine::Machine;
use crate::net::fabric::{At, FabricNetwork};
use crate::net::port::Port;
use crate::net::{self, Net};
use crate::power::{self, Code};
use crate::println;

/// The length of the prefix of the network in which the manager assigns addresses (10.77.0.0/16), in bits.
const PREFIX: u8 = 16;

/// Returns perftest over the RNIC, with the TCP connection of its programs on a port.
fn on(net: &'static Net, rnic: &NodeRnic, port: &'static Port, at: At, prefix: u8) -> Arc<Perftest> {
    let network = Arc::new(FabricNetwork::new(net, port, at, prefix));
    Arc::new(Perftest::new(Host { platform: Arc::new(Machine), rnic: rnic.rnic(), network }))
}

/// Returns the application for a node that has joined, if its RNIC has a port for TCP.
pub(super) fn application(net: &'static Net, rnic: &NodeRnic) -> Option<Box<dyn App>> {
    let at = At::Rnic(rnic.rnic());
    Some(Box::new(perftest::Job(on(net, rnic, rnic.port()?, at, PREFIX))))
}

/// Returns the value of `perftest=`: the words of a command line, separated by commas.
pub(super) fn words() -> Option<&'static str> {
    cmdline::get("perftest")
}

/// Serves clients one after the other for as long as the machine runs. If the words contain a server's
/// address, it runs one test and ends the machine.
pub(super) async fn run(words: &str) -> Result<(), String> {
    let options = Options::parse(words.split(',')).map_err(|e| format!("perftest={words}: {e}"))?;
    let (address, prefix) = address()?;
    let wanted = Wanted::from_command_line()?;
    remote_access::set()?;
    let network = net::init(false)?;
    let rnic = NodeRnic::start(wanted, network).await?;
    rnic.set_gid(Gid::from_ipv4(address.octets()))?;
    let perftest = if let Some(port) = rnic.port() {
        on(network, &rnic, port, At::Rnic(rnic.rnic()), prefix)
    } else {
        // InfiniBand carries no TCP here: another port does, and the card has a GID of its own.
        let port =
            network.fabric.ok_or("perftest= on InfiniBand needs a network device beside it, for TCP")?;
        on(network, &rnic, port, At::Own(address), prefix)
    };
    rnic.watch(|_| async {});
    if options.server.is_some() {
        let report = perftest.run(&options).await.map_err(|e| format!("{}: {e}", options.program))?;
        print(&report);
        power::exit(Code::Success);
    }
    let listener = perftest.listen(&options).map_err(|e| format!("{}: {e}", options.program))?;
    log::info!("perftest: {} serves at {address}:{}", options.program, options.port);
    loop {
        match perftest.serve(&options, &*listener).await {
            Ok(report) => print(&report),
            Err(Error::Exchange { error: NetworkError::Deadline, .. }) => {}
            Err(error) => log::error!("perftest: {}: {error}", options.program),
        }
    }
}

fn print(report: &perftest::Report) {
    for line in report.text.lines().chain(report.json.lines()) {
        println!("{line}");
    }
}

/// Parses `fabric_ip=`.
fn address() -> Result<(Ipv4Addr, u8), String> {
    let text = cmdline::get("fabric_ip").ok_or("perftest= needs fabric_ip=ADDRESS/PREFIX")?;
    let parts = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse().ok()?, prefix.parse::<u8>().ok().filter(|p| (1..=32).contains(p))?))
    });
    parts.ok_or_else(|| format!("fabric_ip={text}: want ADDRESS/PREFIX"))
}
