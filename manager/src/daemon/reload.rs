//! The settings that change while the daemon runs.

use super::{DaemonError, Http, Options};
use crate::core::{Core, SpoolLimits};
use crate::http::{Tls, Viewers};
use crate::inventory::Inventory;
use axum_server::tls_rustls::RustlsConfig;
use proto::QosRules;
use std::sync::Arc;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// The rules of the cluster that change while the daemon runs.
#[derive(Clone, Debug)]
pub struct Rules {
    /// True if appliances and processes on hosts may be in one cluster.
    pub trust_hosts: bool,
    /// True if the cluster's key for clients is that of an administrator also when there are users.
    pub recover: bool,
    /// The bounds of the spool.
    pub spool: SpoolLimits,
    /// The nodes that the operator expects.
    pub inventory: Arc<Inventory>,
    /// The rules for the quality of service of jobs.
    pub qos: QosRules,
}

/// New settings, checked as a whole.
#[derive(Debug)]
pub struct Reload {
    rules: Rules,
    viewers: Option<Zeroizing<String>>,
    tls: Option<Tls>,
}

impl Reload {
    /// Reads the files of the new settings. The addresses are those of the daemon.
    ///
    /// # Errors
    /// Fails if the files of TLS cannot be used, or the certificate is not valid at present.
    pub fn load(rules: Rules, http: Option<Http>) -> Result<Self, DaemonError> {
        let Some(Http { listen, viewers, tls }) = http else {
            return Ok(Self { rules, viewers: None, tls: None });
        };
        let tls = match tls {
            Some(directory) => {
                let tls = Tls::load_or_make(&directory, listen.ip())?;
                tls.check_time()?;
                Some(tls)
            }
            None => None,
        };
        Ok(Self { rules, viewers, tls })
    }
}

/// The new settings that come while the daemon runs.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    incoming: Option<mpsc::Receiver<Result<Reload, String>>>,
    /// The last settings that were right.
    last: Option<(Rules, Option<Zeroizing<String>>)>,
}

impl Reloads {
    pub(super) const fn of(incoming: mpsc::Receiver<Result<Reload, String>>) -> Self {
        Self { incoming: Some(incoming), last: None }
    }

    /// Returns the next new settings; `None` if no more come.
    pub(super) async fn next(&mut self) -> Option<Result<Reload, String>> {
        let next = self.incoming.as_mut()?.recv().await;
        if let Some(Ok(Reload { rules, viewers, .. })) = &next {
            self.last = Some((rules.clone(), viewers.clone()));
        }
        next
    }

    /// Puts the last settings into the options with which a daemon starts. The files of TLS are read again
    /// then in any case.
    pub(super) fn settle(&self, options: &mut Options) {
        let Some((rules, viewers)) = self.last.clone() else { return };
        let Rules { trust_hosts, recover, spool, inventory, qos } = rules;
        let config = &mut options.config;
        (config.trust_hosts, config.recover, config.spool) = (trust_hosts, recover, spool);
        (config.inventory, config.qos) = (inventory, qos);
        if let Some(http) = &mut options.http {
            http.viewers = viewers;
        }
    }
}

/// The parts of the service over HTTP that new settings change.
#[derive(Debug)]
pub(super) struct Changing {
    pub(super) viewers: Viewers,
    pub(super) tls: Option<RustlsConfig>,
}

/// Applies new settings.
pub(super) fn apply(reload: Reload, core: &mut Core, http: Option<&Changing>) {
    let Reload { rules: Rules { trust_hosts, recover, spool, inventory, qos }, viewers, tls } = reload;
    core.reconfigure((trust_hosts, recover), spool, inventory, qos);
    if let Some(http) = http {
        http.viewers.replace(viewers);
        if let (Some(present), Some(new)) = (&http.tls, tls) {
            present.reload_from_config(new.config.get_inner());
        }
    }
}
