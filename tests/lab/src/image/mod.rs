//! The appliance's kernel image, built by its own cargo invocation, and its checks.

mod contents;
mod size;
mod stub;

pub use contents::{Apps, Contents, Heap};
pub use size::{BUDGET, check as check_size};
pub use stub::{stub, stub_cargo, test_loader};

use crate::{paths, setup, tool};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A built image.
#[derive(Clone)]
pub struct Image {
    /// The ELF file with symbols, which QEMU loads and which symbolises backtraces.
    pub elf: PathBuf,
    /// The size without symbols, in bytes.
    pub stripped_bytes: u64,
    /// The greatest intended size, in bytes.
    pub budget: u64,
}

impl Image {
    /// Prints a warning if the image is larger than its budget.
    pub fn warn(&self) {
        if let Some(excess) = size::excess(self.stripped_bytes, self.budget) {
            eprintln!("warning: {excess}");
        }
    }
}

/// Builds the shipped image, once per process, and checks that it makes no Linux system calls. Warns if it
/// exceeds its budget.
pub fn build() -> Result<Image> {
    build_of(&Contents::default())
}

/// Builds the image that tests and measurements boot. It contains the kernel's self-tests, which the shipped
/// image does not.
pub fn build_for_tests() -> Result<Image> {
    build_of(&Contents::tests())
}

/// Builds an image of these contents as [`build`] does.
pub fn build_of(contents: &Contents) -> Result<Image> {
    let image = build_quietly(contents, tool::run_visible)?;
    if !contents.tests {
        image.warn();
    }
    Ok(image)
}

/// Builds an image as [`build_of`] does, but runs the compiler by `run` and prints no warning.
pub fn build_quietly(contents: &Contents, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    static BUILT: Mutex<BTreeMap<String, Image>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(image) = built.get(&contents.name()) {
        return Ok(image.clone());
    }
    let image = rebuild(contents, run)?;
    built.insert(contents.name(), image.clone());
    Ok(image)
}

fn rebuild(contents: &Contents, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<Image> {
    setup::binutils()?;
    let dir = paths::made(target().join("images").join(contents.name()))?;
    // Cargo uses one file name for all contents: no other process may build between here and the copy.
    let lock = File::create(target().join("images.lock"))?;
    lock.lock()?;
    let mut cargo = cargo("build");
    cargo.args(["--release", "--no-default-features", "--features", &contents.features()]);
    run(&mut cargo).with_context(|| format!("the kernel does not build ({})", contents.name()))?;
    let built = target().join("release/ferrolite");
    let elf = dir.join("ferrolite.elf");
    // An image is checked once: disassembling it takes longest when nothing has changed.
    let (checked, stamp) = (dir.join("checked"), stamp(&built)?);
    if std::fs::read_to_string(&checked).ok().as_deref() != Some(&stamp) || !elf.exists() {
        replace(&built, &elf)?;
        check_no_syscalls(&elf)?;
        std::fs::write(&checked, stamp)?;
    }
    Ok(Image { stripped_bytes: size::stripped(&elf)?, elf, budget: contents.budget() })
}

/// Replaces a file from which a machine may be booting, atomically.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let next = to.with_extension("next");
    std::fs::copy(from, &next).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&next, to).with_context(|| format!("cannot make {}", to.display()))
}

/// Returns the kernel's own target directory. The kernel has the target triple of host crates, but must not
/// share their artifacts.
pub fn target() -> PathBuf {
    paths::target().join("kernel")
}

/// Returns cargo for the kernel's workspace.
pub fn cargo(subcommand: &str) -> Command {
    cargo_in("kernel", subcommand)
}

/// Returns cargo for a workspace that is linked without a C runtime.
fn cargo_in(workspace: &str, subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(subcommand).current_dir(paths::root().join(workspace)).env("CARGO_TARGET_DIR", target());
    // Variables of the host workspace's cargo must not reach the kernel's.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    // The workspace's own wrapper makes its files independent of directories.
    command.env_remove("RUSTC_WRAPPER").env_remove("CARGO_BUILD_RUSTC_WRAPPER");
    command
}

/// Returns a value that changes whenever the image does.
fn stamp(elf: &Path) -> Result<String> {
    let meta = std::fs::metadata(elf).with_context(|| format!("no kernel image {}", elf.display()))?;
    Ok(format!("{} {:?}", meta.len(), meta.modified()?))
}

/// A string that occurs only in the names of self-tests: of their functions, of their files, and of the
/// command line's key.
const OF_SELF_TESTS: &[u8] = b"selftest";

/// Returns true if an image contains the kernel's self-tests. Symbols, debugging information and text are
/// searched, so that none can be missed.
pub fn has_self_tests(elf: &Path) -> Result<bool> {
    let bytes = std::fs::read(elf).with_context(|| format!("no image {}", elf.display()))?;
    Ok(bytes.windows(OF_SELF_TESTS.len()).any(|part| part == OF_SELF_TESTS))
}

/// Fails if the image contains a system call: a crate that calls Linux links without an error but faults at
/// run time.
fn check_no_syscalls(elf: &Path) -> Result<()> {
    let listing = tool::output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(elf))?;
    let listing = String::from_utf8_lossy(&listing);
    match first_syscall(&listing) {
        Some(function) => bail!("the kernel contains a `syscall` instruction, in {function}"),
        None => Ok(()),
    }
}

/// Returns the function that contains the first `syscall` instruction of a disassembly.
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
