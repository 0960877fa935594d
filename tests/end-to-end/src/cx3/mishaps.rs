//! Tests of appliances whose card fails while a job runs, or that have several cards and ports.

use super::GROUP;
use crate::appliance::boot::REFUSED;
use crate::appliance::ipv6;
use crate::job::capture::frames;
use crate::job::inputs::Input;
use crate::job::word_count::word_count;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::appliances::RdmaNic;
use lab::cluster::{Cards, Cluster};
use lab::cx3::Tools;
use lab::tool;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The number of frames after which the card of one appliance fails. The job is about to move its data then.
const FRAMES: u32 = 40;
/// The longest wait for anything on a busy host.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("{GROUP}{name}"), move |log| match Tools::get()? {
            Ok(_) => check(log).map(|()| Outcome::Passed),
            Err(why) => Ok(Outcome::Skipped(why.to_owned())),
        })
    };
    vec![
        case("appliances a card fails", |log| fails(&[], log)),
        case("appliances a card fails that is all there is", |log| fails(&["--one-nic"], log)).full_if(true),
        case("appliances a card is lost", lost).full_if(true),
        case("appliances a card and a port are chosen", chosen),
        case("appliances use both ports of a card", both_ports),
        case("appliances reach the manager by IPv6", ipv6),
        case("appliances no such port for the manager", |log| {
            refused("mgmt=mlx4/2", "does not start: the card has 1 port, and no port 2", log)?;
            refused("mgmt=mlx4/0", "mgmt=mlx4/0: want the number of a port of the card, from 1", log)
        }),
        case("appliances a port type is chosen", port_type),
        case("appliances InfiniBand is chosen", |log| {
            word_count(Input::SmallText, 2, false, "cx3:vpi:ib", &[], log)
        }),
        case("appliances a late link", late_link).full_if(true),
        case("appliances no such port type", |log| {
            refused(
                "nic=mlx4/1:ib",
                "does not start: the card does not have an InfiniBand link at its port",
                log,
            )
        }),
        case("appliances large frames", large_frames),
        case("appliances in a VLAN", in_a_vlan),
        case("appliances a VLAN on a virtual function", |log| {
            let cluster = Cluster::on_cards(vec![RdmaNic::VIRTUAL], Cards::default(), "vlan=5", log)?;
            cluster.ends(&REFUSED, LIMIT)?;
            says(&cluster, "does not start: the card does not have VLANs for a virtual function")
        }),
        case("appliances a bad VLAN", |log| refused("vlan=5:8", "vlan=5:8: want VLAN (1 to 4094)", log)),
        case("appliances write by BlueFlame", blue_flame),
        case("appliances no such card", no_such_card),
        case("appliances no such port", no_such_port),
    ]
}

/// Checks that the card is reset and recovers, and that the job continues, also if the control connection
/// uses that card.
fn fails(options: &[&str], log: &Path) -> Result<()> {
    let consoles = log.with_extension("consoles");
    let to = consoles.to_str().context("the log's path is not text")?;
    let card = format!("0:fails={FRAMES}");
    let options = [&["--card", &card, "--console", to], options].concat();
    word_count(Input::Text, 2, false, "cx3", &options, log)?;
    let said = std::fs::read_to_string(consoles.join("node0.log"))?;
    for line in
        ["mlx4: the card has failed: its error buffer begins with 0x0bad0bad", " has recovered after "]
    {
        let times = said.lines().filter(|said| said.contains(line)).count();
        ensure!(times == 1, "node0 says `{line}` {times} times: {said}");
    }
    Ok(())
}

/// Checks that requests go with their doorbells on a card that supports this, by the card's counters.
fn blue_flame(log: &Path) -> Result<()> {
    let consoles = log.with_extension("consoles");
    let to = consoles.to_str().context("the log's path is not text")?;
    word_count(Input::SmallText, 2, false, "cx3:blueflame,cx3", &["--console", to], log)?;
    let said = std::fs::read_to_string(consoles.join("cx3.log"))?;
    let count = |card: &str| {
        let count = said
            .lines()
            .find_map(|line| line.strip_prefix(card)?.strip_suffix(" doorbell blueflame")?.parse().ok());
        count.unwrap_or(0u64)
    };
    ensure!(count("card0: ") > 0, "the card saw no BlueFlame: {said}");
    ensure!(count("card1: ") == 0, "a card without BlueFlame saw some: {said}");
    Ok(())
}

/// Removes the card from the bus for ever: its node must end and print the reason.
fn lost(log: &Path) -> Result<()> {
    let dies = format!("dies={FRAMES}");
    let cards = Cards { first: Some(&dies), ..Cards::default() };
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, "", log)?;
    cluster.joined(log)?;
    // The job's transfers make the card fail. The result of the job does not matter here.
    tool::run(&mut submission(&cluster, log)?, log, LIMIT)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "this node ends: the ConnectX-3 at pci 00:03.0 is lost: the card does not answer")
}

/// Checks that the second port of the second card carries a job, and that the console names the other card
/// and the other port.
fn chosen(log: &Path) -> Result<()> {
    let spare: RdmaNic = "cx3:pro-2port".parse().map_err(anyhow::Error::msg)?;
    let cards = Cards { spare: Some(&spare), ..Cards::default() };
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, "nic=mlx4:00:04.0/2", log)?;
    cluster.joined(log)?;
    tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT)?;
    for line in [
        "at pci 00:04.0, board FER",
        "firmware 2.42.5000, port 2 00:02:c9:",
        "port 1 is not used: Ethernet, 00:02:c9:",
        "Mellanox ConnectX-3 Pro at pci 00:03.0, board FER",
        "firmware 2.42.5000, not used",
    ] {
        says(&cluster, line)?;
    }
    Ok(())
}

/// Checks that machines whose only network device is a card with two ports join a manager on the network of
/// one port, and that a job's RDMA is on the other.
fn both_ports(log: &Path) -> Result<()> {
    let capture = log.with_extension("pcap");
    let cards = Cards { pcap: Some(&capture), manage_by_second: true, ..Cards::default() };
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, "mgmt=mlx4/2", log)?;
    cluster.joined(log)?;
    says(&cluster, "port 2 is used for the management network")?;
    says(&cluster, "firmware 2.42.5000, port 1 00:02:c9:")?;
    tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT)?;
    drop(cluster);
    let bytes = std::fs::read(&capture)?;
    let frames = frames(&bytes).context("the capture is cut")?;
    let is_rdma = |frame: &&&[u8]| roce::wire::Frame::parse(frame).is_ok();
    let count = frames.iter().filter(is_rdma).count();
    ensure!(count > 100, "{count} packets of RDMA in {} frames of the first port", frames.len());
    let tcp = frames.iter().filter(|frame| frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6));
    ensure!(tcp.count() == 0, "the first port has frames of TCP");
    Ok(())
}

/// Checks that a machine whose only network device is a card receives advertisements of a router, which go
/// to a group, and joins a manager by IPv6.
fn ipv6(log: &Path) -> Result<()> {
    let port = ipv6::free_port()?;
    let cards = Cards { manage_by_second: true, is_ipv6: true, ..Cards::default() };
    let options = format!("mgmt=mlx4/2 manager=[fec0::2]:{port}");
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL], cards, &options, log)?;
    ipv6::joins(&cluster, port, log)
}

/// Checks that a card with both layers is on the chosen one: on Ethernet it has a link and carries a job, on
/// InfiniBand it waits for a subnet manager, for as long as it may.
fn port_type(log: &Path) -> Result<()> {
    let vpi: RdmaNic = "cx3:vpi".parse().map_err(anyhow::Error::msg)?;
    let start = |nodes, options| Cluster::on_cards(vec![vpi.clone(); nodes], Cards::default(), options, log);
    let cluster = start(2, "nic=mlx4/1:eth")?;
    cluster.joined(log)?;
    tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT)?;
    drop(cluster);
    let cluster = start(1, "nic=mlx4/1:ib link_s=7")?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "rnic mlx4: port 1 has no link after 5 s, and is waited for")?;
    says(&cluster, "does not start: its port has no link after 7 s")
}

/// Checks that nodes whose cards have a link only after a minute say so meanwhile, and join then.
fn late_link(log: &Path) -> Result<()> {
    const SECONDS: u64 = 61;
    let delay = format!("link_s={SECONDS}");
    let cards = Cards { first: Some(&delay), ..Cards::default() };
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, "", log)?;
    cluster.joined(log)?;
    for seconds in [5, 15, 35] {
        says(&cluster, &format!("rnic mlx4: port 1 has no link after {seconds} s, and is waited for"))?;
    }
    let tail = cluster.vms.first().map(qemu::vm::Vm::tail).unwrap_or_default();
    let waited = tail.iter().find_map(|line| line.split_once("link after ")?.1.strip_suffix(" us"));
    let waited: u64 = waited.context("node0 does not say the time of its link")?.parse()?;
    ensure!(waited >= 1_000_000 * (SECONDS - 1), "the link came up after {waited} us already");
    tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT).map(drop)
}

/// Checks that a job's frames have a path MTU of 4096 on a network with large frames, and not without them.
fn large_frames(log: &Path) -> Result<()> {
    let capture = log.with_extension("pcap");
    let longest = |options| -> Result<usize> {
        let cards = Cards { pcap: Some(&capture), ..Cards::default() };
        let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, options, log)?;
        cluster.joined(log)?;
        tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT)?;
        drop(cluster);
        let bytes = std::fs::read(&capture)?;
        let frames = frames(&bytes).context("the capture is cut")?;
        Ok(frames.iter().map(|frame| frame.len()).max().unwrap_or_default())
    };
    let usual = longest("")?;
    ensure!((1024..=1514).contains(&usual), "the longest frame has {usual} bytes without large frames");
    let large = longest("mtu=9000")?;
    ensure!((4096..4300).contains(&large), "the longest frame has {large} bytes with large ones");
    Ok(())
}

/// Checks that all frames of cards in a VLAN have its tag, with its priority, and that a job works there.
fn in_a_vlan(log: &Path) -> Result<()> {
    let capture = log.with_extension("pcap");
    let cards = Cards { pcap: Some(&capture), ..Cards::default() };
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], cards, "vlan=5:3", log)?;
    cluster.joined(log)?;
    tool::run_ok(&mut submission(&cluster, log)?, log, LIMIT)?;
    drop(cluster);
    let bytes = std::fs::read(&capture)?;
    let frames = frames(&bytes).context("the capture is cut")?;
    let untagged = frames.iter().find(|frame| frame.get(12..16) != Some(&[0x81, 0, 0x60, 5]));
    ensure!(untagged.is_none(), "a frame is not in VLAN 5 with priority 3: {untagged:02x?}");
    let is_ipv4 = |frame: &&&[u8]| frame.get(16..18) == Some(&[8, 0]);
    ensure!(frames.iter().filter(is_ipv4).count() > 100, "few frames of RoCE v2 in {}", frames.len());
    Ok(())
}

fn no_such_card(log: &Path) -> Result<()> {
    refused(
        "nic=mlx4:00:09.0",
        "nic=mlx4:00:09.0: no ConnectX-3 is at pci 00:09.0; there is 00:03.0 (Mellanox ConnectX-3 Pro)",
        log,
    )
}

fn no_such_port(log: &Path) -> Result<()> {
    refused("nic=mlx4/2", "does not start: the card has 1 port, and no port 2", log)
}

fn refused(options: &str, why: &str, log: &Path) -> Result<()> {
    let cluster = Cluster::on_cards(vec![RdmaNic::USUAL], Cards::default(), options, log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, why)
}

/// Checks that the first machine's console contains a text.
fn says(cluster: &Cluster, what: &str) -> Result<()> {
    let tail = cluster.vms.first().map(qemu::vm::Vm::tail).unwrap_or_default();
    ensure!(tail.iter().any(|line| line.contains(what)), "node0 does not say `{what}`: {}", tail.join("; "));
    Ok(())
}

/// Returns a command that runs a job on two nodes.
fn submission(cluster: &Cluster, log: &Path) -> Result<Command> {
    let prepared = Input::Text.prepared(log)?;
    let mut submit = cluster.manager.client("submit");
    submit.args(["--app", "wordcount", "--nodes", "2", "--input"]).arg(&prepared.input);
    submit.arg("--output").arg(log.with_extension("out"));
    Ok(submit)
}
