//! The RDMA devices of the appliances that a benchmark boots.

use super::gaps::Gaps;
use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use lab::cx3::Tools;
use lab::perftest::plan::Device;
use serde::Serialize;
use std::fmt;

/// An RDMA device of the appliances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Nic {
    /// RoCE in software
    Softroce,
    /// An emulated ConnectX-3
    Cx3,
}

impl Nic {
    /// Returns the path MTU that LITE uses, in bytes: the greatest that frames of the device have room for.
    pub(super) fn mtu(self) -> u32 {
        match self {
            Self::Softroce => 4096,
            Self::Cx3 => 1024,
        }
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Softroce => "softroce",
            Self::Cx3 => "cx3",
        })
    }
}

/// Returns the selected devices: all if `nics` is empty, but the card only if there are programs for it.
pub(super) fn devices<'a>(nics: &[Nic], tools: Option<&'a Tools>) -> Vec<(Nic, Device<'a>)> {
    let selected = |nic: &&Nic| nics.is_empty() || nics.contains(nic);
    let device = |nic: &Nic| match nic {
        Nic::Softroce => Some((*nic, Device::SoftRoce)),
        Nic::Cx3 => Some((*nic, Device::Cx3(tools?))),
    };
    Nic::value_variants().iter().filter(selected).filter_map(device).collect()
}

/// Returns the programs for the emulated card, unless only the other device is selected. Their lack is an
/// error if the card is selected by name, and else a gap.
pub(super) fn tools(nics: &[Nic], gaps: &mut Gaps) -> Result<Option<Tools>> {
    let get = || Tools::to_measure()?.map_err(|why| anyhow!("{why}"));
    if nics.contains(&Nic::Cx3) {
        return get().context("--nic cx3").map(Some);
    }
    if nics.is_empty() { gaps.attempt("the emulated ConnectX-3", get) } else { Ok(None) }
}
