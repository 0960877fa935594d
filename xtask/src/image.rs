//! The appliance's kernel image: built by a cargo invocation of its own, and checked.

mod contents;
mod size;

pub use contents::{Apps, Contents, Heap};
pub use size::{BUDGET, check as check_size};

use crate::{paths, setup, tool, ui};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// `cargo xtask build`: what the image shall have.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Applications of the image, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST")]
    apps: Option<Apps>,
    /// Bytes without symbols beyond which a warning is printed [default: 2500000 with word count alone, otherwise 4000000]
    #[arg(long, value_name = "BYTES")]
    budget: Option<u64>,
}

/// A built image.
#[derive(Clone)]
pub struct Image {
    /// The ELF file with symbols: what QEMU loads and backtraces are read with.
    pub elf: PathBuf,
    /// Its size without symbols, in bytes.
    pub stripped_bytes: u64,
    /// What that should not exceed.
    pub budget: u64,
}

impl Image {
    /// Warns if it is larger than it should be.
    fn warn(&self) {
        if let Some(excess) = size::excess(self.stripped_bytes, self.budget) {
            eprintln!("warning: {excess}");
        }
    }
}

/// Builds the image that the options ask for; prints where it is and how large.
pub fn build_command(options: &Options) -> Result<()> {
    let mut image =
        build_quietly(&Contents::with(options.apps.clone().unwrap_or_default()), tool::run_visible)?;
    image.budget = options.budget.unwrap_or(image.budget);
    image.warn();
    let (size, budget) = (ui::bytes(image.stripped_bytes), ui::bytes(image.budget));
    println!("{}: {size} without symbols, of {budget}", image.elf.display());
    Ok(())
}

/// Builds the image that ships, once in a process, and checks that it calls no Linux. Warns if it is larger than it should be.
pub fn build() -> Result<Image> {
    build_of(&Contents::default())
}

/// Builds the image that tests and measurements boot for the kernel's self-tests, which that which ships does not have.
pub fn build_for_tests() -> Result<Image> {
    build_of(&Contents::tests())
}

/// As [`build`], an image of these contents.
pub fn build_of(contents: &Contents) -> Result<Image> {
    let image = build_quietly(contents, tool::run_visible)?;
    if !contents.tests {
        image.warn();
    }
    Ok(image)
}

/// As [`build_of`], the compiler being run by `run`, and without a warning.
pub fn build_quietly(contents: &Contents, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    static BUILT: Mutex<BTreeMap<String, Image>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(image) = built.get(&contents.name()) {
        return Ok(image.clone());
    }
    let image = build_anew(contents, run)?;
    built.insert(contents.name(), image.clone());
    Ok(image)
}

fn build_anew(contents: &Contents, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    setup::binutils()?;
    let dir = paths::made(target().join("images").join(contents.name()))?;
    // Cargo gives all contents the same file name: nobody else may build between here and the copy.
    let lock = File::create(target().join("images.lock"))?;
    lock.lock()?;
    let mut cargo = cargo("build");
    cargo.args(["--release", "--no-default-features", "--features", &contents.features()]);
    run(&mut cargo).with_context(|| format!("the kernel does not build ({})", contents.name()))?;
    let built = target().join("release/ferrolite");
    let elf = dir.join("ferrolite");
    // Checked once per image: disassembling takes longer than everything else when nothing has changed.
    let (checked, stamp) = (dir.join("checked"), stamp(&built)?);
    if std::fs::read_to_string(&checked).ok().as_deref() != Some(&stamp) || !elf.exists() {
        replace(&built, &elf)?;
        check_no_syscalls(&elf)?;
        std::fs::write(&checked, stamp)?;
    }
    Ok(Image { stripped_bytes: size::stripped(&elf)?, elf, budget: contents.budget() })
}

/// Copies a file to where a machine may be booting from another: at once, or not at all.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let next = to.with_extension("next");
    std::fs::copy(from, &next).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&next, to).with_context(|| format!("cannot make {}", to.display()))
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

/// Changes whenever the image does.
fn stamp(elf: &Path) -> Result<String> {
    let meta = std::fs::metadata(elf).with_context(|| format!("no kernel image {}", elf.display()))?;
    Ok(format!("{} {:?}", meta.len(), meta.modified()?))
}

/// What only self-tests have in their names: of their functions, of their files, and of the key of the command line.
const OF_SELF_TESTS: &[u8] = b"selftest";

/// Whether an image has the kernel's self-tests: symbols, debugging information, and text count, so that nothing hides them.
pub fn has_self_tests(elf: &Path) -> Result<bool> {
    let bytes = std::fs::read(elf).with_context(|| format!("no image {}", elf.display()))?;
    Ok(bytes.windows(OF_SELF_TESTS.len()).any(|part| part == OF_SELF_TESTS))
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
