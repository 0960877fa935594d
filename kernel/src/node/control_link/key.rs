//! The cluster key, as the launcher passes it.

use alloc::string::{String, ToString};
use proto::channel::ClusterKey;
use zeroize::Zeroizing;

use crate::boot;
use crate::mm::modules::Modules;

/// Returns the cluster key that the launcher passes: as a file of fw_cfg, or as a boot module (an initrd),
/// which is overwritten.
///
/// # Errors
/// A line for the user: there is no key, or it is malformed.
pub(crate) fn cluster_key() -> Result<ClusterKey, String> {
    let name = "opt/ferrolite/key";
    if let Some(text) = boot::fw_cfg::read(name) {
        let text = Zeroizing::new(text);
        return ClusterKey::from_hex(&text).map_err(|e| alloc::format!("fw_cfg {name}: {e}"));
    }
    let modules = Modules::of(boot::info());
    modules.take(|bytes| ClusterKey::from_hex(bytes).ok()).ok_or_else(|| match modules.count() {
        0 => alloc::format!(
            "no cluster key: the launcher passes it as fw_cfg file {name}, or as a boot module (an initrd)"
        ),
        _ => "no boot module is a cluster key: want 64 hexadecimal digits".to_string(),
    })
}
