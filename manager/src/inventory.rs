//! The inventory: the nodes that the operator expects, and the power controllers of their machines.
//!
//! It holds no password, but the names of the files with them, which are read for each order.

use proto::Reason;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use verbs::MacAddr;

/// The maximum number of nodes of an inventory.
pub const MOST: usize = 4096;

/// The nodes that the operator expects, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory(pub BTreeMap<String, Expected>);

impl Inventory {
    /// Returns the power controller of a node.
    pub(crate) fn bmc(&self, name: &str) -> Option<&Bmc> {
        self.0.get(name)?.bmc.as_ref()
    }
}

/// A node that the operator expects. What is not stated is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The Ethernet address of the port over which the node does RDMA.
    pub mac: Option<MacAddr>,
    /// The number of processors.
    pub cpus: Option<u16>,
    /// The memory of the machine, in bytes.
    pub memory: Option<u64>,
    /// The digest of the kernel.
    pub kernel: Option<[u8; 32]>,
    /// The power controller.
    pub bmc: Option<Bmc>,
}

/// A member, as far as an inventory may state it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) mac: MacAddr,
    pub(crate) cpus: u16,
    pub(crate) memory: u64,
    pub(crate) kernel: Option<[u8; 32]>,
}

impl Expected {
    /// Returns the points in which a member differs, for people.
    pub(crate) fn differences(&self, found: &Found) -> Vec<Reason> {
        let mut all = Vec::new();
        if let Some(mac) = self.mac.filter(|mac| *mac != found.mac) {
            all.push(format!("its Ethernet address is {}, not {mac}", found.mac));
        }
        if let Some(cpus) = self.cpus.filter(|cpus| *cpus != found.cpus) {
            all.push(format!("it has {} processors, not {cpus}", found.cpus));
        }
        if let Some(memory) = self.memory.filter(|memory| !is_about(found.memory, *memory)) {
            all.push(format!("it has {} MB of memory, not {} MB", found.memory >> 20, memory >> 20));
        }
        match (self.kernel, found.kernel) {
            (Some(expected), Some(kernel)) if expected != kernel => {
                all.push(format!("it runs the kernel {}, not {}", start(&kernel), start(&expected)));
            }
            (Some(expected), None) => {
                all.push(format!("it has not told its kernel, which is to be {}", start(&expected)));
            }
            _ => {}
        }
        all
    }
}

/// Returns true if a machine with `all` bytes of memory may tell `found`: the firmware, and the kernel's
/// tables, keep up to an eighth of it.
const fn is_about(found: u64, all: u64) -> bool {
    found <= all && found >= all - all / 8
}

/// Returns the first digits of a digest.
fn start(digest: &[u8; 32]) -> String {
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Parses an Ethernet address: six bytes in hexadecimal digits, separated by colons.
#[must_use]
pub fn parse_mac(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddr(bytes))
}

/// Parses the hexadecimal digits of a SHA-256, which colons may separate.
#[must_use]
pub fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
    let mut bytes = [0; 32];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit =
            |character: u8| char::from(character).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// A power controller of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bmc {
    /// The way to it.
    pub way: Way,
    /// The longest time of an order.
    pub timeout: Duration,
}

/// The way to a power controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A program of the operator's, which is run with the name of the node and a word.
    Command(PathBuf),
    /// IPMI 2.0 over a network, by the program `ipmitool`.
    Ipmi(Ipmi),
    /// Redfish over HTTP.
    Redfish(Redfish),
}

impl Bmc {
    /// Returns the kind, for people.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.way {
            Way::Command(_) => "command",
            Way::Ipmi(_) => "ipmi",
            Way::Redfish(_) => "redfish",
        }
    }
}

/// A controller that speaks IPMI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipmi {
    /// The name or address.
    pub host: String,
    /// The UDP port.
    pub port: u16,
    /// The number of the cipher suite.
    pub cipher: u8,
    /// The user.
    pub user: String,
    /// The file with the user's password.
    pub password_file: PathBuf,
}

/// A controller that speaks Redfish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redfish {
    /// The name or address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The path of the machine; `None`: the controller has one machine.
    pub system: Option<String>,
    /// The user.
    pub user: String,
    /// The file with the user's password.
    pub password_file: PathBuf,
    /// The reason to trust the other side.
    pub trust: Trust,
}

/// The reason to trust the other side of a connection with a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The certificates in this file have signed the controller's.
    Ca(PathBuf),
    /// The controller's certificate has this SHA-256.
    Certificate([u8; 32]),
    /// None: the operator wants TLS with any certificate.
    Any,
    /// None: the operator wants HTTP without TLS.
    Plain,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_is_compared() {
        let found = Found { mac: MacAddr([2; 6]), cpus: 4, memory: 15 << 30, kernel: Some([7; 32]) };
        assert!(Expected::default().differences(&found).is_empty());
        let same = Expected {
            mac: Some(MacAddr([2; 6])),
            cpus: Some(4),
            memory: Some(16 << 30),
            kernel: Some([7; 32]),
            bmc: None,
        };
        assert!(same.differences(&found).is_empty());
        let other = Expected {
            mac: Some(MacAddr([3; 6])),
            cpus: Some(8),
            memory: Some(32 << 30),
            kernel: Some([8; 32]),
            bmc: None,
        };
        assert_eq!(
            other.differences(&found),
            [
                "its Ethernet address is 02:02:02:02:02:02, not 03:03:03:03:03:03",
                "it has 4 processors, not 8",
                "it has 15360 MB of memory, not 32768 MB",
                "it runs the kernel 070707070707, not 080808080808",
            ]
        );
        let untold = Found { kernel: None, ..found };
        assert_eq!(same.differences(&untold), ["it has not told its kernel, which is to be 070707070707"]);
    }
}
