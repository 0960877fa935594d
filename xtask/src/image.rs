//! The appliance's kernel image: built by a cargo invocation of its own, and checked.

use crate::{paths, setup, tool, ui};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The largest stripped image, in bytes: 1.5 MB.
pub const SIZE_BUDGET: u64 = 1_500_000;

/// A built image.
#[derive(Clone)]
pub struct Image {
    /// The ELF file with symbols: what QEMU loads and backtraces are read with.
    pub elf: PathBuf,
    /// Its size without symbols, in bytes.
    pub stripped_bytes: u64,
}

impl Image {
    /// Prints where it is and how large.
    pub fn describe(&self) {
        let (size, budget) = (ui::bytes(self.stripped_bytes), ui::bytes(SIZE_BUDGET));
        println!("{}: {size} stripped, of {budget} allowed", self.elf.display());
    }
}

/// Builds the image, once in a process, and checks that it calls no Linux and is small enough.
pub fn build() -> Result<Image> {
    build_with(tool::run_visible)
}

/// As [`build`], the compiler being run by `run`.
pub fn build_with(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    static BUILT: OnceLock<Image> = OnceLock::new();
    if let Some(image) = BUILT.get() {
        return Ok(image.clone());
    }
    let image = build_anew(run)?;
    Ok(BUILT.get_or_init(|| image).clone())
}

fn build_anew(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    setup::binutils()?;
    run(cargo("build").arg("--release")).context("the kernel does not build")?;
    let elf = elf();
    // Checked once per image: disassembling takes longer than everything else when nothing has changed.
    let checked = paths::state()?.join("image-checked");
    let stamp = stamp(&elf)?;
    if std::fs::read_to_string(&checked).ok().as_deref() != Some(&stamp) {
        check_no_syscalls(&elf)?;
        std::fs::write(&checked, stamp)?;
    }
    let stripped_bytes = stripped_bytes(&elf)?;
    if stripped_bytes > SIZE_BUDGET {
        bail!("the stripped image has {stripped_bytes} bytes; {SIZE_BUDGET} are allowed");
    }
    Ok(Image { elf, stripped_bytes })
}

/// Builds the image with the suite of semantics among its applications, which never ships: its size does not matter, and it does
/// not replace the other. Gives its ELF file.
pub fn build_with_semantics(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    let mut command = cargo("build");
    run(command.args(["--profile", "tested", "--features", "semantics"]))
        .context("the kernel does not build with the suite of semantics")?;
    Ok(target().join("tested/ferrolite"))
}

/// The kernel's own target directory: it shares a target triple with host crates and must share nothing else.
pub fn target() -> PathBuf {
    paths::target().join("kernel")
}

/// Cargo for the kernel's workspace.
pub fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(subcommand).current_dir(paths::root().join("kernel")).env("CARGO_TARGET_DIR", target());
    // What this cargo was told for the host workspace is not for the kernel.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

fn elf() -> PathBuf {
    target().join("release/ferrolite")
}

/// Changes whenever the image does.
fn stamp(elf: &Path) -> Result<String> {
    let meta = std::fs::metadata(elf).with_context(|| format!("no kernel image {}", elf.display()))?;
    Ok(format!("{} {:?}", meta.len(), meta.modified()?))
}

/// A crate that calls Linux links without complaint and would fault at run time.
fn check_no_syscalls(elf: &Path) -> Result<()> {
    let listing = tool::output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(elf))?;
    let listing = String::from_utf8_lossy(&listing);
    match first_syscall(&listing) {
        Some(function) => bail!("the kernel contains a `syscall` instruction, in {function}"),
        None => Ok(()),
    }
}

/// The function that the first `syscall` instruction of a disassembly is in.
fn first_syscall(listing: &str) -> Option<&str> {
    let mut function = "an unnamed function";
    for line in listing.lines() {
        if line.ends_with(">:") {
            function = line.split_once('<').map_or(line, |(_, name)| name.trim_end_matches(">:"));
        }
        if line.split_whitespace().nth(1) == Some("syscall") {
            return Some(function);
        }
    }
    None
}

fn stripped_bytes(elf: &Path) -> Result<u64> {
    let stripped = elf.with_extension("stripped");
    tool::output(Command::new("strip").arg("-o").arg(&stripped).arg(elf))?;
    Ok(std::fs::metadata(stripped)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_syscalls_but_not_their_names() {
        let clean = "0000000000101000 <syscall_table>:\n  101000:\tcall   102000 <syscall>\n  101005:\tret\n";
        assert_eq!(first_syscall(clean), None);
        let dirty = format!("{clean}\n0000000000102000 <read>:\n  102000:\tsyscall\n");
        assert_eq!(first_syscall(&dirty), Some("read"));
    }
}
