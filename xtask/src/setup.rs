//! `cargo xtask setup`: installs what is missing on this machine.

use anyhow::Result;
use lab::{setup, text, tool, ui};
use qemu::Qemu;

/// Sets up everything.
pub(crate) fn setup() -> Result<()> {
    let qemu = setup::qemu()?;
    let (major, minor) = qemu.version;
    println!("QEMU {major}.{minor}");
    // Only the tests of the emulated ConnectX-3 need this QEMU.
    match setup::vfio_user_qemu() {
        Ok(Qemu { version: (major, minor), .. }) => {
            println!("QEMU for the emulated ConnectX-3: {major}.{minor}");
        }
        Err(e) => println!("no emulated ConnectX-3 here: {}", ui::one_line(&e)),
    }
    setup::binutils()?;
    setup::bindings()?;
    if !tool::exists("valgrind") {
        println!(
            "no valgrind: `cargo xtask bench path`, `instructions` and `shares` are skipped; package valgrind \
             has it"
        );
    }
    let text = text::default()?;
    println!("text: {} ({})", text.path.display(), text.about);
    Ok(())
}
