//! The dashboard in a real browser, and metrics in a real Prometheus, both of a cluster of an appliance and
//! Linux nodes.

use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result};
use lab::cargo::Profile;
use lab::manager::{self, Manager};
use lab::{cargo, paths, setup, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The longest silence of a command, which may build.
const LIMIT: Duration = Duration::from_secs(600);
/// The name of a node that is no text in HTML unless it is escaped.
const STRANGE: &str = "<script>alert(1)</script>";

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        let case = Case::new(format!("dashboard::{name}"), move |log| check(log).map(|()| Outcome::Passed));
        case.runs(&["--bin", "lite-node"]).full_if(true)
    };
    vec![
        case("in-chromium", browser),
        case("in-chromium-over-https", secure),
        case("in-prometheus", prometheus),
    ]
}

/// A cluster with a name of its own, because these cases run at the same time. It ends with this.
struct Up {
    name: &'static str,
    node: Option<Child>,
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(mut node) = self.node.take() {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = cluster(self.name, &["down"]).output();
    }
}

fn cluster(name: &str, words: &[&str]) -> Command {
    let mut command = xtask();
    command.args(["cluster", "--name", name]).args(words);
    command
}

/// Starts a cluster. Returns it, and the file with its status.
fn start(name: &'static str, log: &Path) -> Result<(Up, PathBuf)> {
    let program = cargo::built_for_tests("lite-node")?;
    let mut start = cluster(name, &["up", "--nodes", "1", "--linux", "2", "--lite-node"]);
    tool::run_ok(start.arg(&program), log, LIMIT)?;
    let mut up = Up { name, node: None };
    let json = log.with_extension("status.json");
    let path = json.to_str().context("a path that is text")?;
    tool::run_ok(&mut cluster(name, &["status", "--json", path]), log, LIMIT)?;
    let status: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let word = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    let mut node = Command::new(program);
    node.args(["--nic", "softroce", "--memory", "64M", "--name", STRANGE]);
    node.args(["--manager", &word(&status["manager"])?, "--key-file", &word(&status["key_file"])?]);
    node.args(["--fabric-socket", &word(&status["fabric_sockets"][0])?]);
    up.node = Some(node.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?);
    Ok((up, json))
}

/// Returns the directory of a Python program of these tests.
fn source(name: &str) -> PathBuf {
    paths::root().join("tests/end-to-end/src/dashboard").join(name)
}

/// Starts a manager with HTTPS. Returns it, and the file of its certificate.
fn start_secure(work: &Path) -> Result<(Manager, PathBuf)> {
    let tls = work.join("tls");
    let more = ["--http-tls", tls.to_str().context("a path that is text")?];
    let manager = Manager::start_with_dashboard(&manager::build(Profile::Dev)?, 0, work, &more)?;
    Ok((manager, tls.join("cert.pem")))
}

fn chromium() -> Result<()> {
    setup::programs(&[("chromedriver", "chromium-driver"), ("chromium", "chromium")])
}

fn secure(log: &Path) -> Result<()> {
    chromium()?;
    let work = tempfile::tempdir()?;
    let (manager, certificate) = start_secure(work.path())?;
    let address = manager.dashboard().context("no address of the dashboard")?;
    let mut check = Command::new("python3");
    check.args(["-B"]).arg(source("secure.py")).arg(address).arg(manager.key()).arg(certificate);
    tool::run_ok(&mut check, log, LIMIT)?;
    Ok(())
}

fn browser(log: &Path) -> Result<()> {
    chromium()?;
    setup::programs(&[("npm", "npm")])?;
    let work = tempfile::tempdir()?;
    let mut fetch = Command::new("npm");
    fetch.args(["install", "--no-save", "--prefix"]).arg(work.path()).arg("axe-core@4");
    tool::run_ok(&mut fetch, log, LIMIT)?;
    let (_up, status) = start("dashboard-chromium", log)?;
    let mut check = Command::new("python3");
    check.arg(source("browser.py")).arg(status);
    check.arg(work.path().join("node_modules/axe-core/axe.min.js")).arg(work.path());
    check.arg(manager::build(Profile::Dev)?);
    tool::run_ok(&mut check, log, LIMIT)?;
    Ok(())
}

fn prometheus(log: &Path) -> Result<()> {
    setup::programs(&[("prometheus", "prometheus"), ("promtool", "prometheus")])?;
    let rules = paths::root().join("manager/prometheus");
    let mut test = Command::new("promtool");
    test.args(["test", "rules", "alerts_test.yml"]).current_dir(&rules);
    tool::run_ok(&mut test, log, LIMIT)?;
    let (_up, status) = start("dashboard-prometheus", log)?;
    let work = tempfile::tempdir()?;
    let (secure, certificate) = start_secure(work.path())?;
    let mut check = Command::new("python3");
    check.arg(source("prometheus.py")).arg(status).arg(rules.join("alerts.yml")).arg(work.path());
    check.arg(secure.dashboard().context("no address of the second manager")?).arg(certificate);
    tool::run_ok(&mut check, log, LIMIT)?;
    Ok(())
}
