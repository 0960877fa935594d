//! Orders of the manager to the machine of a node: power-off, reset, and the boot of another image in place.

use super::bare::Bare;
use super::cluster::{count_words, fails, wait_for_console};
use super::machine::{MODELS, node};
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::appliances::{RdmaNic, SUCCESS};
use lab::cluster::{Cards, Cluster};
use lab::cx3::Tools;
use lab::manager::Manager;
use lab::{image, setup, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest wait for anything on a busy host.
const LIMIT: Duration = Duration::from_secs(240);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (model, options) in MODELS {
        for (action, cause) in [("off", "guest-shutdown"), ("reset", "guest-reset")] {
            let check = move |log: &Path| power(options, action, cause, log).map(|()| Outcome::Passed);
            cases.push(Case::new(format!("machine::{action}-by-the-manager-{model}"), check));
        }
    }
    cases.push(Case::new("cluster::reset-and-back", |log| reset_and_back(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("cluster::boot-by-the-manager", |log| boot(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("cx3::boot-by-the-manager", |log| match Tools::get()? {
        Ok(_) => boot_on_cards(log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    }));
    cases
}

/// Waits until this number of nodes are members.
fn joined(manager: &Manager, count: &str, log: &Path) -> Result<()> {
    tool::run_ok(manager.client("nodes").args(["--wait", count, "--timeout", "120"]), log, LIMIT).map(|_| ())
}

/// A node leaves by order of the manager, and its machine is turned off or reset. QEMU tells the cause.
fn power(machine: &str, action: &str, cause: &str, log: &Path) -> Result<()> {
    let (mut manager, mut bare, _dir): (_, Bare, _) = node(machine, "nic=softroce", &["-no-reboot"], log)?;
    joined(&manager, "1", log)?;
    let other = "no node other has joined";
    fails(manager.client("power").args([action, "other"]), other, &log.with_extension("other.log"))?;
    tool::run_ok(manager.client("power").args([action, "node0"]), &log.with_extension("power.log"), LIMIT)?;
    manager.wait_for_line("is gone: left", LIMIT).context("the node does not leave")?;
    let data = bare.event("SHUTDOWN")?;
    let reason = data.get("reason").and_then(|reason| reason.as_str());
    ensure!(reason == Some(cause), "the machine ended by {data}, not by {cause}");
    Ok(())
}

/// A machine whose network devices are on the fabric is reset by order of the manager, boots its image again,
/// and joins again.
fn reset_and_back(log: &Path) -> Result<()> {
    let mut cluster = Cluster::booting_again(1, &stripped(log)?, log)?;
    cluster.joined(log)?;
    for round in 1..=2 {
        let said = log.with_extension(format!("reset-{round}.log"));
        tool::run_ok(cluster.manager.client("power").args(["reset", "node0"]), &said, LIMIT)?;
        cluster.manager.wait_for_line("is gone: left", LIMIT).context("the node does not leave")?;
        cluster.joined(log).with_context(|| format!("after reset {round}"))?;
    }
    Ok(())
}

/// Returns the shipped image without symbols.
fn stripped(log: &Path) -> Result<PathBuf> {
    let stripped = log.with_extension("elf");
    setup::binutils()?;
    tool::output(Command::new("strip").arg("-o").arg(&stripped).arg(image::build()?.elf))?;
    Ok(stripped)
}

/// One of two nodes, whose settings and key are in an initrd, boots another image by order of the manager: it
/// leaves, joins again with the same settings, and does its part of a job. A file that is no image changes
/// nothing.
fn boot(log: &Path) -> Result<()> {
    let mut cluster = Cluster::with_initrd(2, "", "log=debug\n", log)?;
    cluster.joined(log)?;
    let (file, said) = (stripped(log)?, log.with_extension("boot.log"));
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let boot = |file: &Path| {
        let mut boot = cluster.manager.client("boot");
        boot.arg("node1").arg(file);
        boot
    };
    fails(&mut boot(&input), "node1): this is not a kernel", &said)?;
    tool::run_ok(&mut boot(&file), &said, LIMIT)?;
    cluster.manager.wait_for_line("(node1) is gone: left", LIMIT).context("the node does not leave")?;
    wait_for_console(1, "started by the manager, from a running node", log)?;
    joined(&cluster.manager, "2", log)?;
    let output = log.with_extension("out");
    tool::run_ok(count_words(&cluster, &input, &output).args(["--nodes", "2"]), log, LIMIT)?;
    compare(&expected, &output, log)?;
    let console = std::fs::read(log.with_extension("node1.log"))?;
    let console = String::from_utf8_lossy(&console);
    for says in ["cluster key by initrd", "settings by initrd: log=debug", "joined as "] {
        let times = console.matches(says).count();
        ensure!(times == 2, "node1 says `{says}` {times} times");
    }
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// A node on a card boots the same image by order of the manager: the card is shut down, the new kernel
/// brings it up, and the node does its part of a job.
fn boot_on_cards(log: &Path) -> Result<()> {
    let mut cluster = Cluster::on_cards(vec![RdmaNic::USUAL; 2], Cards::default(), "", log)?;
    cluster.joined(log)?;
    let (file, said) = (stripped(log)?, log.with_extension("boot.log"));
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let output = log.with_extension("out");
    // The card has queue pairs and work in flight before the boot.
    let count = |cluster: &Cluster| {
        tool::run_ok(count_words(cluster, &input, &output).args(["--nodes", "2"]), log, LIMIT)?;
        compare(&expected, &output, log)
    };
    count(&cluster)?;
    tool::run_ok(cluster.manager.client("boot").arg("node1").arg(&file), &said, LIMIT)?;
    cluster.manager.wait_for_line("(node1) is gone: left", LIMIT).context("the node does not leave")?;
    wait_for_console(1, "started by the manager, from a running node", log)?;
    joined(&cluster.manager, "2", log)?;
    count(&cluster)?;
    let console = std::fs::read(log.with_extension("node1.log"))?;
    let console = String::from_utf8_lossy(&console);
    for (says, wanted) in [("rnic mlx4: the card is shut down", 1), ("firmware 2.42.5000, port 1 ", 2)] {
        let times = console.matches(says).count();
        ensure!(times == wanted, "node1 says `{says}` {times} times");
    }
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}
