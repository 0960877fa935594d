//! The cluster key, as the launcher or the loader passes it.

use alloc::format;
use alloc::string::String;
use proto::channel::ClusterKey;
use zeroize::Zeroizing;

use super::enrol::Enrolment;
use crate::net::stack::Stack;
use crate::{boot, config};

/// The file of fw_cfg.
const FILE: &str = "opt/ferrolite/key";

/// The way in which this node gets its key.
pub(crate) enum KeySource {
    /// The launcher or the loader has passed the key.
    Passed(ClusterKey),
    /// The node has a token for it.
    Token(Enrolment),
}

impl KeySource {
    /// Returns the source that the settings name: a token counts before a key.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn of_settings() -> Result<Self, String> {
        match Enrolment::of_settings()? {
            Some(enrolment) => Ok(Self::Token(enrolment)),
            None => cluster_key().map(Self::Passed),
        }
    }

    /// Returns the key, for a token once the service has been reached.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) async fn key(self, stack: &'static Stack) -> Result<ClusterKey, String> {
        match self {
            Self::Passed(key) => Ok(key),
            Self::Token(enrolment) => enrolment.key(stack).await,
        }
    }
}

/// Returns the cluster key: the launcher's (a file of fw_cfg), or else that of a boot module. Prints its
/// source. Call once: the text of the key is overwritten.
///
/// # Errors
/// A line for the user: there is no key, or it is malformed.
pub(crate) fn cluster_key() -> Result<ClusterKey, String> {
    let of_module = config::take_key();
    if let Some(text) = boot::fw_cfg::read(FILE) {
        let text = Zeroizing::new(text);
        log::info!("cluster key by fw_cfg");
        return ClusterKey::from_hex(&text).map_err(|e| format!("fw_cfg {FILE}: {e}"));
    }
    let Some(key) = of_module else {
        return Err(match boot::info().modules.iter().count() {
            0 => format!("no cluster key: pass it as fw_cfg file {FILE}, or as ferrolite/key in an initrd"),
            _ => "no boot module is a cluster key or contains ferrolite/key".into(),
        });
    };
    log::info!("cluster key by {}", key.source);
    ClusterKey::from_hex(&key.text)
        .map_err(|e| format!("{}: no boot module is a cluster key: {e}", key.source))
}
