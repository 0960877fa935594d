//! A canary in all free memory, where loaders and former kernels are most likely to leave something behind:
//! with memory taken at the kernel's own address, and after kexec beside traffic.

use super::flood::Flood;
use super::kexec::{self, Call};
use super::tools::Tools;
use super::trial::Trial;
use super::{Firmware, disks, with_tools};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::{image, tool};
use pack::BuiltIn;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest silence of a compiler.
const BUILD: Duration = Duration::from_secs(600);
/// The command line of the kernel.
const WORDS: &str = "selftest=canary selftest_s=10 hardware-report=on";
/// The range of addresses that GRUB takes out of the memory map, as the report prints what is left.
const CUT: &str = "cutmem 2M 4M";
const LEFT: [&str; 2] = ["memory: RAM 0x100000 to 0x200000", "memory: RAM 0x400000 to 0x"];
/// The end of the self-test's line.
const INTACT: &str = "are intact after 10 s";

pub(super) fn cases(full: bool) -> Vec<Case> {
    let grub = with_tools("canary-memory-taken-at-2M", full, |tools, log| taken(&Trial::new(tools, log)?));
    let kexecs = kexec::CALLS.into_iter().filter(|call| call.canary).map(|call| {
        let check = move |tools: &Tools, log: &Path| beside_traffic(&Trial::new(tools, log)?, call);
        with_tools(&format!("canary-kexec-{}", call.name), full, check)
    });
    [grub].into_iter().chain(kexecs).map(|case| case.full_if(true)).collect()
}

/// Makes a boot file of the image with the self-tests.
fn boot_file(trial: &Trial<'_>) -> Result<PathBuf> {
    let stub = fs::read(image::stub(|cargo| tool::run_ok(cargo, trial.log, BUILD).map(drop))?)?;
    let kernel = fs::read(image::build_for_tests()?.elf)?;
    let built_in = BuiltIn { cmdline: "", module: &[], version: "for tests" };
    let file = trial.path("canary.efi");
    fs::write(&file, pack::universal(&stub, &kernel, built_in)?)?;
    Ok(file)
}

/// The loader finds no memory from 2 to 4 MiB, for which the kernel is linked.
fn taken(trial: &Trial<'_>) -> Result<()> {
    let config = disks::GrubConfig { file: &boot_file(trial)?, before: CUT, words: WORDS };
    let medium = disks::cd(Firmware::SeaBios.machine(trial.tools)?, &disks::grub(trial, &config)?);
    trial.says(medium, INTACT)?;
    let console = trial.console()?;
    for left in LEFT {
        ensure!(console.contains(left), "the memory map is another one: no `{left}`");
    }
    Ok(())
}

/// Linux receives frames, starts the boot file, and the frames go on.
fn beside_traffic(trial: &Trial<'_>, call: Call) -> Result<()> {
    let _flood = Flood::start(trial.fabric().socket(1))?;
    let guest = kexec::jump(trial, call, &boot_file(trial)?, WORDS)?;
    let said = trial.console_says("selftest canary: ")?;
    guest.kill();
    let line = said.lines().find(|line| line.contains("selftest canary: ")).context("no result")?;
    ensure!(line.contains(INTACT), "{line}");
    kexec::check_place(trial, call)
}
