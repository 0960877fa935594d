//! `ferrolite manager`: the daemon.

use super::args::{KeyArgs, default_state, lease_ms, write_whole};
use super::config::{Expiry, HttpTable, LogWord, ManagerFile, may_listen, password};
use super::group::{EtcdArgs, GroupSettings};
use super::{sentence, signals};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use manager::core::{Config, Rules};
use manager::daemon::ha::Candidate;
use manager::daemon::{Daemon, DaemonError, Http, Options, Reload};
use manager::{LogFormat, key, log_line};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// The address to listen on unless another one is named.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 18500);

/// The lease unless another one is named, in milliseconds.
const LEASE_MS: u64 = 5000;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Runs the manager until SIGINT or SIGTERM. Logs each membership and job event as a line on standard
    /// error.
    Run(Box<RunArgs>),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Run(args) => daemon(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The configuration file, whose keys are these options; an option counts before the file. SIGHUP then
    /// reads it again instead of ending the manager.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to listen on. Port 0 chooses a free one [default: 127.0.0.1:18500].
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// The directory that keeps the identities of nodes across restarts [default: ~/.local/state/ferrolite,
    /// or ferrolite in $XDG_STATE_HOME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// The file to which the daemon writes its address once it listens.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// The lease, in milliseconds: a node without a heartbeat for that long loses its membership
    /// [default: 5000].
    #[arg(long, value_name = "MS", value_parser = lease_ms)]
    lease_ms: Option<u64>,
    /// Lets appliances and processes on hosts share a cluster. Either can then reach all memory of the other
    /// that its key covers.
    #[arg(long)]
    trust_hosts: bool,
    /// Accepts the cluster's key for clients as an administrator's also when there are users: the way back in
    /// when all keys of administrators are lost.
    #[arg(long)]
    recover: bool,
    /// The form of the log [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogWord>,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// The address at which nodes and clients reach this manager, which standbys name while it leads
    /// [default: that of --listen].
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
}

#[derive(Debug, Args)]
struct HttpArgs {
    /// Serves the dashboard, metrics and an interface for programs over HTTP on this address. Without
    /// --http-tls it must be a loopback address.
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// A file with the password of people who may look at the dashboard and change nothing.
    #[arg(long, value_name = "FILE")]
    http_viewers: Option<PathBuf>,
    /// Serves HTTPS instead, with the files cert.pem and key.pem of this directory. They are made if there
    /// are none: a certificate that has signed itself, whose SHA-256 the daemon logs.
    #[arg(long, value_name = "DIR")]
    http_tls: Option<PathBuf>,
    /// Serves HTTP without TLS on any address, for a proxy with TLS on another host: the packets show keys
    /// and passwords to everyone on the way.
    #[arg(long)]
    http_insecure: bool,
    /// The file to which the daemon writes the address of --http once it listens.
    #[arg(long, value_name = "FILE")]
    http_port_file: Option<PathBuf>,
}

/// The settings of a manager, from its options and its file.
struct Settings {
    /// The group of managers that share their state in etcd, if this manager is in one.
    group: Option<GroupSettings>,
    fixed: Fixed,
    rules: Rules,
    http: Option<Http>,
}

/// The settings that a running manager cannot change, which costs nobody a membership: a restart does it.
#[derive(PartialEq)]
struct Fixed {
    listen: SocketAddr,
    state: PathBuf,
    key: PathBuf,
    lease_ms: u64,
    log_format: LogWord,
    port_file: Option<PathBuf>,
    http: Option<SocketAddr>,
    tls: Option<PathBuf>,
    http_port_file: Option<PathBuf>,
    group: Option<GroupSettings>,
}

impl RunArgs {
    fn settings(&self, expiry: Expiry) -> Result<Settings> {
        let file = self
            .config
            .as_deref()
            .map(|file| ManagerFile::load(file, expiry))
            .transpose()?
            .unwrap_or_default();
        let state = self.state.clone().or_else(|| file.state.clone());
        let state = state.map_or_else(default_state, Ok)?;
        let key = match file.key_file() {
            Some(key) if !self.key.is_named() => key.into(),
            _ => self.key.path(Some(&state))?,
        };
        let table = file.http.as_ref();
        let named = |own: &Option<PathBuf>, of_file: fn(&HttpTable) -> Option<PathBuf>| {
            own.clone().or_else(|| table.and_then(of_file))
        };
        let tls = named(&self.http.http_tls, HttpTable::tls);
        let http_port_file = named(&self.http.http_port_file, |table| table.port_file.clone());
        let viewers = named(&self.http.http_viewers, HttpTable::viewers);
        let listen = self.http.http.or_else(|| table.map(HttpTable::listen));
        if listen.is_none() && (tls.is_some() || http_port_file.is_some() || viewers.is_some()) {
            bail!("--http-viewers, --http-tls and --http-port-file need --http");
        }
        let insecure = self.http.http_insecure || table.is_some_and(|table| table.insecure);
        if let Some(listen) = listen {
            may_listen(listen, tls.is_some(), insecure)?;
        }
        let own = self.listen.or(file.listen()).unwrap_or(LISTEN);
        let lease_ms = self.lease_ms.or(file.lease_ms()).unwrap_or(LEASE_MS);
        let group = self.etcd.group(self.advertise.as_ref(), file.etcd.as_ref())?;
        if let Some(group) = &group {
            group.check(own, lease_ms)?;
        }
        let fixed = Fixed {
            listen: own,
            lease_ms,
            group: group.clone(),
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
            port_file: self.port_file.clone().or_else(|| file.port_file.clone()),
            http: listen,
            tls: tls.clone(),
            state,
            key,
            http_port_file,
        };
        let http = match listen {
            Some(listen) => {
                Some(Http { listen, viewers: viewers.as_deref().map(password).transpose()?, tls })
            }
            None => None,
        };
        let rules = Rules {
            trust_hosts: self.trust_hosts || file.trust_hosts,
            recover: self.recover || file.recover,
            spool: file.spool(),
            inventory: file.inventory(),
            qos: file.qos(),
        };
        Ok(Settings { group, fixed, rules, http })
    }

    /// Reads the settings of a running manager again. The error is the reason why nothing changes.
    fn reload(&self, before: &Fixed) -> Result<Reload> {
        let Settings { fixed, rules, http, .. } = self.settings(Expiry::Refused)?;
        if fixed != *before {
            bail!(
                "only trust_hosts, recover, jobs, nodes, qos, viewers and the files of tls change without a \
                 restart"
            );
        }
        Ok(Reload::load(rules, http)?)
    }
}

/// A manager with a state of its own, or one of a group.
enum Served {
    Alone(Box<Daemon>),
    Group(Box<Candidate>),
}

impl Served {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Alone(daemon) => daemon.local_addr(),
            Self::Group(candidate) => candidate.local_addr(),
        }
    }

    fn http_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Alone(daemon) => daemon.http_addr(),
            Self::Group(candidate) => candidate.http_addr(),
        }
    }

    fn certificate(&self) -> Option<&str> {
        match self {
            Self::Alone(daemon) => daemon.certificate(),
            Self::Group(candidate) => candidate.certificate(),
        }
    }

    fn certificate_complaint(&self) -> Option<String> {
        match self {
            Self::Alone(daemon) => daemon.certificate_complaint().map(|complaint| complaint.to_string()),
            Self::Group(candidate) => candidate.certificate_complaint(),
        }
    }

    async fn serve(
        self,
        reloads: mpsc::Receiver<Result<Reload, String>>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), DaemonError> {
        match self {
            Self::Alone(daemon) => daemon.reloads(reloads).serve(stop).await,
            Self::Group(candidate) => candidate.reloads(reloads).serve(stop).await,
        }
    }
}

fn daemon(args: &RunArgs) -> Result<()> {
    let Settings { group, fixed, rules, http } = args.settings(Expiry::Told)?;
    let format = LogFormat::from(fixed.log_format);
    let say = |line: &str| eprintln!("{}", log_line(format, line));
    let (key, made) = key::load_or_make(&fixed.key)?;
    if made {
        say(&format!("made a new cluster key in {}", fixed.key.display()));
    }
    let former = key::former(&fixed.key);
    let former = former.exists().then_some(former);
    if let Some(file) = &former {
        say(&format!("accepts the former key in {} as well", file.display()));
    }
    let former = former.map(|file| key::load(&file)).transpose()?;
    let lease = Duration::from_millis(fixed.lease_ms);
    let config = Config { lease, rules, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = signals::stopped(args.config.is_none())?;
        let (listen, state) = (fixed.listen, fixed.state.clone());
        let options = Options { listen, key, state, config, http, former, format };
        let daemon = match &group {
            Some(group) => Served::Group(Box::new(Candidate::bind(options, group.open()?).await?)),
            None => Served::Alone(Box::new(Daemon::bind(options).await?)),
        };
        let address = daemon.local_addr()?;
        if let Some(file) = &fixed.port_file {
            write_whole(file, format!("{address}\n").as_bytes())?;
        }
        if let (Some(file), Some(http)) = (&fixed.http_port_file, daemon.http_addr()) {
            write_whole(file, format!("{http}\n").as_bytes())?;
        }
        let (tell, reloads) = mpsc::channel(1);
        let mut hangups = args.config.as_ref().map(|_| signals::hangups()).transpose()?;
        say(&format!("listening on {address}"));
        signals::tell_systemd_ready()?;
        if let Some(http) = daemon.http_addr() {
            say(&match daemon.certificate() {
                Some(hash) => format!("dashboard on https://{http}/, certificate SHA-256 {hash}"),
                None => format!("dashboard on http://{http}/"),
            });
            if let Some(complaint) = daemon.certificate_complaint() {
                say(&complaint);
            }
        }
        let reloading = async {
            while let Some(hangups) = &mut hangups
                && hangups.recv().await.is_some()
            {
                let reload = args.reload(&fixed).map_err(|error| sentence(&error));
                if tell.send(reload).await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = daemon.serve(reloads, stop) => Ok(ended?),
            () = reloading => Ok(()),
        }
    })
}
