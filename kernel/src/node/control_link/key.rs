//! The cluster key, as the launcher or the loader passes it.

use alloc::format;
use alloc::string::String;
use proto::channel::{ClusterKey, Role};
use spin::Once;
use zeroize::Zeroizing;

use crate::{boot, config};

/// The file of fw_cfg.
const FILE: &str = "opt/ferrolite/key";

/// Returns the node's part of the cluster key: the launcher's (a file of fw_cfg), or else that of a boot
/// module. The first call prints its source, and overwrites the text and the whole key.
///
/// # Errors
/// A line for the user: there is no key, it is malformed, or it is not for nodes.
pub(crate) fn cluster_key() -> Result<&'static ClusterKey, String> {
    static KEY: Once<Result<ClusterKey, String>> = Once::new();
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
