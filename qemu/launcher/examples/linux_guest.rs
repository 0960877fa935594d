//! Runs a command in a Linux guest: `cargo run -p qemu --example linux_guest -- 'uname -a'`.

use anyhow::{Context, Result};
use qemu::Qemu;
use qemu::linux::{Guest, GuestConfig, Image};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> Result<ExitCode> {
    let command = std::env::args().nth(1).context("usage: linux_guest COMMAND")?;
    let qemu = Qemu::find()?.context("qemu-system-x86_64 is not installed")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let image = Image::build(&target.join("linux-guest"))?;
    let mut guest = Guest::boot(&qemu, &image, &GuestConfig::default())?;
    eprintln!("booted in {:.2} s", guest.boot_time().as_secs_f64());
    let output = guest.run(&command, Duration::from_secs(60))?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(ExitCode::from(output.status.0))
}
