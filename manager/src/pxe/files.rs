//! The files that nodes load: those of their image, and configurations of loaders that are made for one boot.

use super::dhcp::{Client, Question};
use super::inventory::{Firmware, Inventory, Node};
use super::tokens::{Refusal, Tokens};
use super::{ENROL_PORT, HTTP_PORT};
use crate::kernel;
use proto::channel::enrolment::{KernelDigest, ManagerKey, Request, Token};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use verbs::MacAddr;

/// The image, which every tree has.
const IMAGE: &str = "ferrolite.efi";
/// The script for iPXE, which is made for one boot.
const SCRIPT: &str = "boot.ipxe";
/// The beginning of the name of pxelinux's configuration for an Ethernet address, which is made for one boot.
const PXELINUX_CONFIG: &str = "pxelinux.cfg/01-";
/// The boot program for a BIOS, and the one for UEFI: iPXE, which fetches the script.
const FOR_BIOS: &str = "pxelinux.0";
const FOR_UEFI: &str = "ipxe.efi";
/// Further files of a tree, if it has them.
const OTHERS: [&str; 3] = [FOR_BIOS, "ldlinux.c32", FOR_UEFI];

/// The files of a directory that `cargo xtask image --format pxe` has made.
struct Tree {
    files: HashMap<&'static str, Arc<[u8]>>,
    kernel: KernelDigest,
}

impl Tree {
    /// Reads the files. The image must have the manager's public key.
    fn read(dir: &Path, manager: &ManagerKey) -> Result<Self, String> {
        let read = |name: &str| std::fs::read(dir.join(name));
        let image =
            read(IMAGE).map_err(|error| format!("cannot read {}: {error}", dir.join(IMAGE).display()))?;
        let key = format!("manager_key={manager}");
        if !image.windows(key.len()).any(|part| part == key.as_bytes()) {
            return Err(format!(
                "{} does not have this manager's key: build it with --config FILE that has the line {key}",
                dir.join(IMAGE).display()
            ));
        }
        let kernel =
            kernel::digest(&image).ok_or_else(|| format!("{} has no kernel", dir.join(IMAGE).display()))?;
        let mut files = HashMap::from([(IMAGE, Arc::from(image))]);
        files.extend(OTHERS.into_iter().filter_map(|name| Some((name, Arc::from(read(name).ok()?)))));
        Ok(Self { files, kernel })
    }
}

/// The boots of the inventory's nodes.
pub(super) struct Boots {
    inventory: Inventory,
    /// The address of this service.
    address: Ipv4Addr,
    trees: BTreeMap<PathBuf, Tree>,
    tokens: Mutex<Tokens>,
}

impl Boots {
    /// Reads the images of all nodes.
    pub(super) fn new(inventory: Inventory, address: Ipv4Addr, manager: &ManagerKey) -> Result<Self, String> {
        let mut trees = BTreeMap::new();
        for node in inventory.nodes.values() {
            if !trees.contains_key(&node.image) {
                trees.insert(node.image.clone(), Tree::read(&node.image, manager)?);
            }
        }
        Ok(Self { inventory, address, trees, tokens: Mutex::default() })
    }

    /// Returns the node with an Ethernet address.
    pub(super) fn node(&self, mac: MacAddr) -> Option<&Node> {
        self.inventory.nodes.get(&mac.0)
    }

    /// Returns the name of the boot program for a client.
    ///
    /// # Errors
    /// A line for people: the node is not booted in this way.
    pub(super) fn program(&self, node: &Node, question: &Question<'_>) -> Result<String, String> {
        let under_uefi = matches!(question.client, Client::Uefi | Client::Ipxe { under_uefi: true });
        let firmware = if under_uefi { Firmware::Uefi } else { Firmware::Bios };
        if node.firmware.is_some_and(|wanted| wanted != firmware) {
            return Err(format!("{} boots by another firmware than {}", question.mac, node.name));
        }
        let name = match question.client {
            Client::Bios => FOR_BIOS,
            Client::Uefi => FOR_UEFI,
            Client::Ipxe { .. } => return Ok(format!("http://{}:{HTTP_PORT}/{SCRIPT}", self.address)),
        };
        let has = self.trees.get(&node.image).is_some_and(|tree| tree.files.contains_key(name));
        if has { Ok(name.into()) } else { Err(format!("{} has no {name}", node.image.display())) }
    }

    /// Returns a file for a node. A loader's configuration gets a token; `random` must be fresh.
    pub(super) fn file(
        &self,
        node: &Node,
        name: &str,
        random: [u8; 32],
        now: Instant,
    ) -> Option<(Arc<[u8]>, bool)> {
        let tree = self.trees.get(&node.image)?;
        let name = name.trim_start_matches('/');
        let words = || {
            let token = Token::from_bytes(random);
            let words = self.words(node, &token);
            let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
            tokens.add(token, node.mac, tree.kernel, now);
            words
        };
        let text = if name == SCRIPT {
            let image = format!("http://{}:{HTTP_PORT}/{IMAGE}", self.address);
            format!("#!ipxe\nkernel {image} {}\nboot\n", words())
        } else if name.starts_with(PXELINUX_CONFIG) {
            format!("DEFAULT ferrolite\nLABEL ferrolite\n  LINUX {IMAGE}\n  APPEND {}\n", words())
        } else {
            return tree.files.get(name).map(|file| (file.clone(), false));
        };
        Some((Arc::from(text.into_bytes()), true))
    }

    /// Returns the command line of a node for one boot.
    fn words(&self, node: &Node, token: &Token) -> String {
        let Node { name, mac, arguments, .. } = node;
        let (manager, address, token) = (self.inventory.manager, self.address, token.to_hex());
        let blank = if arguments.is_empty() { "" } else { " " };
        format!(
            "{arguments}{blank}node={name} manager={manager} mgmt={mac} enrol={address}:{ENROL_PORT} token={}",
            *token
        )
    }

    /// Uses up the token of a request. Returns the node that may have the key of a node.
    pub(super) fn redeem(&self, request: &Request, now: Instant) -> Result<&Node, Refusal> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.redeem(request, now)?;
        self.node(request.mac).ok_or(Refusal::OtherMachine)
    }
}
