//! `ferrolite config`, and the configuration file of the manager.

use super::args::lease_ms;
use super::context;
use super::toml_file::{self, Source};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use manager::LogFormat;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use zeroize::Zeroizing;

/// The length of the shortest password of viewers, in bytes.
const SHORTEST_PASSWORD: usize = 8;

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
        ManagerFile::load(&args.file)?;
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
    pub(super) listen: Option<SocketAddr>,
    pub(super) state: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) port_file: Option<PathBuf>,
    lease_ms: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) trust_hosts: bool,
    #[serde(default)]
    pub(super) recover: bool,
    pub(super) log_format: Option<LogWord>,
    pub(super) http: Option<HttpTable>,
}

/// The service over HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpTable {
    pub(super) listen: SocketAddr,
    viewers: Option<Spanned<PathBuf>>,
    pub(super) tls: Option<PathBuf>,
    pub(super) port_file: Option<PathBuf>,
}

impl ManagerFile {
    /// Reads and checks a file. Relative paths in it count from its directory.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let text = toml_file::read(path)?;
        let source = Source { path, text: &text };
        let mut file: Self = source.parse()?;
        if let Some(lease) = &file.lease_ms {
            let checked = lease_ms(&lease.get_ref().to_string());
            checked.map_err(|why| source.mistake(&lease.span(), format!("lease_ms: {why}")))?;
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        let http = file.http.iter_mut().flat_map(|http| [&mut http.tls, &mut http.port_file]);
        for path in
            [&mut file.state, &mut file.key_file, &mut file.port_file].into_iter().chain(http).flatten()
        {
            *path = directory.join(&*path);
        }
        if let Some(viewers) = file.http.as_mut().and_then(|http| http.viewers.as_mut()) {
            *viewers.get_mut() = directory.join(viewers.get_ref());
            let checked = password(viewers.get_ref());
            checked.map_err(|why| source.mistake(&viewers.span(), format!("viewers: {why:#}")))?;
        }
        Ok(file)
    }

    pub(super) fn lease_ms(&self) -> Option<u64> {
        self.lease_ms.as_ref().map(|lease| *lease.get_ref())
    }
}

impl HttpTable {
    pub(super) fn viewers(&self) -> Option<&Path> {
        self.viewers.as_ref().map(|viewers| viewers.get_ref().as_path())
    }
}

/// Reads the password of viewers.
pub(super) fn password(file: &Path) -> Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = Zeroizing::new(text);
    if text.trim().len() < SHORTEST_PASSWORD {
        bail!("{} holds no password: want {SHORTEST_PASSWORD} characters or more", file.display());
    }
    Ok(text)
}
