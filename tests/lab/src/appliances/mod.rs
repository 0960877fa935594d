//! Appliances that one command starts, watches and ends together.

mod nic;
mod opensm;
mod plan;
mod running;

pub use nic::{CardKey, RdmaNic};
use opensm::SubnetManager;
pub use opensm::start_opensm;
pub use plan::Plan;
pub(crate) use running::card_of;
pub use running::{Appliances, Running};

use crate::{paths, ui};
use anyhow::{Result, ensure};
use qemu::Qemu;
use qemu::accel::Probe;
use qemu::vm::{Accel, Exit, Machine};
use std::path::{Path, PathBuf};

/// The exit status of the kernel after a success.
pub const SUCCESS: Exit = Exit::Guest(16);

/// The programs that a cluster of appliances runs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The appliance's kernel, with symbols.
    pub kernel: PathBuf,
    /// The manager: daemon and client.
    pub manager: PathBuf,
}

impl Programs {
    /// Returns the programs in a directory, by the names that their builds give them. In a directory of an
    /// earlier build, `ferrolite` is the kernel, and `ferrolite-manager` the manager.
    pub fn of(dir: &Path) -> Self {
        let (kernel, old_manager) = (dir.join("ferrolite.elf"), dir.join("ferrolite-manager"));
        if !kernel.exists() && old_manager.exists() {
            return Self { kernel: dir.join("ferrolite"), manager: old_manager };
        }
        Self { kernel, manager: dir.join("ferrolite") }
    }

    /// Returns the programs in a directory that the user has named.
    ///
    /// # Errors
    /// Names a program that is not there.
    pub fn given(dir: &Path) -> Result<Self> {
        let given = Self::of(dir);
        for file in [&given.kernel, &given.manager] {
            let file_name = file.display();
            ensure!(
                file.is_file(),
                "{file_name} is not a file: want a directory with a kernel and a manager"
            );
        }
        Ok(given)
    }
}

/// Returns the accelerator that the probe finds to work here.
pub fn decide(qemu: &Qemu, machine: Machine, kernel: &Path) -> Result<Accel> {
    let cache = paths::state()?.join(format!("accel-{machine}.json"));
    let probe = Probe { kernel, cmdline: "probe=hypervisor", success: &SUCCESS, machine, cache: &cache };
    if let Some(verdict) = probe.known() {
        return Ok(verdict.accel);
    }
    let verdict = ui::step("choosing between KVM and TCG", || probe.decide(qemu))?;
    eprintln!("  {}: {}", verdict.accel, verdict.reason);
    Ok(verdict.accel)
}

/// Returns the line at the end of a console that most likely tells the reason: the last complaint, backtraces
/// excluded.
pub fn reason(tail: &[String]) -> Option<&str> {
    let lines = || {
        tail.iter().rev().map(|l| l.trim()).filter(|l| !l.starts_with("0x") && !l.starts_with("backtrace:"))
    };
    let complains = |line: &&str| {
        let line = line.to_lowercase();
        ["panic", "fatal", "error", "out of memory"].iter().any(|word| line.contains(word))
    };
    lines().find(complains).or_else(|| lines().find(|l| !l.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_complaint_not_the_backtrace() {
        let tail = ["boot", "FATAL: no luck", "backtrace: 0x1", "0x1 core::panic at x", "memory: 1"]
            .map(String::from);
        assert_eq!(reason(&tail), Some("FATAL: no luck"));
        assert_eq!(reason(&tail[..1]), Some("boot"));
        assert_eq!(reason(&[]), None);
    }
}
