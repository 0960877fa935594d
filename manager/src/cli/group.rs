//! The options of a manager that shares its state with others in etcd.

use super::args::ttl;
use super::config::EtcdTable;
use anyhow::{Result, bail, ensure};
use clap::Args;
use manager::daemon::ha::Group;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The beginning of all keys unless another one is named.
const PREFIX: &str = "/ferrolite";
/// The length of the leader's lease unless another one is named, in seconds.
const TTL: u64 = 2;
/// The time that a takeover takes beyond the end of the leader's lease, in milliseconds. A node's lease
/// covers both.
const TAKEOVER_MS: u64 = 2000;

#[derive(Debug, Args)]
pub(super) struct EtcdArgs {
    /// The members of etcd, in which this manager shares its state with others. One manager leads, and
    /// another one takes over when it ends. Needs a program that was built with etcd.
    #[arg(long, value_name = "URL,URL", value_delimiter = ',')]
    etcd: Vec<String>,
    /// The beginning of all keys in etcd. The managers of a cluster have the same [default: /ferrolite].
    #[arg(long, value_name = "PREFIX")]
    etcd_prefix: Option<String>,
    /// The lease of the leader in etcd, in seconds [default: 2].
    #[arg(long, value_name = "SECONDS", value_parser = ttl)]
    etcd_ttl: Option<u64>,
    /// The certificate of this manager for etcd, a file in PEM.
    #[arg(long, value_name = "FILE")]
    etcd_cert: Option<PathBuf>,
    /// The key of --etcd-cert, a file in PEM. Only its owner may have access to it.
    #[arg(long, value_name = "FILE")]
    etcd_key: Option<PathBuf>,
    /// The certificates by which those of etcd are checked, a file in PEM.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
}

/// The settings of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSettings {
    urls: Vec<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    authority: Option<PathBuf>,
    prefix: String,
    ttl: u64,
    advertise: Option<String>,
}

impl EtcdArgs {
    /// Returns the settings of the group, if this manager is in one. An option counts before the file.
    /// `advertise` is the option of that name.
    pub(super) fn group(
        &self,
        advertise: Option<&String>,
        table: Option<&EtcdTable>,
    ) -> Result<Option<GroupSettings>> {
        let file = table.map(GroupSettings::of_file);
        let (own, of_file) = (!self.etcd.is_empty(), file.as_ref());
        if !own && of_file.is_none() {
            let others = [
                self.etcd_prefix.is_some(),
                self.etcd_ttl.is_some(),
                self.etcd_cert.is_some(),
                self.etcd_key.is_some(),
                self.etcd_ca.is_some(),
                advertise.is_some(),
            ];
            ensure!(!others.contains(&true), "--advertise and --etcd-* need --etcd");
            return Ok(None);
        }
        let path = |own: &Option<PathBuf>, get: fn(&GroupSettings) -> &Option<PathBuf>| {
            own.clone().or_else(|| of_file.and_then(|file| get(file).clone()))
        };
        Ok(Some(GroupSettings {
            urls: if own {
                self.etcd.clone()
            } else {
                of_file.map(|file| file.urls.clone()).unwrap_or_default()
            },
            certificate: path(&self.etcd_cert, |file| &file.certificate),
            key: path(&self.etcd_key, |file| &file.key),
            authority: path(&self.etcd_ca, |file| &file.authority),
            prefix: self
                .etcd_prefix
                .clone()
                .or_else(|| of_file.map(|file| file.prefix.clone()))
                .unwrap_or_else(|| PREFIX.into()),
            ttl: self.etcd_ttl.or_else(|| of_file.map(|file| file.ttl)).unwrap_or(TTL),
            advertise: advertise.cloned().or_else(|| of_file.and_then(|file| file.advertise.clone())),
        }))
    }
}

impl GroupSettings {
    /// Returns the settings of a file alone.
    pub(super) fn of_file(table: &EtcdTable) -> Self {
        let EtcdTable { urls, prefix, ttl, cert, key, ca, advertise } = table;
        Self {
            urls: urls.get_ref().clone(),
            certificate: cert.clone(),
            key: key.clone(),
            authority: ca.clone(),
            prefix: prefix.as_ref().map_or_else(|| PREFIX.into(), |prefix| prefix.get_ref().clone()),
            ttl: ttl.as_ref().map_or(TTL, |ttl| *ttl.get_ref()),
            advertise: advertise.clone(),
        }
    }

    /// Checks the settings against each other and against those of the manager.
    pub(super) fn check(&self, listen: SocketAddr, lease_ms: u64) -> Result<()> {
        let takeover = self.ttl * 1000 + TAKEOVER_MS;
        ensure!(
            lease_ms >= takeover,
            "a lease of {lease_ms} ms ends before another manager has taken over: want {takeover} ms or more"
        );
        if listen.ip().is_unspecified() && self.advertise.is_none() {
            bail!(
                "nodes and clients cannot reach {listen}: --advertise must name the address of this manager"
            );
        }
        self.place()
    }

    /// Checks the place of etcd and its files.
    #[cfg(feature = "etcd")]
    pub(super) fn place(&self) -> Result<()> {
        ensure!(self.prefix.starts_with('/'), "the prefix {} does not begin with a slash", self.prefix);
        Ok(self.etcd().check()?)
    }

    /// Refuses etcd, which this program does not have.
    #[cfg(not(feature = "etcd"))]
    pub(super) fn place(&self) -> Result<()> {
        bail!("this program was built without etcd: build it with `--features manager/etcd`")
    }

    #[cfg(feature = "etcd")]
    fn etcd(&self) -> manager::daemon::ha::etcd::Place {
        manager::daemon::ha::etcd::Place {
            urls: self.urls.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            authority: self.authority.clone(),
        }
    }

    /// Returns the group, whose connections to etcd are made later.
    #[cfg(feature = "etcd")]
    pub(super) fn open(&self) -> Result<Group> {
        let store = Box::new(manager::daemon::ha::etcd::Etcd::new(&self.etcd())?);
        let (prefix, ttl, advertise) = (self.prefix.clone(), self.ttl, self.advertise.clone());
        Ok(Group { store, prefix, ttl, advertise })
    }

    #[cfg(not(feature = "etcd"))]
    pub(super) fn open(&self) -> Result<Group> {
        self.place()?;
        bail!("this program has no store for a group of managers")
    }
}
