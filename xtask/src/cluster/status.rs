//! The list of the cluster's nodes, and what a program needs to join or to submit jobs.

use super::state::{Home, State};
use crate::output::beside;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The time in which a manager that is started again answers.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The options of `cargo xtask cluster status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// File for the same as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Prints the state of the cluster.
pub(super) fn status(home: &Home, options: &Options) -> Result<()> {
    let json = options.json.as_deref().map(|path| beside("status", path)).transpose()?;
    let list = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let (table, state) = nodes(home, list.path())?;
    println!("manager       {} (process {})", state.manager, state.manager_pid);
    println!("key file      {}", state.key_file.display());
    if let Some(dashboard) = &state.dashboard {
        println!("dashboard     http://{dashboard}/ (log in with the text of the key file)");
    }
    for socket in &state.fabric_sockets {
        println!("fabric socket {}", socket.display());
    }
    print!("{table}");
    let Some((file, path)) = json else { return Ok(()) };
    let list: Value = serde_json::from_slice(&std::fs::read(list.path())?).context("a list of nodes")?;
    let nodes: Vec<Value> = list["nodes"].as_array().into_iter().flatten().map(node).collect();
    let status = json!({
        "manager": state.manager,
        "manager_pid": state.manager_pid,
        "key_file": state.key_file,
        "dashboard": state.dashboard,
        "fabric_sockets": state.fabric_sockets,
        "nodes": nodes,
    });
    std::fs::write(file.path(), serde_json::to_vec_pretty(&status)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

fn node(node: &Value) -> Value {
    json!({
        "name": node["name"],
        "incarnation": node["incarnation"],
        "boot_id": node["boot_id"],
        "state": node["state"],
    })
}

/// Asks the manager for the nodes, again if it is being started. Returns the table for people.
fn nodes(home: &Home, list: &Path) -> Result<(String, State)> {
    let deadline = Instant::now() + ANSWER;
    loop {
        let state = home.running()?;
        let mut command = state.client("nodes");
        let done = command.arg("--json").arg(list).stdin(Stdio::null()).output();
        let done = done.context("cannot run the manager's program")?;
        if done.status.success() {
            // The manager may have been started again meanwhile.
            return Ok((String::from_utf8_lossy(&done.stdout).into_owned(), home.running()?));
        }
        if Instant::now() >= deadline {
            let said = String::from_utf8_lossy(&done.stderr);
            bail!("{}", lab::manager::reason(said.trim()).unwrap_or(said.trim()));
        }
        std::thread::sleep(PAUSE);
    }
}
