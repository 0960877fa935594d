//! The cluster key, as the launcher or the loader passes it.

use alloc::format;
use alloc::string::String;
use proto::channel::{ClusterKey, Role};
use spin::Once;
use zeroize::Zeroizing;

use super::enrol::Enrolment;
use crate::net::stack::Stack;
use crate::{boot, config};

/// The file of fw_cfg.
const FILE: &str = "opt/ferrolite/key";

/// The way in which this node gets its key.
pub(crate) enum KeySource {
    /// The launcher or the loader has passed the key.
    Passed(&'static ClusterKey),
    /// The node has a token for it.
    Token(Enrolment),
}

/// The key that the node has got for a token.
static ENROLLED: Once<ClusterKey> = Once::new();

impl KeySource {
    /// Returns the source. A key counts before a token: a node that boots another image passes it
    /// its key, and the command line with the token that it has used.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn of_settings() -> Result<Self, String> {
        match (cluster_key(), Enrolment::of_settings()?) {
            (Ok(key), _) => Ok(Self::Passed(key)),
            (Err(_), Some(enrolment)) => Ok(Self::Token(enrolment)),
            (Err(why), None) => Err(why),
        }
    }

    /// Returns the key, for a token once the service has been reached.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) async fn key(self, stack: &'static Stack) -> Result<&'static ClusterKey, String> {
        match self {
            Self::Passed(key) => Ok(key),
            Self::Token(enrolment) => {
                let key = enrolment.key(stack).await?;
                Ok(ENROLLED.call_once(|| key))
            }
        }
    }
}

/// Returns the node's part of the cluster key: that of an enrolment, the launcher's (a file of
/// fw_cfg), or else that of a boot module. The first call prints its source, and overwrites the
/// text and the whole key.
///
/// # Errors
/// A line for the user: there is no key, it is malformed, or it is not for nodes.
pub(crate) fn cluster_key() -> Result<&'static ClusterKey, String> {
    static KEY: Once<Result<ClusterKey, String>> = Once::new();
    if let Some(key) = ENROLLED.get() {
        return Ok(key);
    }
    let of_node = || read()?.only(Role::Node).map_err(|e| format!("{e}"));
    KEY.call_once(of_node).as_ref().map_err(Clone::clone)
}

fn read() -> Result<ClusterKey, String> {
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
