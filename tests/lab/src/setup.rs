//! Prerequisites on the machine: QEMU, binutils, and the packages that build the bindings to libibverbs.

use crate::{apt, paths, tool, ui};
use anyhow::{Context, Result, bail};
use qemu::{OLDEST_QEMU, Qemu};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fails with the package to install if QEMU is missing and cannot be installed from here. Returns at once.
pub fn check_qemu_available() -> Result<()> {
    let (major, minor) = OLDEST_QEMU;
    if Qemu::find()?.is_none() && !apt::can_install() {
        bail!(
            "qemu-system-x86_64 {major}.{minor} or newer is missing; \
             install it with: sudo apt-get install --no-install-recommends qemu-system-x86"
        );
    }
    Ok(())
}

/// Returns the QEMU to use. Installs it if it is missing and that is possible.
pub fn qemu() -> Result<Qemu> {
    if let Some(qemu) = Qemu::find()? {
        return Ok(qemu);
    }
    check_qemu_available()?;
    ui::step("installing QEMU", || apt::install(&["qemu-system-x86"]))?;
    match Qemu::find()? {
        Some(qemu) => Ok(qemu),
        None => bail!("package qemu-system-x86 is installed, but qemu-system-x86_64 is not in PATH"),
    }
}

/// Returns a QEMU with vfio-user devices, for the emulated ConnectX-3: the machine's own, or one from
/// Debian's backports, unpacked beside the build.
pub fn vfio_user_qemu() -> Result<Qemu> {
    if let Ok(Some(qemu)) = Qemu::find()
        && qemu.has_vfio_user()?
    {
        return Ok(qemu);
    }
    let cache = paths::target().join("qemu");
    let unpacked = ui::step("QEMU with vfio-user devices", || Qemu::unpacked(&cache));
    unpacked.context("no QEMU >= 10.1 with vfio-user devices")
}

/// Ensures that `objdump` and `strip` exist, which come with the linker that Rust needs.
pub fn binutils() -> Result<()> {
    if tool::exists("objdump") && tool::exists("strip") {
        return Ok(());
    }
    if !apt::can_install() {
        bail!("objdump is missing; install it with: sudo apt-get install binutils");
    }
    ui::step("installing binutils", || apt::install(&["binutils"]))
}

/// Ensures that programs exist, each given with the Debian package that has it.
pub fn programs(wanted: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> =
        wanted.iter().filter(|(program, _)| !tool::exists(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !apt::can_install() {
        bail!("programs are missing; install them with: sudo apt-get install {packages}");
    }
    ui::step(&format!("installing {packages}"), || apt::install(&missing))
}

/// Returns true if valgrind exists, after an attempt to install it.
pub fn valgrind() -> bool {
    if !tool::exists("valgrind") && apt::can_install() {
        // An error means that the package cannot be had here.
        let _ = ui::step("installing valgrind", || apt::install(&["valgrind"]));
    }
    tool::exists("valgrind")
}

/// Ensures that the bindings to libibverbs (the feature `ibverbs/libibverbs`) can be built: they need cmake,
/// and libclang with its headers. libibverbs itself is only needed at run time.
pub fn bindings() -> Result<()> {
    let mut missing = Vec::new();
    if !tool::exists("cmake") {
        missing.push("cmake");
    }
    if !has_libclang() {
        missing.push("libclang-dev");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing_list = missing.join(" ");
    if !apt::can_install() {
        bail!(
            "{missing_list} missing; install with: sudo apt-get install --no-install-recommends {missing_list}"
        );
    }
    ui::step("installing cmake and libclang", || apt::install(&missing))
}

/// Ensures that the manager can be built with etcd: that needs protoc, and the files that belong to it.
pub fn protobuf() -> Result<()> {
    let mut missing = Vec::new();
    if !tool::exists("protoc") {
        missing.push("protobuf-compiler");
    }
    if !Path::new("/usr/include/google/protobuf/descriptor.proto").exists() {
        missing.push("libprotobuf-dev");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !apt::can_install() {
        bail!("{list} missing; install with: sudo apt-get install --no-install-recommends {list}");
    }
    ui::step(&format!("installing {list}"), || apt::install(&missing))
}

/// Returns true if libclang is where bindgen looks for it: in `LIBCLANG_PATH`, or among the libraries of the
/// system or of LLVM.
fn has_libclang() -> bool {
    let named = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let llvm = subdirectories("/usr/lib").filter(|dir| dir.join("lib").is_dir()).map(|dir| dir.join("lib"));
    let dirs =
        named.into_iter().chain([PathBuf::from("/usr/lib64")]).chain(subdirectories("/usr/lib")).chain(llvm);
    dirs.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten()).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        (name.starts_with("libclang.so") || name.starts_with("libclang-"))
            && name.contains(".so")
            && !name.starts_with("libclang-cpp")
    })
}

fn subdirectories(dir: &str) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

/// Ensures that the toolchain has Clippy and rustfmt, for the tests.
pub fn components() -> Result<()> {
    for (component, subcommand) in [("clippy", "clippy"), ("rustfmt", "fmt")] {
        if tool::output(Command::new("cargo").args([subcommand, "--version"])).is_ok() {
            continue;
        }
        if !tool::exists("rustup") {
            bail!("cargo {subcommand} is missing; install the toolchain's component {component}");
        }
        let what = format!("installing {component}");
        ui::step(&what, || tool::output(Command::new("rustup").args(["component", "add", component])))?;
    }
    Ok(())
}
