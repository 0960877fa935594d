//! The dashboard in a real browser, and metrics in a real Prometheus, both of a cluster of an appliance and
//! Linux nodes.

use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result};
use lab::{cargo, paths, setup, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The longest silence of a command, which may build.
const LIMIT: Duration = Duration::from_secs(600);
/// The name of the tests' cluster.
const NAME: &str = "dashboard";
/// The name of a node that is no text in HTML unless it is escaped.
const STRANGE: &str = "<script>alert(1)</script>";

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        let case = Case::new(format!("dashboard::{name}"), move |log| check(log).map(|()| Outcome::Passed));
        case.runs(&["--bin", "lite-node"]).full_if(true)
    };
    vec![case("in-chromium", browser), case("in-prometheus", prometheus)]
}

/// A cluster, which ends with this.
struct Up(Option<Child>);

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(mut node) = self.0.take() {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = cluster(&["down"]).output();
    }
}

fn cluster(words: &[&str]) -> Command {
    let mut command = xtask();
    command.args(["cluster", "--name", NAME]).args(words);
    command
}

/// Starts a cluster. Returns it, and the file with its status.
fn start(log: &Path) -> Result<(Up, PathBuf)> {
    let program = cargo::built_for_tests("lite-node")?;
    let mut start = cluster(&["up", "--nodes", "1", "--linux", "2", "--lite-node"]);
    tool::run_ok(start.arg(&program), log, LIMIT)?;
    let mut up = Up(None);
    let json = log.with_extension("status.json");
    let path = json.to_str().context("a path that is text")?;
    tool::run_ok(&mut cluster(&["status", "--json", path]), log, LIMIT)?;
    let status: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let word = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    let mut node = Command::new(program);
    node.args(["--nic", "softroce", "--memory", "64M", "--name", STRANGE]);
    node.args(["--manager", &word(&status["manager"])?, "--key-file", &word(&status["key_file"])?]);
    node.args(["--fabric-socket", &word(&status["fabric_sockets"][0])?]);
    up.0 = Some(node.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?);
    Ok((up, json))
}

/// Returns the directory of a Python program of these tests.
fn source(name: &str) -> PathBuf {
    paths::root().join("tests/end-to-end/src/dashboard").join(name)
}

fn browser(log: &Path) -> Result<()> {
    setup::programs(&[("chromedriver", "chromium-driver"), ("chromium", "chromium"), ("npm", "npm")])?;
    let work = tempfile::tempdir()?;
    let mut fetch = Command::new("npm");
    fetch.args(["install", "--no-save", "--prefix"]).arg(work.path()).arg("axe-core@4");
    tool::run_ok(&mut fetch, log, LIMIT)?;
    let (_up, status) = start(log)?;
    let mut check = Command::new("python3");
    check.arg(source("browser.py")).arg(status);
    check.arg(work.path().join("node_modules/axe-core/axe.min.js")).arg(work.path());
    tool::run_ok(&mut check, log, LIMIT)?;
    Ok(())
}

fn prometheus(log: &Path) -> Result<()> {
    setup::programs(&[("prometheus", "prometheus"), ("promtool", "prometheus")])?;
    let rules = paths::root().join("manager/prometheus");
    let mut test = Command::new("promtool");
    test.args(["test", "rules", "alerts_test.yml"]).current_dir(&rules);
    tool::run_ok(&mut test, log, LIMIT)?;
    let (_up, status) = start(log)?;
    let work = tempfile::tempdir()?;
    let mut check = Command::new("python3");
    check.arg(source("prometheus.py")).arg(status).arg(rules.join("alerts.yml")).arg(work.path());
    tool::run_ok(&mut check, log, LIMIT)?;
    Ok(())
}
