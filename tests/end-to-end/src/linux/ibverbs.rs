//! Tests in a Linux guest with SoftRoCE (`rdma_rxe`): our libibverbs driver over it, on one machine.

use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use fabric::{Fabric, FabricConfig};
use lab::{cargo, paths, setup};
use qemu::linux::{Guest, GuestConfig, Image, Network};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The time limit of the self-test, which takes about 3 s under TCG; each of its checks ends after at most 10
/// s.
const RUN_LIMIT: Duration = Duration::from_secs(90);
/// The path of the self-test in the guest.
const PROGRAM: &str = "/opt/ibverbs-selftest";

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("linux::ibverbs-over-rxe", ibverbs).runs(&["--example", "ibverbs-selftest"])]
}

/// Runs every verb and every failure through libibverbs and `rdma_rxe`, then checks the errors of a machine
/// without a device.
fn ibverbs(log: &Path) -> Result<Outcome> {
    let program = cargo::built_for_tests("examples/ibverbs-selftest")?;
    let qemu = setup::qemu()?;
    let image = Image::build(&paths::target().join("linux-guest"))?;
    // The path is short because of the socket in the directory.
    let dir = TempDir::with_prefix("ferrolite-")?;
    let fabric = Fabric::start(&FabricConfig::plain(1, dir.path()))?;
    let mut guest = Guest::boot(
        &qemu,
        &image,
        &GuestConfig {
            network: Some(Network::numbered(1, fabric.plug(0))),
            files: vec![(PROGRAM.into(), program)],
            console: Some(log.with_extension("console.log")),
            ..GuestConfig::default()
        },
    )?;
    let output = guest.run(&format!("{PROGRAM} --address 10.0.0.1 2>&1"), RUN_LIMIT)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    fs::write(log, &said).with_context(|| format!("cannot write {}", log.display()))?;
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    ensure!(
        output.status.success() && last.ends_with("checks hold on rxe0"),
        "the self-test ended with: {last}"
    );
    for (before, options, expected) in [
        ("true", "--device rxe1", "no RDMA device rxe1; there are: rxe0"),
        ("true", "--address 10.0.0.9", "no active port of rxe0 has a GID for 10.0.0.9; it has: 10.0.0.1"),
        ("ip link set eth0 down", "", "no port of rxe0 is active"),
        ("rdma link del rxe0", "", "no RDMA device: is rdma_rxe loaded?"),
    ] {
        let output = guest.run(&format!("{before} && {PROGRAM} {options}"), RUN_LIMIT)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim_end();
        let clear = output.status.0 == 1 && said.lines().count() == 1 && said.contains(expected);
        ensure!(clear, "after `{before}`, `{options}` gives status {}: {said}", output.status.0);
    }
    Ok(Outcome::Passed)
}
