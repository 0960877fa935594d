//! Managers that take over from each other, with Debian's etcd.

use crate::job::inputs::{Input, Prepared};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use lab::{cargo, paths, setup, tool};
use qemu::Packages;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest silence of a command, which may build.
const LIMIT: Duration = Duration::from_secs(900);
/// The crates of gRPC, which the default build must not have.
const GRPC: [&str; 3] = ["tonic ", "prost ", "etcd-client "];
/// The number of nodes.
const NODES: usize = 3;

/// Returns the tests. If `full`, a package that cannot be had is a failure.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let failures = move |log: &Path| match etcd() {
        Ok(etcd) => failures(&etcd, log).map(|()| Outcome::Passed),
        Err(why) if full => Err(why),
        Err(why) => Ok(Outcome::Skipped(format!("no etcd: {why:#}"))),
    };
    vec![
        Case::new("ha::default-build-has-no-grpc", |log: &Path| no_grpc(log).map(|()| Outcome::Passed)),
        Case::new("ha::failures-of-managers-and-etcd", failures).runs(&["--bin", "lite-node"]).full_if(true),
    ]
}

/// Checks that gRPC comes with the feature `etcd`, and only with it.
fn no_grpc(log: &Path) -> Result<()> {
    let tree = |more: &[&str]| {
        let mut tree = cargo::host("tree");
        tree.args(["--package", "manager", "--edges", "normal,build", "--prefix", "none"]).args(more);
        tool::run_ok(&mut tree, log, LIMIT)
    };
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.starts_with(name));
    let (plain, with) = (tree(&[])?, tree(&["--features", "etcd"])?);
    for name in GRPC {
        ensure!(!has(&plain, name), "the default build has {name}");
        ensure!(has(&with, name), "the build with etcd has no {name}");
    }
    Ok(())
}

/// Returns etcd's server and client, of Debian's packages.
fn etcd() -> Result<Packages> {
    Packages::get(&paths::target().join("etcd-packages"), &["etcd-server", "etcd-client"])
}

/// Builds the manager with etcd, beside the builds of other tests.
fn build(log: &Path) -> Result<PathBuf> {
    setup::protobuf()?;
    let target = paths::target().join("etcd");
    let mut build = cargo::host("build");
    build.args(["--package", "manager", "--bin", "ferrolite", "--features", "etcd", "--target-dir"]);
    tool::run_ok(build.arg(&target), log, LIMIT).context("the manager with etcd does not build")?;
    Ok(target.join("debug/ferrolite"))
}

fn failures(etcd: &Packages, log: &Path) -> Result<()> {
    let ferrolite = build(log)?;
    let (large, small) = (Input::LargeText.prepared(log)?, Input::SmallText.prepared(log)?);
    let work = tempfile::TempDir::with_prefix("ha-")?;
    let dir = work.path().to_owned();
    let faults = netfault::Faults::default();
    let fabric = Fabric::start(&FabricConfig { ports: NODES, dir, faults, seed: 0, pcap: None })?;
    let sockets: Vec<&Path> = (0..NODES).map(|port| fabric.socket(port)).collect();
    let (Prepared { input, expected }, small) = (large, small);
    let libraries = etcd.command("etcd")?;
    let libraries = libraries.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
    let Some((_, Some(libraries))) = libraries else { bail!("no path of libraries") };
    let config = json!({
        "work": work.path(), "ferrolite": ferrolite, "lite_node": cargo::built_for_tests("lite-node")?,
        "etcd": etcd.path("usr/bin/etcd")?, "etcdctl": etcd.path("usr/bin/etcdctl")?,
        "etcd_libraries": libraries.to_string_lossy(), "fabric": sockets,
        "large": input, "large_counts": expected, "small": small.input, "small_counts": small.expected,
    });
    let file = work.path().join("config.json");
    std::fs::write(&file, config.to_string())?;
    let mut check = Command::new("python3");
    check.arg("-B").arg(paths::root().join("tests/end-to-end/src/ha/check.py")).arg(&file);
    tool::run_ok(&mut check, log, LIMIT).map(drop)
}
