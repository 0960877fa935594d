//! `cargo xtask doctor`: describes a ConnectX-3 of this Linux host from sysfs, and what an appliance would do
//! with it. It writes nothing and does not access the card.

mod report;
mod sysfs;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail, ensure};
use clap::Args;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use sysfs::Function;

const VENDOR: u16 = 0x15b3;
/// The PCI device ids of the cards, with names.
const CARDS: [(u16, &str, Kind); 3] = [
    (0x1003, "ConnectX-3", Kind::Physical { pro: false }),
    (0x1007, "ConnectX-3 Pro", Kind::Physical { pro: true }),
    (0x1004, "virtual function of a ConnectX-3 or ConnectX-3 Pro", Kind::Virtual),
];

/// The card, and the location of sysfs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PCI address of the card, as lspci prints it: `[DOMAIN:]BUS:DEVICE.FUNCTION`
    #[arg(long, value_name = "ADDRESS")]
    pci: String,
    /// Directory where sysfs is mounted
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
}

/// Prints the findings.
pub(crate) fn doctor(options: &Options) -> Result<()> {
    let address = sysfs::address(&options.pci)?;
    print!("{}", examine(&options.sysfs, &address)?);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Physical { pro: bool },
    Virtual,
}

/// Returns the report about the function at `address`.
fn examine(sysfs: &Path, address: &str) -> Result<String> {
    let dir = sysfs.join("bus/pci/devices").join(address);
    ensure!(dir.exists(), "there is no PCI function {address} on this host: no {}", dir.display());
    let function = Function { dir, address: address.to_owned() };
    let (vendor, device) = (function.number("vendor")?, function.number("device")?);
    let card = CARDS.iter().find(|(number, ..)| (vendor, device) == (VENDOR, *number));
    let Some((_, name, kind)) = card else {
        bail!("PCI function {address} is {vendor:04x}:{device:04x}, not a ConnectX-3 or ConnectX-3 Pro");
    };
    let mut report = String::new();
    let mut problems = Vec::new();
    writeln!(report, "card:       Mellanox {name} ({vendor:04x}:{device:04x}) at {address}")?;
    report::describe_bus(&function, *kind, &mut report, &mut problems)?;
    report::describe_ports(&function, &mut report)?;
    report::describe_host(&function, sysfs, *kind, &mut report, &mut problems)?;
    writeln!(report, "\nnic=mlx4 on it would:")?;
    for step in outcome(*kind) {
        writeln!(report, "  - {step}")?;
    }
    if problems.is_empty() {
        writeln!(report, "\nready to be passed through:\n  -device vfio-pci,host={address}")?;
    } else {
        writeln!(report, "\nto be done first:")?;
        for problem in problems {
            writeln!(report, "  - {problem}")?;
        }
    }
    Ok(report)
}

/// Returns the steps that the driver would take.
fn outcome(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Physical { pro: true } => &[
            "reset it, and bring it up with memory for its tables of less than 512 KiB, and 3 MiB with 256 peers",
            "open its first port: RoCE v2 and RoCE v1 on Ethernet, or InfiniBand once a subnet manager has given it a LID (not tried on an appliance yet)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
        Kind::Physical { pro: false } => &[
            "reset it, and bring it up with memory for its tables of less than 512 KiB, and 3 MiB with 256 peers",
            "open its first port: RoCE v1 on Ethernet (no RoCE v2: peers that have nothing else are refused), or InfiniBand once a subnet manager has given it a LID (not tried on an appliance yet)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
        Kind::Virtual => &[
            "ask its master for queue pairs, keys and completion queues; no reset of the card",
            "use RoCE v1 (a master lets its virtual functions have no RoCE v2)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
    }
}
