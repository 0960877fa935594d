//! `ferrolite config`, and the configuration file of the manager.

use super::args::{bytes, days, lease_ms, outstanding, rate, ttl};
use super::group::GroupSettings;
use super::inventory::NodeTable;
use super::toml_file::{self, Source};
use super::{context, inventory, sentence};
use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use manager::core::SpoolLimits;
use manager::http::Tls;
use manager::inventory::Inventory;
use manager::{LogFormat, key};
use proto::{JobQos, QosRules};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;
use zeroize::Zeroizing;

/// The length of the shortest password of viewers, in bytes.
const SHORTEST_PASSWORD: usize = 8;
/// The length beyond which a file of the password is not read, in bytes.
const LONGEST_PASSWORD: u64 = 1024;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Checks a configuration file as a whole: the file of `manager run --config`, or one of contexts.
    Check(CheckArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Check(args) => check(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file names contexts, as `~/.config/ferrolite/config.toml` does.
    #[arg(long)]
    contexts: bool,
}

fn check(args: &CheckArgs) -> Result<()> {
    if args.contexts {
        context::check(&args.file)?;
    } else {
        ManagerFile::load(&args.file, Expiry::Refused)?;
    }
    println!("{} is right", args.file.display());
    Ok(())
}

/// The form of the log, as it is written on the command line and in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogWord {
    /// A line begins with the seconds since the start.
    #[default]
    Text,
    /// A line is an object with the time and the text.
    Json,
}

impl From<LogWord> for LogFormat {
    fn from(word: LogWord) -> Self {
        match word {
            LogWord::Text => Self::Text,
            LogWord::Json => Self::Json,
        }
    }
}

/// The configuration file of a manager. Each key is an option of `manager run`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ManagerFile {
    listen: Option<Spanned<SocketAddr>>,
    pub(super) state: Option<PathBuf>,
    key_file: Option<Spanned<PathBuf>>,
    pub(super) port_file: Option<PathBuf>,
    lease_ms: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) trust_hosts: bool,
    #[serde(default)]
    pub(super) recover: bool,
    pub(super) log_format: Option<LogWord>,
    pub(super) http: Option<HttpTable>,
    pub(super) etcd: Option<EtcdTable>,
    jobs: Option<JobsTable>,
    #[serde(default)]
    nodes: Vec<NodeTable>,
    /// The limits of `jobs`.
    #[serde(skip)]
    spool: SpoolLimits,
    qos: Option<QosTable>,
    /// The rules of `qos`.
    #[serde(skip)]
    qos_rules: QosRules,
    /// The nodes of `nodes`.
    #[serde(skip)]
    inventory: Arc<Inventory>,
}

/// The state that several managers share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EtcdTable {
    pub(super) urls: Spanned<Vec<String>>,
    pub(super) prefix: Option<Spanned<String>>,
    pub(super) ttl: Option<Spanned<u64>>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) advertise: Option<String>,
}

/// The bounds of what the manager keeps of jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobsTable {
    job_bytes: Option<Spanned<String>>,
    spool_bytes: Option<Spanned<String>>,
    retention: Option<Retention>,
}

/// The bounds of what is kept of jobs that have ended.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retention {
    age: Option<Spanned<String>>,
    bytes: Option<Spanned<String>>,
}

/// The quality of service of jobs that ask for none, and the most that a job may have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct QosTable {
    rdma_priority: Option<Spanned<String>>,
    rdma_limit: Option<Spanned<String>>,
    rdma_outstanding: Option<Spanned<u64>>,
    most: Option<MostTable>,
}

/// The most that a job may have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MostTable {
    rdma_priority: Option<Spanned<String>>,
    rdma_limit: Option<Spanned<String>>,
    rdma_outstanding: Option<Spanned<u64>>,
}

/// The service over HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpTable {
    listen: Spanned<SocketAddr>,
    viewers: Option<Spanned<PathBuf>>,
    tls: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(super) insecure: bool,
    pub(super) port_file: Option<PathBuf>,
}

/// The treatment of a certificate whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The file is wrong.
    Refused,
    /// The manager starts, because its nodes wait for it, and tells the operator.
    Told,
}

impl ManagerFile {
    /// Reads and checks a file. Relative paths in it count from its directory.
    pub(super) fn load(path: &Path, expiry: Expiry) -> Result<Self> {
        let text = toml_file::read(path)?;
        let source = Source { path, text: &text };
        let mut file: Self = source.parse()?;
        if let Some(lease) = &file.lease_ms {
            let checked = lease_ms(&lease.get_ref().to_string());
            checked.map_err(|why| source.mistake(&lease.span(), format!("lease_ms: {why}")))?;
        }
        file.spool =
            file.jobs.as_ref().map_or_else(|| Ok(SpoolLimits::default()), |jobs| jobs.limits(&source))?;
        file.qos_rules =
            file.qos.as_ref().map_or_else(|| Ok(QosRules::default()), |qos| qos.rules(&source))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        file.inventory = Arc::new(inventory::read(&file.nodes, &source, directory)?);
        file.count_from(directory);
        file.check(&source, expiry)?;
        Ok(file)
    }

    /// Makes relative paths count from a directory.
    fn count_from(&mut self, directory: &Path) {
        let count = |path: &mut PathBuf| *path = directory.join(&*path);
        [&mut self.state, &mut self.port_file].into_iter().flatten().for_each(count);
        if let Some(EtcdTable { cert, key, ca, .. }) = &mut self.etcd {
            [cert, key, ca].into_iter().flatten().for_each(count);
        }
        self.key_file.iter_mut().map(Spanned::get_mut).for_each(count);
        if let Some(HttpTable { viewers, tls, port_file, .. }) = &mut self.http {
            port_file.iter_mut().for_each(count);
            [viewers, tls].into_iter().flatten().map(Spanned::get_mut).for_each(count);
        }
    }

    /// Checks the files that the keys name, and the keys against each other.
    fn check(&self, source: &Source<'_>, expiry: Expiry) -> Result<()> {
        fn at<T>(
            source: &Source<'_>,
            part: Option<&Spanned<T>>,
            name: &str,
            judge: impl FnOnce(&T) -> Result<()>,
        ) -> Result<()> {
            let Some(part) = part else { return Ok(()) };
            let said = |why| source.mistake(&part.span(), format!("{name}: {}", sentence(&why)));
            judge(part.get_ref()).map_err(said)
        }
        // A key that does not exist is made at the start, and so are the files of TLS.
        at(source, self.key_file.as_ref(), "key_file", |file| match file.exists() {
            true => Ok(key::load(file).map(drop)?),
            false => Ok(()),
        })?;
        if let Some(etcd) = &self.etcd {
            at(source, etcd.ttl.as_ref(), "ttl", |value| match ttl(&value.to_string()) {
                Ok(_) => Ok(()),
                Err(why) => bail!("{why}"),
            })?;
            at(source, Some(&etcd.urls), "urls", |_| GroupSettings::of_file(etcd).place())?;
        }
        let Some(http) = &self.http else { return Ok(()) };
        at(source, http.viewers.as_ref(), "viewers", |file| password(file).map(drop))?;
        at(source, http.tls.as_ref(), "tls", |directory| {
            if Tls::is_absent(directory) {
                return Ok(());
            }
            let tls = Tls::load(directory)?;
            if expiry == Expiry::Refused {
                tls.check_time()?;
            }
            Ok(())
        })?;
        at(source, Some(&http.listen), "listen", |listen| {
            if listen.port() != 0 && self.listen() == Some(*listen) {
                bail!("{listen} is that of the nodes as well");
            }
            may_listen(*listen, http.tls.is_some(), http.insecure)
        })
    }

    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.listen.as_ref().map(|listen| *listen.get_ref())
    }

    pub(super) fn key_file(&self) -> Option<&Path> {
        self.key_file.as_ref().map(|file| file.get_ref().as_path())
    }

    pub(super) const fn spool(&self) -> SpoolLimits {
        self.spool
    }

    pub(super) fn inventory(&self) -> Arc<Inventory> {
        self.inventory.clone()
    }

    pub(super) const fn qos(&self) -> QosRules {
        self.qos_rules
    }

    pub(super) fn lease_ms(&self) -> Option<u64> {
        self.lease_ms.as_ref().map(|lease| *lease.get_ref())
    }
}

impl QosTable {
    fn rules(&self, source: &Source<'_>) -> Result<QosRules> {
        let read = |priority, limit, waiting| -> Result<JobQos> {
            Ok(JobQos {
                priority: source.value("rdma_priority", priority, |text: &String| text.parse())?,
                bytes_per_second: source.value("rdma_limit", limit, |text: &String| rate(text))?,
                outstanding: source
                    .value("rdma_outstanding", waiting, |count: &u64| outstanding(&count.to_string()))?,
            })
        };
        let Self { rdma_priority, rdma_limit, rdma_outstanding, most } = self;
        let usual = read(rdma_priority.as_ref(), rdma_limit.as_ref(), rdma_outstanding.as_ref())?;
        let most = match most {
            Some(MostTable { rdma_priority, rdma_limit, rdma_outstanding }) => {
                read(rdma_priority.as_ref(), rdma_limit.as_ref(), rdma_outstanding.as_ref())?
            }
            None => JobQos::default(),
        };
        // The usual quality of service must be within the most that a job may have.
        let alone = |wish: JobQos| QosRules { usual: JobQos::default(), most }.decide(&wish).err();
        let JobQos { priority, bytes_per_second, outstanding } = usual;
        let keys = [
            (rdma_priority.as_ref().map(Spanned::span), JobQos { priority, ..JobQos::default() }),
            (rdma_limit.as_ref().map(Spanned::span), JobQos { bytes_per_second, ..JobQos::default() }),
            (rdma_outstanding.as_ref().map(Spanned::span), JobQos { outstanding, ..JobQos::default() }),
        ];
        for (span, wish) in keys {
            if let (Some(span), Some(why)) = (span, alone(wish)) {
                return Err(source.mistake(&span, why));
            }
        }
        Ok(QosRules { usual, most })
    }
}

impl JobsTable {
    fn limits(&self, source: &Source<'_>) -> Result<SpoolLimits> {
        let size = |key, part: Option<&Spanned<String>>, usual| -> Result<_> {
            Ok(source.value(key, part, |text| bytes(text))?.unwrap_or(usual))
        };
        let usual = SpoolLimits::default();
        let kept = self.retention.as_ref();
        let age = kept.and_then(|kept| kept.age.as_ref());
        let kept_bytes = kept.and_then(|kept| kept.bytes.as_ref());
        let limits = SpoolLimits {
            job_bytes: size("job_bytes", self.job_bytes.as_ref(), usual.job_bytes)?,
            bytes: size("spool_bytes", self.spool_bytes.as_ref(), usual.bytes)?,
            keep: source.value("age", age, |text| days(text))?.unwrap_or(usual.keep),
            keep_bytes: size("bytes", kept_bytes, usual.keep_bytes)?,
        };
        if let Some(part) = self.job_bytes.as_ref().filter(|_| limits.job_bytes > limits.bytes) {
            let why = format!("job_bytes: it is more than spool_bytes, which is {}", limits.bytes);
            return Err(source.mistake(&part.span(), why));
        }
        Ok(limits)
    }
}

impl HttpTable {
    pub(super) fn listen(&self) -> SocketAddr {
        *self.listen.get_ref()
    }

    pub(super) fn viewers(&self) -> Option<PathBuf> {
        self.viewers.as_ref().map(|viewers| viewers.get_ref().clone())
    }

    pub(super) fn tls(&self) -> Option<PathBuf> {
        self.tls.as_ref().map(|tls| tls.get_ref().clone())
    }
}

/// Refuses HTTP without TLS on an address that others can reach, unless the operator wants it.
pub(super) fn may_listen(address: SocketAddr, tls: bool, insecure: bool) -> Result<()> {
    if tls || insecure || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    bail!(
        "HTTP on {address} shows keys to everyone on the way: use TLS (--http-tls DIR), a loopback address, or \
         --http-insecure if a proxy in front has TLS"
    )
}

/// Reads the password of viewers.
pub(super) fn password(file: &Path) -> Result<Zeroizing<String>> {
    let text = key::read_secret("file of the password", file, LONGEST_PASSWORD)?;
    let text = str::from_utf8(&text).ok().filter(|text| text.trim().len() >= SHORTEST_PASSWORD);
    match text {
        Some(text) => Ok(Zeroizing::new(text.into())),
        None => bail!("{} holds no password: want {SHORTEST_PASSWORD} characters or more", file.display()),
    }
}
