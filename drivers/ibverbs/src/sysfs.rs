//! The kernel's data about an RDMA port in `/sys`: its GIDs, its Ethernet address, its counters.

use crate::sync::lock;
use std::fs::{self, File};
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use verbs::{Counter, Gid, LinkKind, MacAddr};

/// The directory in which the kernel shows its devices.
pub(crate) const ROOT: &str = "/sys/class";

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    /// The index in the table.
    pub index: u8,
    /// The GID.
    pub gid: Gid,
    /// The frame format of a queue pair with this GID, on an Ethernet port.
    pub link: LinkKind,
    /// The network interface of the GID, on an Ethernet port.
    pub netdev: Option<String>,
}

/// The directory of a port below [`ROOT`].
#[derive(Clone, Debug)]
pub(crate) struct PortDir {
    root: PathBuf,
    port: PathBuf,
}

impl PortDir {
    /// Makes the directory of port `port` of `device`; `root` is [`ROOT`].
    pub(crate) fn new(root: &Path, device: &str, port: u8) -> Self {
        Self { root: root.to_owned(), port: root.join(format!("infiniband/{device}/ports/{port}")) }
    }

    /// Reads the GID table, without its empty entries.
    pub(crate) fn gids(&self) -> io::Result<Vec<GidEntry>> {
        let mut gids = Vec::new();
        for entry in fs::read_dir(self.port.join("gids"))? {
            let name = entry?.file_name();
            let Some(index) = name.to_str().and_then(|n| n.parse::<u8>().ok()) else { continue };
            // An empty entry cannot be read, or is zero.
            let Some(gid) = self.text(&format!("gids/{index}")).and_then(|t| t.parse::<Ipv6Addr>().ok())
            else {
                continue;
            };
            if gid.is_unspecified() {
                continue;
            }
            let v2 = self.text(&format!("gid_attrs/types/{index}")).is_some_and(|kind| kind == "RoCE v2");
            gids.push(GidEntry {
                index,
                gid: Gid(gid.octets()),
                link: if v2 { LinkKind::RoceV2 } else { LinkKind::RoceV1 },
                netdev: self.text(&format!("gid_attrs/ndevs/{index}")),
            });
        }
        gids.sort_by_key(|gid| gid.index);
        Ok(gids)
    }

    /// Reads the Ethernet address of a network interface.
    pub(crate) fn mac(&self, netdev: &str) -> Option<MacAddr> {
        let text = fs::read_to_string(self.root.join("net").join(netdev).join("address")).ok()?;
        let mut bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
        let mut mac = [0; 6];
        for to in &mut mac {
            *to = bytes.next()??;
        }
        bytes.next().is_none().then_some(MacAddr(mac))
    }

    /// Opens the counters of the device; none if it has none.
    pub(crate) fn counters(&self) -> Counters {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.port.join("hw_counters")).into_iter().flatten().flatten() {
            // The lifetime of the values in milliseconds, which is not a count.
            if entry.file_name() == "lifespan" {
                continue;
            }
            if let (Some(name), Ok(file)) = (entry.file_name().to_str(), File::open(entry.path())) {
                files.push((interned(name), file));
            }
        }
        files.sort_by_key(|(name, _)| *name);
        Counters { files }
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.port.join(file)).ok().map(|text| text.trim().to_owned())
    }
}

/// The counters of a port.
#[derive(Debug)]
pub(crate) struct Counters {
    files: Vec<(&'static str, File)>,
}

impl Counters {
    /// Calls `each` for every counter that can be read.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(Counter)) {
        for (name, file) in &self.files {
            let mut text = [0; 32];
            let Ok(len) = file.read_at(&mut text, 0) else { continue };
            let digits = text.get(..len).and_then(|t| std::str::from_utf8(t).ok());
            if let Some(count) = digits.and_then(|d| d.trim().parse().ok()) {
                each((name, count));
            }
        }
    }
}

/// Returns a name that lives until the process ends. Each name is stored once.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = lock(&NAMES);
    if let Some(known) = names.iter().find(|n| **n == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.push(name);
    name
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
