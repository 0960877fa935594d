//! `ferrolite cluster`: orders to the cluster as a whole, backups, and their restoration.

use super::args::{KeyArgs, ManagerArgs, default_state, write_whole};
use super::audit;
use super::group::EtcdArgs;
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, Subcommand};
use manager::backup::Backup;
use manager::client::Output;
use manager::daemon::ha::Group;
use manager::key::Credential;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes all nodes leave the cluster and power off.
    Shutdown(ShutdownArgs),
    /// Writes a backup of the manager's state and of the cluster key: of a manager that runs, or with --state
    /// of one that does not. Its jobs' spooled data are not in it.
    Backup(BackupArgs),
    /// Replaces the state of a manager that does not run by that of a backup. Nodes of a running cluster
    /// resume with the restored manager. Refuses a backup of a newer manager.
    Restore(RestoreArgs),
    /// Writes everything that helps to find a fault to a file: versions, configuration, and the counters,
    /// boot charts, cards and logs of all nodes. It holds no key.
    Support(SupportArgs),
    /// The audit log: who has changed what, and when.
    #[command(subcommand)]
    Audit(audit::Verb),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Shutdown(args) => Ok(args.manager.connect()?.shutdown()?),
            Self::Backup(args) => backup(&args),
            Self::Restore(args) => restore(&args),
            Self::Support(args) => support(&args),
            Self::Audit(verb) => verb.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ShutdownArgs {
    #[command(flatten)]
    manager: ManagerArgs,
}

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The file for the backup. Only its owner can read it, because it holds the secrets of the cluster.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    manager: ManagerArgs,
    /// The state directory of a manager that does not run.
    #[arg(long, value_name = "DIR", conflicts_with = "manager")]
    state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The backup.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The state directory [default: ~/.local/state/ferrolite, or ferrolite in $XDG_STATE_HOME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// Replaces a state and a cluster key that exist.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    etcd: EtcdArgs,
}

fn backup(args: &BackupArgs) -> Result<()> {
    let key_file = args.manager.key_path(args.state.as_deref())?;
    let mut backup = match &args.state {
        Some(state) => Backup::of_directory(state)?,
        None => args.manager.connect()?.backup()?,
    };
    backup.key = whole_key(&key_file)?;
    let mut output = Output::create_private(&args.file)?;
    output.write(&backup.to_bytes())?;
    output.finish()?;
    let key = if backup.key.is_some() { "with" } else { "without" };
    println!("wrote {}, {key} the cluster key", args.file.display());
    Ok(())
}

fn restore(args: &RestoreArgs) -> Result<()> {
    let bytes = fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let backup = Backup::from_bytes(&bytes).map_err(|error| anyhow!("{}: {error}", args.file.display()))?;
    let state = args.state.clone().map_or_else(default_state, Ok)?;
    let key_file = args.key.path(Some(&state))?;
    let former = if key_file.exists() { whole_key(&key_file)? } else { None };
    ensure!(
        args.force || former.is_none() || backup.key.is_none() || former == backup.key,
        "{} has another cluster key: --force replaces it",
        key_file.display()
    );
    match args.etcd.group(None, None)? {
        Some(group) => {
            group.place()?;
            let Group { store, prefix, .. } = group.open()?;
            backup.restore_shared(store, &prefix, args.force)?;
            println!("restored the state in etcd below {prefix}");
        }
        None => {
            backup.restore(&state, args.force)?;
            println!("restored the state in {}", state.display());
        }
    }
    match &backup.key {
        Some(key) => {
            let mut output = Output::create_private(&key_file)?;
            output.write(key.as_bytes())?;
            output.finish()?;
            println!("restored the cluster key in {}", key_file.display());
        }
        None => println!("the backup has no cluster key: the nodes need {}", key_file.display()),
    }
    Ok(())
}

/// Returns the text of a key file, if it holds the whole key.
fn whole_key(file: &Path) -> Result<Option<String>> {
    let is_whole = matches!(Credential::load(file)?, Credential::Cluster(key) if key.roles().is_ok());
    Ok(if is_whole { Some(fs::read_to_string(file)?) } else { None })
}

#[derive(Debug, Args)]
pub(super) struct SupportArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The file, which becomes one JSON object.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

fn support(args: &SupportArgs) -> Result<()> {
    let manager: Value = serde_json::from_slice(&args.manager.connect()?.support()?)?;
    let count = |list: &str| manager[list].as_array().map_or(0, Vec::len);
    let (nodes, jobs) = (count("nodes"), count("jobs"));
    let taken = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let report = json!({
        "client": { "version": env!("CARGO_PKG_VERSION"), "protocol": proto::PROTOCOL_VERSION, "taken": taken },
        "manager": manager,
    });
    let text = serde_json::to_vec_pretty(&report)?;
    write_whole(&args.file, &text)?;
    println!("{nodes} nodes and {jobs} jobs, {} bytes in {}", text.len(), args.file.display());
    Ok(())
}
