//! The settings that change while the daemon runs.

use super::{DaemonError, Http, Options};
use crate::core::{Core, Rules};
use crate::http::{Tls, Viewers};
use axum_server::tls_rustls::RustlsConfig;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

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
        options.config.rules = rules;
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
    let Reload { rules, viewers, tls } = reload;
    core.reconfigure(rules);
    if let Some(http) = http {
        http.viewers.replace(viewers);
        if let (Some(present), Some(new)) = (&http.tls, tls) {
            present.reload_from_config(new.config.get_inner());
        }
    }
}
