//! The boot files themselves: programs of others accept them.

use super::tools::Tools;
use super::trial::Trial;
use super::with_tools;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, anyhow, ensure};
use lab::tool;
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The longest silence, builds included.
pub(super) const LIMIT: Duration = Duration::from_secs(900);
/// The formats of `cargo xtask image`.
pub(super) const FORMATS: [&str; 6] = ["elf", "efi", "iso", "disk", "pxe", "uki"];
/// The most bytes that the universal file may have more than the ELF file.
const MOST_OVER_ELF: u64 = 20 << 10;
/// The start of the partition in the disk, in bytes.
const PARTITION: usize = 1 << 20;
/// The memory of the virtual machine into which the monitors' loader loads, in bytes.
const MEMORY: usize = 64 << 20;

pub(super) fn cases(full: bool) -> Vec<Case> {
    vec![
        Case::new("boot::files-load-by-linux-loader", |log| monitors(log).map(|()| Outcome::Passed)),
        with_tools("files-are-accepted-by-other-programs", full, accepted).full_if(true),
    ]
}

/// Makes a boot file in a directory, and returns its path.
fn image(format: &str, dir: &Path, log: &Path) -> Result<PathBuf> {
    let out = dir.join(format);
    tool::run_ok(xtask().args(["image", "--format", format, "--out"]).arg(&out), log, LIMIT)?;
    let made = fs::read_dir(&out)?.next().context("cargo xtask image has written nothing")?;
    Ok(made?.path())
}

/// Returns the files below a path, by name.
pub(super) fn contents(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if path.is_file() {
        return Ok(BTreeMap::from([(name, fs::read(path)?)]));
    }
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let below = contents(&entry?.path())?;
        all.extend(below.into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
    }
    Ok(all)
}

/// Loads both files by the crate that Firecracker and cloud-hypervisor use.
fn monitors(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (elf, efi) = (image("elf", dir.path(), log)?, image("efi", dir.path(), log)?);
    let sizes = [&elf, &efi].map(|path| fs::metadata(path).map(|meta| meta.len()));
    let [elf_len, efi_len] = sizes;
    let (elf_len, efi_len) = (elf_len?, efi_len?);
    ensure!(
        efi_len <= elf_len + MOST_OVER_ELF,
        "ferrolite.efi has {} bytes more than the ELF file",
        efi_len - elf_len
    );
    let memory = || GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]);
    let loaded = Elf::load(&memory()?, None, &mut File::open(elf)?, None)?;
    let PvhBootCapability::PvhEntryPresent(entry) = loaded.pvh_boot_cap else {
        return Err(anyhow!("linux-loader finds no entry of PVH"));
    };
    ensure!((loaded.kernel_load.0..loaded.kernel_end).contains(&entry.0), "the entry is {entry:?}");
    let loaded = BzImage::load(&memory()?, None, &mut File::open(efi)?, None)?;
    let header = loaded.setup_header.context("linux-loader finds no setup header")?;
    // Fields of a packed structure are copied.
    let (version, start) = (header.version, header.code32_start);
    ensure!(version == 0x20f && start == 0x10_0000, "version {version:#x}, code32_start {start:#x}");
    Ok(())
}

/// Shows the files to the programs that people use for such files.
fn accepted(tools: &Tools, log: &Path) -> Result<()> {
    let trial = Trial::new(tools, log)?;
    let dir = trial.directory("formats")?;
    let run = |program: &str, arguments: &[&Path], options: &[&str]| -> Result<String> {
        let mut command = tools.command(program)?;
        tool::run_ok(command.args(options).args(arguments), log, LIMIT)
    };
    let efi = image("efi", &dir, log)?;
    let said = run("file", &[&efi], &["-b"])?;
    ensure!(said.contains("Linux kernel x86 boot executable bzImage, version 0."), "file says: {said}");
    let (key, certificate) = super::secure::keys(&trial)?;
    let paths = [&key, &certificate].map(|path| path.to_string_lossy().into_owned());
    let signed = trial.image("efi", &["--sign", &paths[0], &paths[1]])?;
    run("sbverify", &[&certificate, &signed], &["--cert"])?;
    let iso = image("iso", &dir, log)?;
    let mut xorriso = tools.command("xorriso")?;
    xorriso.arg("-indev").arg(&iso).args(["-report_el_torito", "plain", "-report_system_area", "plain"]);
    let said = tool::run_ok(&mut xorriso, log, LIMIT)?;
    for text in ["BIOS  y   none", "UEFI  y   none", "boot-info-table isohybrid-suitable", "/EFI.IMG"] {
        ensure!(said.contains(text), "xorriso does not say `{text}`: {said}");
    }
    let disk = image("disk", &dir, log)?;
    let said = run("sgdisk", &[&disk], &["-v"])?;
    ensure!(said.contains("No problems found"), "sgdisk says: {said}");
    let partition = dir.join("partition");
    let bytes = fs::read(&disk)?;
    fs::write(&partition, bytes.get(PARTITION..bytes.len() - PARTITION).context("the disk is cut")?)?;
    run("fsck.vfat", &[&partition], &["-n"])?;
    Ok(())
}
