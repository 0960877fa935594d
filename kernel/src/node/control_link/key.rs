//! The cluster key, as the launcher or the loader passes it.

use alloc::format;
use alloc::string::String;
use proto::channel::ClusterKey;
use zeroize::Zeroizing;

use crate::{boot, config};

/// The file of fw_cfg.
const FILE: &str = "opt/ferrolite/key";

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
