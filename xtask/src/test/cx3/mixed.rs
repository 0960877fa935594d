//! Appliances with emulated cards, appliances on softroce and Linux machines with `rdma_rxe` in one cluster; and those that have no
//! link in common.

use super::GROUP;
use crate::cx3::Tools;
use crate::run::RdmaNic;
use crate::test::cases::{Case, Outcome};
use crate::test::inputs::{Input, compare};
use crate::test::linux_node::{Lab, Plan, lite_node};
use crate::tool;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

/// The address of the first card that `cx3` serves.
const MAC: &str = "00:02:c9:00:00:01";
/// Longest wait for anything, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(240);

pub fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("{GROUP}{name}"), move |log| match Tools::get()? {
            Ok(_) => check(log).map(|()| Outcome::Passed),
            Err(why) => Ok(Outcome::Skipped(why.to_owned())),
        })
    };
    vec![
        case("no link in common", no_common_link),
        case("cards, softroce and Linux nodes count words", word_count).full_if(true),
    ]
}

/// A virtual function speaks RoCE v1 only, `rdma_rxe` v2 only: who comes second is refused by one line with both names and what
/// each speaks.
fn no_common_link(log: &Path) -> Result<()> {
    let plan = Plan {
        appliances: &[RdmaNic::VIRTUAL],
        machines: 1,
        manager: &["--trust-hosts"],
        packages: &[],
        files: &[lite_node(log)?],
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

/// Two Linux machines, a card and softroce, of which each two have RoCE v2.
fn word_count(log: &Path) -> Result<()> {
    let plan = Plan {
        appliances: &[RdmaNic::USUAL, RdmaNic::SoftRoce],
        machines: 2,
        manager: &["--trust-hosts"],
        packages: &[],
        files: &[lite_node(log)?],
    };
    let mut lab = Lab::start(&plan, log)?;
    for machine in 0..plan.machines {
        lab.join(machine)?;
    }
    lab.members(4, log)?;
    let card = gid(&lab, "node0", log)?;
    for machine in 0..plan.machines {
        // Nobody answers ARP for it.
        let know = format!("arp -s {card} {MAC}");
        lab.guest(machine)?.check(&know, LIMIT)?;
    }
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let prepared = Input::SmallText.prepared(log)?;
    let mut submit = lab.submit("wordcount", &prepared.input, &output);
    tool::run_ok(submit.args(["--nodes", "4"]), log, LIMIT)?;
    compare(&prepared.expected, &output, log)
}

/// The IPv4 address that the manager has given a node.
fn gid(lab: &Lab, node: &str, log: &Path) -> Result<Ipv4Addr> {
    let json = tempfile::NamedTempFile::new()?;
    let mut nodes = lab.cluster.manager.client("nodes");
    tool::run_ok(nodes.arg("--json").arg(json.path()), log, LIMIT)?;
    let members: Value = serde_json::from_slice(&std::fs::read(json.path())?)?;
    let members = members["nodes"].as_array().context("no nodes")?;
    let member = members.iter().find(|member| member["name"] == node).context("it is no member")?;
    let words = member["rnic"].as_str().context("no RNIC")?.split(' ');
    let mapped = words.filter_map(|word| word.parse().ok()).find_map(|ip: Ipv6Addr| ip.to_ipv4_mapped());
    mapped.with_context(|| format!("no address in {member}"))
}
