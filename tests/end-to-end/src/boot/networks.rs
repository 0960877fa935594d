//! Loaders on a network: PXE.

use super::disks::place;
use super::trial::{Medium, Trial};
use anyhow::Result;
use qemu::vm::Nic;
use std::fs;
use std::path::PathBuf;

/// The address of QEMU's TFTP server.
const SERVER: &str = "tftp://10.0.2.2";

/// pxelinux, which the ROM of the network card starts.
pub(super) fn pxelinux(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let tftp = served(trial)?;
    trial.tools.copy("usr/lib/PXELINUX/pxelinux.0", &tftp.join("pxelinux.0"))?;
    trial.tools.copy("usr/lib/syslinux/modules/bios/ldlinux.c32", &tftp.join("ldlinux.c32"))?;
    fs::create_dir_all(tftp.join("pxelinux.cfg"))?;
    let config = format!(
        "DEFAULT ferrolite\nLABEL ferrolite\n  LINUX ferrolite.efi\n  INITRD key\n  APPEND {}\n",
        trial.words()?
    );
    fs::write(tftp.join("pxelinux.cfg/default"), config)?;
    netboot(trial, machine, tftp, "pxelinux.0", Some("pxe-virtio.rom"))
}

/// iPXE as the ROM of the network card, with a script.
pub(super) fn ipxe(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let tftp = served(trial)?;
    let script = format!(
        "#!ipxe\nkernel {SERVER}/ferrolite.efi initrd=key {}\ninitrd {SERVER}/key\nboot\n",
        trial.words()?
    );
    fs::write(tftp.join("boot.ipxe"), script)?;
    netboot(trial, machine, tftp, "boot.ipxe", Some("efi-virtio.rom"))
}

/// The tree of `--format pxe`: pxelinux for a BIOS; UEFI loads the boot file itself, without a loader.
pub(super) fn image_pxe(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let tftp = trial.image_with_all("pxe")?;
    if machine.is_efi() {
        return netboot(trial, machine, tftp, "ferrolite.efi", None);
    }
    netboot(trial, machine, tftp, "pxelinux.0", Some("pxe-virtio.rom"))
}

/// Returns a directory with the boot file and the key.
fn served(trial: &Trial<'_>) -> Result<PathBuf> {
    let tftp = trial.directory("tftp")?;
    place(&trial.image("efi", &[])?, &tftp, "ferrolite.efi")?;
    place(trial.key(), &tftp, "key")?;
    Ok(tftp)
}

fn netboot(
    trial: &Trial<'_>,
    mut machine: Medium,
    tftp: PathBuf,
    file: &str,
    rom: Option<&str>,
) -> Result<Medium> {
    let rom = rom.map(|rom| trial.tools.path(&format!("usr/lib/ipxe/qemu/{rom}"))).transpose()?;
    machine.nic = Nic::Netboot { tftp, file: file.to_owned(), rom };
    Ok(machine)
}
