//! The machines of a lab, and the network between them.

use crate::appliances::RdmaNic;
use crate::cx3::Tools;
use crate::setup;
use anyhow::Result;
use qemu::Qemu;
use qemu::cx3::{CardConfig, Cx3, Cx3Config};
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
    /// Returns true if frames pass through the fabric, which can lose and capture them.
    pub(super) const fn is_on_fabric(self) -> bool {
        matches!(self, Self::SoftRoce)
    }

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
    /// lead to the program's own switch: on the fabric, each frame would wake two more threads.
    pub(super) fn cards(self, count: u16, dir: &Path) -> Result<Option<Cx3>> {
        let Self::Cx3(tools) = self else { return Ok(None) };
        let card = CardConfig::profile(self.nic().profile().unwrap_or_default());
        let config = Cx3Config {
            cards: vec![card; count.into()],
            log_level: "warn".into(),
            ..Cx3Config::new(dir.to_owned(), 0, dir.join("cx3.log"))
        };
        Cx3::start(&tools.program, &config).map(Some)
    }
}
