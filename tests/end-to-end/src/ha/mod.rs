//! Managers that take over from each other, with Debian's etcd.

use crate::appliance::patience::free_port;
use crate::job::inputs::{Input, Prepared};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use lab::appliances::SUCCESS;
use lab::cargo::{self, Profile};
use lab::cluster::Cluster;
use lab::{paths, tool};
use qemu::Packages;
use serde_json::{Value, json};
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
    let leaders = move |log: &Path| match etcd() {
        Ok(etcd) => leaders_of_an_appliance(&etcd, log).map(|()| Outcome::Passed),
        Err(why) if full => Err(why),
        Err(why) => Ok(Outcome::Skipped(format!("no etcd: {why:#}"))),
    };
    vec![
        Case::new("ha::appliance-finds-each-leader", leaders).full_if(true),
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
    let (mut build, program) = cargo::manager_with_etcd(Profile::Dev)?;
    tool::run_ok(&mut build, log, LIMIT).context("the manager with etcd does not build")?;
    Ok(program)
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
    let config = json!({
        "lite_node": cargo::built_for_tests("lite-node")?, "fabric": sockets,
        "large": input, "large_counts": expected, "small": small.input, "small_counts": small.expected,
    });
    check(etcd, &ferrolite, work.path(), config, log)
}

/// An appliance with two managers.
fn leaders_of_an_appliance(etcd: &Packages, log: &Path) -> Result<()> {
    let ferrolite = build(log)?;
    let work = tempfile::TempDir::with_prefix("ha-")?;
    let ports = [free_port()?, free_port()?];
    let managers = ports.map(|port| format!("10.0.2.2:{port}")).join(",");
    let cluster = Cluster::start(1, &format!("manager={managers}"), None, log)?;
    let config = json!({ "ports": ports, "key": cluster.manager.key() });
    check(etcd, &ferrolite, work.path(), config, log)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Runs the program of these tests.
fn check(etcd: &Packages, ferrolite: &Path, work: &Path, mut config: Value, log: &Path) -> Result<()> {
    let libraries = etcd.command("etcd")?;
    let libraries = libraries.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
    let Some((_, Some(libraries))) = libraries else { bail!("no path of libraries") };
    config["etcd_libraries"] = libraries.to_string_lossy().into();
    config["etcd"] = json!(etcd.path("usr/bin/etcd")?);
    config["etcdctl"] = json!(etcd.path("usr/bin/etcdctl")?);
    (config["work"], config["ferrolite"]) = (json!(work), json!(ferrolite));
    let file = work.join("config.json");
    std::fs::write(&file, config.to_string())?;
    let mut check = Command::new("python3");
    check.arg("-B").arg(paths::root().join("tests/end-to-end/src/ha/check.py")).arg(&file);
    tool::run_ok(&mut check, log, LIMIT).map(drop)
}
