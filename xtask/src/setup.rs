//! What must be on the machine: QEMU, binutils, and a text to count.

use crate::{apt, text, tool, ui};
use anyhow::{Result, bail};
use qemu::{OLDEST_QEMU, Qemu};
use std::process::Command;

/// Everything at once.
pub fn setup() -> Result<()> {
    let qemu = qemu()?;
    let (major, minor) = qemu.version;
    println!("QEMU {major}.{minor}");
    binutils()?;
    let text = text::default()?;
    println!("text: {} ({})", text.path.display(), text.about);
    Ok(())
}

/// The QEMU to use; installs it when it is missing and that is possible.
pub fn qemu() -> Result<Qemu> {
    if let Some(qemu) = Qemu::find()? {
        return Ok(qemu);
    }
    let (major, minor) = OLDEST_QEMU;
    if !apt::can_install() {
        bail!(
            "qemu-system-x86_64 {major}.{minor} or newer is missing; \
             install it with: sudo apt-get install --no-install-recommends qemu-system-x86"
        );
    }
    ui::step("installing QEMU", || apt::install(&["qemu-system-x86"]))?;
    match Qemu::find()? {
        Some(qemu) => Ok(qemu),
        None => bail!("package qemu-system-x86 is installed, but qemu-system-x86_64 is not in PATH"),
    }
}

/// `objdump` and `strip`, which come with the linker that Rust needs.
pub fn binutils() -> Result<()> {
    if tool::exists("objdump") && tool::exists("strip") {
        return Ok(());
    }
    if !apt::can_install() {
        bail!("objdump is missing; install it with: sudo apt-get install binutils");
    }
    ui::step("installing binutils", || apt::install(&["binutils"]))
}

/// Clippy and rustfmt of the toolchain in use, for the tests.
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
