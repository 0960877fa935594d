//! Tests of appliances with emulated cards, appliances on softroce and Linux machines with `rdma_rxe` in one
//! cluster, and of nodes without a common link layer.

use super::GROUP;
use crate::job::capture::frames;
use crate::job::inputs::{Input, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::appliances::RdmaNic;
use lab::cx3::Tools;
use lab::hosts::{Lab, Plan, Vlan, lite_node};
use lab::tool;
use roce::wire::Frame;
use std::path::Path;
use std::time::Duration;

/// The longest wait for anything on a busy host.
const LIMIT: Duration = Duration::from_secs(240);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("{GROUP}{name}"), move |log| match Tools::get()? {
            Ok(_) => check(log).map(|()| Outcome::Passed),
            Err(why) => Ok(Outcome::Skipped(why.to_owned())),
        })
        .runs(&["--bin", "lite-node"])
    };
    vec![
        case("no link in common", no_common_link),
        case("appliances and Linux in a VLAN", in_a_vlan),
        // The Linux machine is only the subnet manager: InfiniBand for RDMA, Ethernet for the manager.
        case("appliances use InfiniBand and Ethernet of one card", |log| {
            let plan = Plan {
                appliances: &[RdmaNic::VpiInfiniBand, RdmaNic::VpiInfiniBand],
                machines: &[RdmaNic::INFINIBAND],
                options: "mgmt=mlx4/2",
                manage_by_second: true,
                ..Plan::default()
            };
            let lab = Lab::start(&plan, log)?;
            nodes_count_words(&lab, 2, log)
        })
        .full_if(true),
        case("appliances in a partition", |log| {
            let plan = Plan {
                appliances: &[RdmaNic::INFINIBAND, RdmaNic::INFINIBAND],
                machines: &[RdmaNic::INFINIBAND],
                options: "partition=0x12",
                partition: Some(0x12),
                ..Plan::default()
            };
            let lab = Lab::start(&plan, log)?;
            nodes_count_words(&lab, 2, log)
        })
        .full_if(true),
        // RoCE v2.
        case("cards, softroce and Linux nodes count words", |log| {
            word_count(&[RdmaNic::USUAL, RdmaNic::SoftRoce], &[RdmaNic::SoftRoce, RdmaNic::SoftRoce], log)
        })
        .full_if(true),
        // RoCE v1: virtual functions under our driver and under Linux's.
        case("virtual functions of two drivers count words", |log| {
            word_count(&[RdmaNic::VIRTUAL, RdmaNic::SoftRoce], &[RdmaNic::VIRTUAL], log)
        })
        .full_if(true),
        // The Linux node is also the subnet manager.
        case("InfiniBand cards of two drivers count words", |log| {
            word_count(&[RdmaNic::INFINIBAND, RdmaNic::INFINIBAND], &[RdmaNic::INFINIBAND], log)
        })
        .full_if(true),
    ]
}

/// Checks that a node without a common link layer is refused: a virtual function supports RoCE v1 only,
/// `rdma_rxe` v2 only. The line must contain both names and the supported versions.
fn no_common_link(log: &Path) -> Result<()> {
    let plan = Plan {
        appliances: &[RdmaNic::VIRTUAL],
        machines: &[RdmaNic::SoftRoce],
        manager: &["--trust-hosts"],
        packages: &[],
        files: &[lite_node(log)?],
        ..Plan::default()
    };
    let mut lab = Lab::start(&plan, log)?;
    lab.members(1, log)?;
    let command = lab.daemon(0)?;
    let done = lab.guest(0)?.run(&command, LIMIT)?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(!done.status.success(), "it joined");
    let why = "linux0 speaks RoCE v2 and node 1 (node0) speaks RoCE v1: no link in common";
    ensure!(said.lines().count() == 1 && said.contains(why), "it says: {said}");
    lab.members(1, log)
}

/// Checks that appliances in a VLAN with a priority count words with a Linux machine, whose address is on an
/// interface in that VLAN. In the capture, all packets of RDMA are in the VLAN, and all frames of appliances
/// also have the priority. Linux has priority 0 for RDMA without a service level.
fn in_a_vlan(log: &Path) -> Result<()> {
    /// The type and VLAN of a tag, and the priority of the appliances.
    const TAG: [u8; 4] = [0x81, 0x00, 0x60, 0x05];
    let capture = log.with_extension("pcap");
    let plan = Plan {
        appliances: &[RdmaNic::USUAL, RdmaNic::USUAL],
        machines: &[RdmaNic::USUAL],
        manager: &["--trust-hosts"],
        files: &[lite_node(log)?],
        options: "vlan=5:3",
        vlan: Some(Vlan { id: 5, priority: 3 }),
        pcap: Some(&capture),
        ..Plan::default()
    };
    counts_words(&plan, log)?;
    let bytes = std::fs::read(&capture)?;
    let (mut ours, mut theirs) = (0, 0);
    for frame in frames(&bytes).context("the capture is cut")? {
        let (Some(addresses), Some(tag)) = (frame.first_chunk::<12>(), frame.get(12..16)) else {
            bail!("a frame is cut: {frame:02x?}");
        };
        // The number of a card is in its Ethernet address: 00:02:c9:00:NUMBER:01.
        if usize::from(addresses[10]) < plan.appliances.len() {
            ensure!(tag == TAG, "an appliance's frame is not in VLAN 5 with priority 3: {frame:02x?}");
            ours += 1;
        } else if Frame::parse(frame).is_ok() {
            bail!("Linux has sent a packet of RDMA outside of the VLAN: {frame:02x?}");
        } else if tag.starts_with(&[0x81, 0x00]) {
            let plain = [&addresses[..], frame.get(16..).unwrap_or_default()].concat();
            ensure!(tag[2] & 0xf == 0 && tag[3] == 5, "Linux has sent a frame in another VLAN: {frame:02x?}");
            theirs += u64::from(Frame::parse(&plain).is_ok());
        }
    }
    ensure!(ours > 50 && theirs > 50, "{ours} frames of appliances, {theirs} packets of RDMA by Linux");
    Ok(())
}

/// Checks that appliances and Linux machines count words together.
fn word_count(appliances: &[RdmaNic], machines: &[RdmaNic], log: &Path) -> Result<()> {
    let manager = &["--trust-hosts"];
    let plan = Plan { appliances, machines, manager, files: &[lite_node(log)?], ..Plan::default() };
    counts_words(&plan, log)
}

/// Checks that all nodes of a plan count words together.
fn counts_words(plan: &Plan, log: &Path) -> Result<()> {
    let &Plan { appliances, machines, .. } = plan;
    let mut lab = Lab::start(plan, log)?;
    lab.members(u16::try_from(appliances.len())?, log)?;
    let count = u8::try_from(machines.len())?;
    for machine in 0..count {
        lab.join(machine)?;
    }
    nodes_count_words(&lab, u16::try_from(appliances.len() + machines.len())?, log)
}

/// Checks that the nodes of a cluster count words together.
fn nodes_count_words(lab: &Lab, nodes: u16, log: &Path) -> Result<()> {
    lab.members(nodes, log)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let prepared = Input::SmallText.prepared(log)?;
    let mut submit = lab.submit("wordcount", &prepared.input, &output);
    tool::run_ok(submit.args(["--nodes", &nodes.to_string()]), log, LIMIT)?;
    compare(&prepared.expected, &output, log)
}
