//! Loaders on disks and CDs, and QEMU's own.

use super::trial::{Medium, Trial};
use anyhow::{Context, Result, ensure};
use lab::{image, tool};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest silence of a program that makes a medium.
const LIMIT: Duration = Duration::from_secs(120);
/// The name that firmware looks for.
pub(super) const REMOVABLE: &str = "EFI/BOOT/BOOTX64.EFI";

/// QEMU's own loader: a part of the BIOS that reads fw_cfg, or UEFI's.
pub(super) fn kernel(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let (efi, words) = (trial.image("efi", &[])?, trial.words()?);
    Ok(machine.with("-kernel", efi).with("-initrd", trial.key()).with("-append", words))
}

/// A loader of this repository, in place of rust-hypervisor-firmware, which Debian does not have.
pub(super) fn test_loader(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let loader = image::test_loader(|cargo| tool::run_ok(cargo, trial.log, LIMIT).map(drop))?;
    let (efi, words) = (trial.image_with_all("efi")?, trial.words()?);
    Ok(machine.with("-kernel", loader).with("-initrd", efi).with("-append", words))
}

/// The boot file as the program that firmware starts from a FAT file system.
pub(super) fn bootx64(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let esp = trial.directory("esp")?;
    place(&trial.image_with_all("efi")?, &esp, REMOVABLE)?;
    Ok(directory(machine, &esp))
}

/// The disk of `--format disk`.
pub(super) fn image_disk(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    Ok(disk(machine, &trial.image_with_all("disk")?))
}

/// The CD of `--format iso`.
pub(super) fn image_cd(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    Ok(cd(machine, &trial.image_with_all("iso")?))
}

/// The CD of `--format iso` as a disk, as on a USB stick.
pub(super) fn image_usb(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    Ok(disk(machine, &trial.image_with_all("iso")?))
}

/// The unified kernel image of `--format uki`, which firmware starts.
pub(super) fn image_uki(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let esp = trial.directory("esp")?;
    place(&trial.image_with_all("uki")?, &esp, REMOVABLE)?;
    Ok(directory(machine, &esp))
}

/// A unified kernel image whose kernel says that it is of version 0: systemd's stub takes it for one that
/// knows no `LoadFile2`, and uses the handover entry.
pub(super) fn uki_with_handover(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    /// The offset of the image's version in the boot file: the PE header is at 0x40.
    const VERSION: usize = 0x40 + 24 + 44;
    /// The beginning of the kernel's code in the boot file, which the stub of systemd does not have.
    const MARK: &[u8] = b"Ferrolite's stub";
    const MARK_AT: usize = 0x11a0;
    let uki = trial.image_with_all("uki")?;
    let mut bytes = fs::read(&uki)?;
    let mark = bytes.windows(MARK.len()).position(|part| part == MARK).context("no kernel in the image")?;
    let version = bytes.get_mut(mark - MARK_AT + VERSION).context("the image is cut")?;
    ensure!(*version == 1, "the version is at another place");
    *version = 0;
    fs::write(&uki, bytes)?;
    let esp = trial.directory("esp")?;
    place(&uki, &esp, REMOVABLE)?;
    Ok(directory(machine, &esp))
}

/// GRUB on a CD.
pub(super) fn grub_cd(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    Ok(cd(machine, &grub_with_key(trial)?))
}

/// GRUB's CD as a disk.
pub(super) fn grub_disk(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    Ok(disk(machine, &grub_with_key(trial)?))
}

/// GRUB as an EFI program.
pub(super) fn grub_efi(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let esp = trial.directory("esp")?;
    let config = grub_tree(trial, &esp)?;
    let grub = esp.join(REMOVABLE);
    fs::create_dir_all(grub.parent().unwrap_or(&esp))?;
    let mut command = trial.tools.command("grub-mkimage")?;
    command.args(["-O", "x86_64-efi", "-p", "/boot/grub", "-d"]);
    command.arg(trial.tools.path("usr/lib/grub/x86_64-efi")?).arg("-c").arg(config);
    command.arg("-o").arg(&grub).args(["part_msdos", "fat", "linux", "normal"]);
    tool::run_ok(&mut command, trial.log, LIMIT)?;
    Ok(directory(machine, &esp))
}

/// GRUB of Debian 13 as an EFI program. It is one file, which looks for its configuration on the disk with
/// the file `.disk/info`, and starts kernels by the firmware.
pub(super) fn newer_grub_efi(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let esp = trial.directory("esp")?;
    grub_tree(trial, &esp)?;
    place(&trial.tools.newer("usr/lib/grub/x86_64-efi/monolithic/gcdx64.efi")?, &esp, REMOVABLE)?;
    fs::create_dir_all(esp.join(".disk"))?;
    fs::write(esp.join(".disk/info"), "")?;
    Ok(directory(machine, &esp))
}

/// systemd-boot, with an entry of type 1 of the Boot Loader Specification.
pub(super) fn systemd_boot(trial: &Trial<'_>, machine: Medium) -> Result<Medium> {
    let esp = trial.directory("esp")?;
    trial.tools.copy("usr/lib/systemd/boot/efi/systemd-bootx64.efi", &esp.join(REMOVABLE))?;
    place(&trial.image("efi", &[])?, &esp, "ferrolite.efi")?;
    place(trial.key(), &esp, "key")?;
    let entries = esp.join("loader/entries");
    fs::create_dir_all(&entries)?;
    fs::write(esp.join("loader/loader.conf"), "timeout 0\ndefault ferrolite.conf\n")?;
    let entry = format!("title Ferrolite\nlinux /ferrolite.efi\ninitrd /key\noptions {}\n", trial.words()?);
    fs::write(entries.join("ferrolite.conf"), entry)?;
    Ok(directory(machine, &esp))
}

/// Fills a directory with the boot file, the key and GRUB's configuration, whose path is returned.
fn grub_tree(trial: &Trial<'_>, tree: &Path) -> Result<PathBuf> {
    place(&trial.image("efi", &[])?, tree, "ferrolite.efi")?;
    place(trial.key(), tree, "key")?;
    let text = format!("set timeout=0\nlinux /ferrolite.efi {}\ninitrd /key\nboot\n", trial.words()?);
    let config = tree.join("boot/grub/grub.cfg");
    fs::create_dir_all(tree.join("boot/grub"))?;
    fs::write(&config, text)?;
    Ok(config)
}

/// Makes an image with the boot file, the key and GRUB, which a BIOS boots from a CD or a disk.
fn grub_with_key(trial: &Trial<'_>) -> Result<PathBuf> {
    let tree = trial.directory("tree")?;
    grub_tree(trial, &tree)?;
    rescue(trial, &tree)
}

/// The contents of an image with GRUB for a BIOS.
pub(super) struct GrubConfig<'a> {
    /// The boot file.
    pub(super) file: &'a Path,
    /// GRUB's commands before it loads the file.
    pub(super) before: &'a str,
    /// The command line of the kernel.
    pub(super) words: &'a str,
}

/// Makes an image with GRUB, which a BIOS boots from a CD or a disk.
pub(super) fn grub(trial: &Trial<'_>, config: &GrubConfig<'_>) -> Result<PathBuf> {
    let tree = trial.directory("tree")?;
    place(config.file, &tree, "ferrolite.efi")?;
    fs::create_dir_all(tree.join("boot/grub"))?;
    let GrubConfig { before, words, .. } = config;
    let text = format!("set timeout=0\n{before}\nlinux /ferrolite.efi {words}\nboot\n");
    fs::write(tree.join("boot/grub/grub.cfg"), text)?;
    rescue(trial, &tree)
}

/// Makes an image of a tree, as `grub-mkrescue` does.
fn rescue(trial: &Trial<'_>, tree: &Path) -> Result<PathBuf> {
    let iso = trial.path("grub.iso");
    let mut command = trial.tools.command("grub-mkrescue")?;
    command.arg("-d").arg(trial.tools.path("usr/lib/grub/i386-pc")?);
    command.args(["--locales=", "--themes=", "--fonts=", "--compress=no"]);
    command.arg("-o").arg(&iso).arg(tree);
    tool::run_ok(&mut command, trial.log, LIMIT)?;
    Ok(iso)
}

/// Copies a file into a tree.
pub(super) fn place(file: &Path, tree: &Path, name: &str) -> Result<()> {
    let to = tree.join(name);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}

fn drive(more: &str, file: &Path) -> OsString {
    format!("if=none,id=medium,readonly=on,{more},file={}", file.display()).into()
}

/// Adds a directory as a FAT file system.
pub(super) fn directory(machine: Medium, dir: &Path) -> Medium {
    let fat = format!("fat:{}", dir.display());
    machine
        .with("-drive", drive("format=raw", Path::new(&fat)))
        .with("-device", "virtio-blk-pci,drive=medium,bootindex=0")
}

/// Adds a directory as a FAT file system that is the second one in the order of boot devices: OVMF does not
/// look for file systems on others.
pub(super) fn second_directory(machine: Medium, dir: &Path) -> Medium {
    machine
        .with("-drive", format!("if=none,id=second,readonly=on,format=raw,file=fat:{}", dir.display()))
        .with("-device", "virtio-blk-pci,drive=second,bootindex=1")
}

/// Adds a disk.
pub(super) fn disk(machine: Medium, file: &Path) -> Medium {
    machine
        .with("-drive", drive("format=raw", file))
        .with("-device", "virtio-blk-pci,drive=medium,bootindex=0")
}

/// Adds a CD.
pub(super) fn cd(machine: Medium, file: &Path) -> Medium {
    machine
        .with("-drive", drive("format=raw,media=cdrom", file))
        .with("-device", "ide-cd,drive=medium,bootindex=0")
}
