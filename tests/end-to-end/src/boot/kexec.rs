//! kexec: a running Linux, whose network cards are in use, starts the boot file.

use super::trial::Trial;
use super::with_tools;
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use fabric::Plug;
use lab::cluster::Lab;
use lab::cx3;
use qemu::linux::{Guest, GuestConfig, Network, Release};
use std::path::Path;
use std::time::Duration;

/// The longest time for Linux to start, and for a command, on a busy host.
const BOOT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(120);
/// The time after which a command that does not return is given up.
const GONE: Duration = Duration::from_secs(2);
/// Succeeds if Linux has turned an IOMMU on, and both network cards are behind it
/// (`VIRTIO_F_ACCESS_PLATFORM`).
const BEHIND_IOMMU: &str = "test -e /sys/class/iommu/dmar0 && ls /sys/kernel/iommu_groups/0 \
    && test 2 = $(grep -l '^.\\{33\\}1' /sys/bus/virtio/devices/*/features | wc -l)";

/// A system call of kexec.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) name: &'static str,
    option: &'static str,
    release: Release,
    /// True if Linux has turned an IOMMU on, and its network cards are behind it.
    iommu: bool,
    /// The memory of the machine. Linux puts a file as high as it can.
    memory_mib: u32,
    /// The least address at which the stub must find itself, and the greatest.
    at: (u64, u64),
    /// True if free memory is watched after it, too.
    pub(super) canary: bool,
}

const FOUR_GIB: u64 = 1 << 32;
/// Linux 6.1 by `kexec_load`.
const LOAD: Call = Call {
    name: "load",
    option: "-c",
    release: Release::Host,
    iommu: false,
    memory_mib: 1024,
    at: (0, FOUR_GIB),
    canary: false,
};
const FILE_LOAD: Call = Call { name: "file-load", option: "-s", ..LOAD };
const TRIXIE: Call = Call { name: "load-6.12", release: Release::Trixie, ..LOAD };
pub(super) const CALLS: [Call; 7] = [
    LOAD,
    Call { name: "load-iommu", iommu: true, canary: true, ..LOAD },
    Call { name: "load-above-4G", memory_mib: 6144, at: (FOUR_GIB, u64::MAX), canary: true, ..LOAD },
    FILE_LOAD,
    TRIXIE,
    Call { name: "file-load-6.12", option: "-s", ..TRIXIE },
    Call { name: "load-6.12-iommu", iommu: true, canary: true, ..TRIXIE },
];

pub(super) fn cases(full: bool) -> Vec<Case> {
    let case = |call: Call| {
        let check = move |tools: &super::Tools, log: &Path| starts(&Trial::new(tools, log)?, call);
        with_tools(&format!("kexec-{}", call.name), full, check).full_if(true)
    };
    CALLS.into_iter().map(case).collect()
}

/// Boots Linux, and from it the boot file, which joins and counts words.
fn starts(trial: &Trial<'_>, call: Call) -> Result<()> {
    let guest = jump(trial, call, &trial.image("efi", &[])?, &trial.words()?)?;
    trial.counts_words(&["started by kexec (0xd0), 64-bit entry"])?;
    check_place(trial, call)?;
    guest.kill();
    Ok(())
}

/// Boots Linux, whose network cards are in use, and enters a boot file from it with these words.
pub(super) fn jump(trial: &Trial<'_>, call: Call, file: &Path, words: &str) -> Result<Guest> {
    let image = cx3::image(call.release, &["kexec-tools"])?;
    let network = Network::numbered(1, Plug::Stream(trial.fabric().socket(0).to_owned()));
    let config = GuestConfig {
        name: "linux".into(),
        memory_mib: call.memory_mib,
        network: Some(network),
        management: true,
        iommu: call.iommu,
        files: vec![("/ferrolite.efi".into(), file.to_owned()), ("/key".into(), trial.key().to_owned())],
        console: Some(trial.console_file()),
        boot_within: BOOT,
        ..GuestConfig::default()
    };
    let mut guest = Guest::boot(&Lab::get()?.qemu, &image, &config)?;
    if call.iommu {
        guest.check(BEHIND_IOMMU, SOON)?;
    }
    let load = format!("kexec {} -l /ferrolite.efi --initrd=/key --command-line='{words}'", call.option);
    guest.check(&load, SOON)?;
    // The command ends with the Linux that runs it.
    let gone = guest.run("kexec -e", GONE);
    ensure!(gone.is_err(), "kexec has returned: {gone:?}");
    Ok(guest)
}

/// Checks that Linux has put the boot file where the case wants it.
pub(super) fn check_place(trial: &Trial<'_>, call: Call) -> Result<()> {
    let place = trial.entered_at()?;
    ensure!((call.at.0..call.at.1).contains(&place), "the boot file was entered at {place:#x}");
    Ok(())
}

impl Trial<'_> {
    /// Returns the address at which the loader has put the boot file.
    fn entered_at(&self) -> Result<u64> {
        let console = self.console()?;
        let (_, rest) = console.rsplit_once("entered at 0x").context("no address of the boot file")?;
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        Ok(u64::from_str_radix(&digits, 16)?)
    }
}
