//! Tests of appliances with emulated cards, appliances on softroce and Linux machines with `rdma_rxe` in one
//! cluster, and of nodes without a common link layer.

use super::GROUP;
use crate::job::inputs::{Input, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Result, ensure};
use lab::appliances::RdmaNic;
use lab::cx3::Tools;
use lab::hosts::{Lab, Plan, lite_node};
use lab::tool;
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
        .runs_programs()
    };
    vec![
        case("no link in common", no_common_link),
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

/// Checks that all nodes of a plan count words together.
fn word_count(appliances: &[RdmaNic], machines: &[RdmaNic], log: &Path) -> Result<()> {
    let manager = &["--trust-hosts"];
    let plan = Plan { appliances, machines, manager, packages: &[], files: &[lite_node(log)?] };
    let mut lab = Lab::start(&plan, log)?;
    lab.members(u16::try_from(appliances.len())?, log)?;
    let count = u8::try_from(machines.len())?;
    for machine in 0..count {
        lab.join(machine)?;
    }
    let nodes = u16::try_from(appliances.len() + machines.len())?;
    lab.members(nodes, log)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let prepared = Input::SmallText.prepared(log)?;
    let mut submit = lab.submit("wordcount", &prepared.input, &output);
    tool::run_ok(submit.args(["--nodes", &nodes.to_string()]), log, LIMIT)?;
    compare(&prepared.expected, &output, log)
}
