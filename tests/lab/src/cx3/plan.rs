//! The plan of a lab.

use anyhow::Result;
use fabric::{Fabric, FabricConfig};
use netfault::Faults;
use qemu::cx3::CardConfig;
use qemu::linux::Release;
use std::path::{Path, PathBuf};

/// Machines with a card each. All cards are in one process and, by default, on its switch.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The release of the machines' kernel and programs.
    pub release: Release,
    /// The cards, one machine each.
    pub cards: Vec<CardConfig>,
    /// The number of further machines, with rdma_rxe. If there are any, or an appliance, all cables lead to
    /// an external fabric.
    pub rxe: usize,
    /// The card of an appliance, a further machine that test steps boot.
    pub appliance: Option<CardConfig>,
    /// True if cards have InfiniBand ports, whose cables end in the switch of `cx3` even if there is an
    /// external fabric. The machines then use that fabric for TCP.
    pub infiniband: bool,
    /// Faults that the switch or fabric applies to frames.
    pub faults: Faults,
    /// Parameters of kernel modules, as `MODULE.NAME=VALUE`.
    pub module_parameters: Vec<String>,
    /// True if the machines load the drivers when they boot.
    pub load: bool,
    /// True if the machines come back after a reboot.
    pub reboots: bool,
    /// Further Debian packages in the machines.
    pub packages: &'static [&'static str],
    /// Files in each machine: the path there, and the file on the host.
    pub files: Vec<(String, PathBuf)>,
    /// Memory of each machine, in MiB.
    pub memory_mib: u32,
    /// The largest IP packet on the cards' Ethernet interfaces, in bytes.
    pub mtu: u16,
    /// Processors of each machine.
    pub cpus: u32,
    /// The committed record with which the drivers' actions are compared. The new record (`cx3 --record`) is
    /// written beside the log.
    pub record: Option<&'static str>,
    /// The log filter of `cx3`, as in `RUST_LOG`.
    pub log_level: String,
}

impl Default for Plan {
    /// Returns two machines of the host's release on cards of the first profile.
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
    /// Returns the number of machines.
    pub fn machines(&self) -> usize {
        self.cards.len() + self.rxe
    }

    /// Returns a fabric with one port per machine, if the plan needs one.
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
