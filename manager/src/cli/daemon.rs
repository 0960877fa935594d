//! `ferrolite manager`: the daemon.

use super::args::{KeyArgs, default_state, lease_ms, write_whole};
use super::signals;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use manager::core::Config;
use manager::daemon::{Daemon, Http, Options};
use manager::key;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// The length of the shortest password of viewers, in bytes.
const SHORTEST_PASSWORD: usize = 8;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Runs the manager until SIGINT or SIGTERM. Logs each membership and job event as a line on standard
    /// error.
    Run(RunArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Run(args) => daemon(args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The address to listen on. Port 0 chooses a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18500")]
    listen: SocketAddr,
    /// The directory that keeps the identities of nodes across restarts [default: ~/.local/state/ferrolite,
    /// or ferrolite in $XDG_STATE_HOME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// The file to which the daemon writes its address once it listens.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// The lease, in milliseconds: a node without a heartbeat for that long loses its membership.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = lease_ms)]
    lease_ms: u64,
    /// Lets appliances and processes on hosts share a cluster. Either can then reach all memory of the other
    /// that its key covers.
    #[arg(long)]
    trust_hosts: bool,
    /// Accepts the cluster's key for clients as an administrator's also when there are users: the way back in
    /// when all keys of administrators are lost.
    #[arg(long)]
    recover: bool,
    #[command(flatten)]
    http: HttpArgs,
}

#[derive(Debug, Args)]
struct HttpArgs {
    /// Serves the dashboard, metrics and an interface for programs over HTTP on this address. There is no
    /// TLS: use a loopback address, or a proxy that has it.
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// A file with the password of people who may look at the dashboard and change nothing.
    #[arg(long, value_name = "FILE", requires = "http")]
    http_viewers: Option<PathBuf>,
    /// The file to which the daemon writes the address of --http once it listens.
    #[arg(long, value_name = "FILE", requires = "http")]
    http_port_file: Option<PathBuf>,
}

impl HttpArgs {
    fn service(&self) -> Result<Option<Http>> {
        let Some(listen) = self.http else { return Ok(None) };
        Ok(Some(Http { listen, viewers: self.http_viewers.as_deref().map(password).transpose()? }))
    }
}

/// Reads the password of viewers.
fn password(file: &Path) -> Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = Zeroizing::new(text);
    if text.trim().len() < SHORTEST_PASSWORD {
        bail!("{} holds no password: want {SHORTEST_PASSWORD} characters or more", file.display());
    }
    Ok(text)
}

fn daemon(args: RunArgs) -> Result<()> {
    let state = args.state.map_or_else(default_state, Ok)?;
    let path = args.key.path(Some(&state))?;
    let (key, made) = key::load_or_make(&path)?;
    if made {
        eprintln!("made a new cluster key in {}", path.display());
    }
    let former = key::former(&path);
    let config = Config {
        lease: Duration::from_millis(args.lease_ms),
        trust_hosts: args.trust_hosts,
        recover: args.recover,
        ..Config::default()
    };
    let http = args.http.service()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = signals::stopped()?;
        let mut daemon = Daemon::bind(Options { listen: args.listen, key, state, config, http }).await?;
        if former.exists() {
            daemon = daemon.or_former(&key::load(&former)?)?;
            eprintln!("accepts the former key in {} as well", former.display());
        }
        let address = daemon.local_addr()?;
        if let Some(file) = &args.port_file {
            write_whole(file, format!("{address}\n").as_bytes())?;
        }
        if let (Some(file), Some(http)) = (&args.http.http_port_file, daemon.http_addr()) {
            write_whole(file, format!("{http}\n").as_bytes())?;
        }
        eprintln!("listening on {address}");
        signals::tell_systemd_ready()?;
        if let Some(http) = daemon.http_addr() {
            eprintln!("dashboard on http://{http}/");
        }
        Ok(daemon.serve(stop).await?)
    })
}
