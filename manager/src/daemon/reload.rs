//! The settings that change while the daemon runs.

use super::{DaemonError, Http};
use crate::core::Core;
use crate::http::{Tls, Viewers};
use axum_server::tls_rustls::RustlsConfig;
use zeroize::Zeroizing;

/// New settings, checked as a whole.
#[derive(Debug)]
pub struct Reload {
    trust_hosts: bool,
    recover: bool,
    viewers: Option<Zeroizing<String>>,
    tls: Option<Tls>,
}

impl Reload {
    /// Reads the files of the new settings. The addresses are those of the daemon.
    ///
    /// # Errors
    /// Fails if the files of TLS cannot be used, or the certificate is not valid at present.
    pub fn load(trust_hosts: bool, recover: bool, http: Option<Http>) -> Result<Self, DaemonError> {
        let Some(Http { listen, viewers, tls }) = http else {
            return Ok(Self { trust_hosts, recover, viewers: None, tls: None });
        };
        let tls = match tls {
            Some(directory) => {
                let tls = Tls::load_or_make(&directory, listen.ip())?;
                tls.check_time()?;
                Some(tls)
            }
            None => None,
        };
        Ok(Self { trust_hosts, recover, viewers, tls })
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
    let Reload { trust_hosts, recover, viewers, tls } = reload;
    core.reconfigure(trust_hosts, recover);
    if let Some(http) = http {
        http.viewers.replace(viewers);
        if let (Some(present), Some(new)) = (&http.tls, tls) {
            present.reload_from_config(new.config.get_inner());
        }
    }
}
