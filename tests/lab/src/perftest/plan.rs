//! The machines of a lab, and the network between them.

use crate::appliances::{RdmaNic, card_of};
use crate::cx3::Tools;
use crate::setup;
use anyhow::Result;
use fabric::Fabric;
use qemu::Qemu;
use qemu::cx3::{Cx3, Cx3Config};
use std::path::Path;

/// The machines and the network of a [`Lab`](super::lab::Lab).
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The RDMA devices of the appliances.
    pub device: Device<'a>,
    /// True if there is a Linux guest with rdma_rxe.
    pub linux: bool,
    /// Further words of the appliances' command lines.
    pub settings: &'a str,
    /// The seed that decides which frames are lost.
    pub seed: u64,
    /// The file for a capture of all frames as they were sent.
    pub pcap: Option<&'a Path>,
}

/// The RDMA devices of the appliances.
#[derive(Clone, Copy)]
pub enum Device<'a> {
    /// RoCE in software over virtio-net.
    SoftRoce,
    /// The usual emulated ConnectX-3, by these programs.
    Cx3(&'a Tools),
}

impl Default for Plan<'_> {
    /// Returns two appliances with SoftRoCE.
    fn default() -> Self {
        Self { device: Device::SoftRoce, linux: false, settings: "", seed: 1, pcap: None }
    }
}

impl Device<'_> {
    /// Returns the device of one appliance.
    pub(super) fn nic(self) -> RdmaNic {
        match self {
            Self::SoftRoce => RdmaNic::SoftRoce,
            Self::Cx3(_) => RdmaNic::USUAL,
        }
    }

    /// Returns the QEMU that has the device.
    pub(super) fn qemu(self) -> Result<Qemu> {
        match self {
            Self::SoftRoce => setup::qemu(),
            Self::Cx3(tools) => Ok(tools.qemu.clone()),
        }
    }

    /// Starts the program that serves the cards of `count` appliances, if the devices are cards. Their cables
    /// lead to the first ports of the fabric.
    pub(super) fn cards(self, count: u16, fabric: &Fabric, dir: &Path) -> Result<Option<Cx3>> {
        let Self::Cx3(tools) = self else { return Ok(None) };
        let config = Cx3Config {
            cards: (0..count).map(|port| card_of(&self.nic(), fabric, port)).collect(),
            log_level: "warn".into(),
            ..Cx3Config::new(dir.to_owned(), 0, dir.join("cx3.log"))
        };
        Cx3::start(&tools.program, &config).map(Some)
    }
}
