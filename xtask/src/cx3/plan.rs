//! What a lab is to be.

use anyhow::Result;
use netfault::Faults;
use qemu::cx3::CardConfig;
use qemu::fabric::{Fabric, FabricConfig};
use qemu::linux::Release;
use std::path::{Path, PathBuf};

/// Machines with a card each; all cards are in one process and, unless they say otherwise, on its switch.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whose kernel and programs the machines have.
    pub release: Release,
    /// A machine per card.
    pub cards: Vec<CardConfig>,
    /// Further machines with rdma_rxe. If there are such, or an appliance, all cables go to a fabric outside.
    pub rxe: usize,
    /// The card of a further machine, which steps boot: an appliance.
    pub appliance: Option<CardConfig>,
    /// Whether cards have InfiniBand ports, whose cables are in the switch of `cx3` even if there is a fabric outside. Machines have
    /// TCP on that then.
    pub infiniband: bool,
    /// What the switch or fabric between them does to frames.
    pub faults: Faults,
    /// Parameters of kernel modules: `MODULE.NAME=VALUE`.
    pub module_parameters: Vec<String>,
    /// Whether the machines load the drivers at their start.
    pub load: bool,
    /// Whether they come back from a reboot.
    pub reboots: bool,
    /// Further Debian packages that they have.
    pub packages: &'static [&'static str],
    /// Files in each: the path there, and the file here.
    pub files: Vec<(String, PathBuf)>,
    /// Memory of each, in MiB.
    pub memory_mib: u32,
    /// Largest IP packet on the cards' Ethernet interfaces, in bytes.
    pub mtu: u16,
    /// Processors of each.
    pub cpus: u32,
    /// The committed record that what the drivers do is held against; the new one (`cx3 --record`) is left beside the log.
    pub record: Option<&'static str>,
    /// What `cx3` logs, as in `RUST_LOG`.
    pub log_level: String,
}

impl Default for Plan {
    /// Two machines of the host's release on cards of the first profile.
    fn default() -> Self {
        Self {
            release: Release::Host,
            cards: vec![CardConfig::default(); 2],
            rxe: 0,
            appliance: None,
            infiniband: false,
            faults: Faults::default(),
            module_parameters: Vec::new(),
            load: true,
            reboots: false,
            packages: &[],
            files: Vec::new(),
            memory_mib: 384,
            mtu: 4200,
            cpus: 1,
            record: None,
            log_level: "warn".into(),
        }
    }
}

impl Plan {
    /// How many machines there are.
    pub fn machines(&self) -> usize {
        self.cards.len() + self.rxe
    }

    /// A fabric with a port per machine, if one is needed.
    pub fn fabric(&self, dir: &Path) -> Result<Option<Fabric>> {
        if self.rxe == 0 && self.appliance.is_none() {
            return Ok(None);
        }
        let config = FabricConfig {
            ports: self.machines() + usize::from(self.appliance.is_some()),
            dir: dir.to_owned(),
            faults: self.faults,
            seed: 1,
            pcap: None,
        };
        Fabric::start(&config).map(Some)
    }
}
