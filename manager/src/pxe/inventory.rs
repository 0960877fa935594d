//! The inventory: the nodes of `cluster.toml`, which the PXE service boots.

use crate::inventory::parse_mac;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use verbs::MacAddr;

/// The longest command line of a node, in bytes: its arguments and what the service adds.
const LONGEST_ARGUMENTS: usize = 1000;
/// The keys of a command line that the service sets itself.
const OF_SERVICE: [&str; 5] = ["enrol", "token", "manager", "mgmt", "node"];

/// The reason for which an inventory cannot be used. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has keys that do not exist.
    #[error("{}: {what}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The objection, with the line.
        what: String,
    },
    /// A node's description is wrong.
    #[error("{}: node {node}: {what}", path.display())]
    Node {
        /// The file.
        path: PathBuf,
        /// The node's name.
        node: String,
        /// The objection.
        what: String,
    },
}

/// The firmware of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Firmware {
    Bios,
    Uefi,
}

/// A node that is booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) mac: MacAddr,
    /// The directory of `cargo xtask image --format pxe`.
    pub(super) image: PathBuf,
    /// The only firmware with which the node boots, if one is named.
    pub(super) firmware: Option<Firmware>,
    /// Words `key=value` for the node's command line.
    pub(super) arguments: String,
}

/// The nodes of a cluster, by their Ethernet addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    /// The manager's address, as nodes reach it.
    pub(super) manager: SocketAddrV4,
    pub(super) nodes: BTreeMap<[u8; 6], Node>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    manager: SocketAddrV4,
    image: Option<PathBuf>,
    #[serde(default)]
    node: Vec<NodeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: String,
    mac: String,
    image: Option<PathBuf>,
    firmware: Option<Firmware>,
    #[serde(default)]
    arguments: String,
}

impl Inventory {
    /// Reads the file. Paths in it are relative to its directory.
    pub(super) fn read(path: &Path) -> Result<Self, InventoryError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InventoryError::Read { path: path.into(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, InventoryError> {
        let syntax = |what: String| InventoryError::Syntax { path: path.into(), what };
        let file: ClusterFile = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            syntax(format!("line {line}: {}", error.message().replace('\n', " ")))
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        let mut nodes = BTreeMap::new();
        for entry in file.node {
            let name = entry.name.clone();
            let wrong = |what: String| InventoryError::Node { path: path.into(), node: name.clone(), what };
            let node = node(entry, file.image.as_deref(), base).map_err(wrong)?;
            let same_name = nodes.values().any(|other: &Node| other.name == node.name);
            if same_name || nodes.contains_key(&node.mac.0) {
                return Err(wrong("another node has this name or this Ethernet address".into()));
            }
            nodes.insert(node.mac.0, node);
        }
        if nodes.is_empty() {
            return Err(syntax("there is no [[node]]".into()));
        }
        Ok(Self { manager: file.manager, nodes })
    }
}

fn node(entry: NodeEntry, image: Option<&Path>, base: &Path) -> Result<Node, String> {
    let NodeEntry { name, mac: address, image: own, firmware, arguments } = entry;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err("want a name of letters, digits, `-`, `_` and `.`".into());
    }
    let mac = parse_mac(&address)
        .ok_or_else(|| format!("mac = {address}: want an address like 52:54:00:12:34:56"))?;
    let image = own.as_deref().or(image).ok_or("no `image`, here or for all nodes")?;
    if arguments.len() > LONGEST_ARGUMENTS || !arguments.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(format!("want `arguments` of at most {LONGEST_ARGUMENTS} printable characters"));
    }
    for word in arguments.split_ascii_whitespace() {
        let key = bootconfig::key_of(word).map_err(|why| format!("arguments: {why}"))?;
        if OF_SERVICE.contains(&key) {
            return Err(format!("arguments: the service sets `{key}` itself"));
        }
    }
    Ok(Node { name, mac, image: base.join(image), firmware, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Inventory, String> {
        Inventory::parse(Path::new("/etc/cluster.toml"), text).map_err(|error| error.to_string())
    }

    const TWO: &str = r#"
        manager = "192.0.2.1:18500"
        image = "pxe"
        [[node]]
        name = "n0"
        mac = "52:54:00:FD:00:01"
        [[node]]
        name = "n1"
        mac = "52:54:00:fd:00:02"
        image = "/srv/other"
        firmware = "uefi"
        arguments = "nic=softroce log=debug"
    "#;

    #[test]
    fn two_nodes() {
        let inventory = parse(TWO).unwrap();
        assert_eq!(inventory.manager, "192.0.2.1:18500".parse().unwrap());
        let nodes: Vec<_> = inventory.nodes.values().collect();
        assert_eq!(nodes[0].mac, MacAddr([0x52, 0x54, 0, 0xfd, 0, 1]));
        assert_eq!((nodes[0].image.to_str(), nodes[0].firmware), (Some("/etc/pxe"), None));
        assert_eq!((nodes[1].image.to_str(), nodes[1].firmware), (Some("/srv/other"), Some(Firmware::Uefi)));
        assert_eq!(nodes[1].arguments, "nic=softroce log=debug");
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            (TWO.replace("fd:00:02", "fd:00:01"), "node n1: another node has this name"),
            (TWO.replace("\"n1\"", "\"n0\""), "node n0: another node has this name"),
            (TWO.replace("fd:00:02", "fd:00"), "node n1: mac = 52:54:00:fd:00: want"),
            (TWO.replace("\"n1\"", "\"n 1\""), "node n 1: want a name of letters"),
            (TWO.replace("log=debug", "debug"), "node n1: arguments: `debug` is not key=value"),
            (TWO.replace("log=debug", "lgo=debug"), "node n1: arguments: unknown key `lgo`"),
            (TWO.replace("log=debug", "token=1"), "node n1: arguments: the service sets `token` itself"),
            (TWO.replace("log=debug", "a=\\u00e9"), "node n1: want `arguments` of at most"),
            (TWO.replace("image = \"pxe\"", ""), "node n0: no `image`"),
            (TWO.replace("firmware", "firmwear"), "cluster.toml: line 11: unknown field `firmwear`"),
            (TWO.replace("uefi", "efi"), "unknown variant `efi`"),
            ("manager = \"192.0.2.1:18500\"".into(), "there is no [[node]]"),
            ("manager = \"here\"".into(), "cluster.toml: line 1: "),
        ];
        for (text, want) in cases {
            let said = parse(&text).unwrap_err();
            assert!(said.contains(want), "`{said}` lacks `{want}`");
        }
    }
}
