//! The choice of the accelerator, KVM or TCG. The presence of `/dev/kvm` is no proof: on some hosts KVM runs
//! a trivial guest and hangs with a real one. Therefore a probe boots the appliance's kernel with two
//! processors. Its result is valid for this boot of the host and this kernel.

use crate::Qemu;
use crate::vm::{Accel, Event, EventKind, Exit, Machine, Nic, Vm, VmSpec};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The user's choice of the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// KVM if the probe succeeds, otherwise TCG.
    Auto,
    /// The given accelerator, without a probe.
    Only(Accel),
}

/// The time limit of the whole probe.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The accelerator to be used.
    pub accel: Accel,
    /// The reason why the accelerator was chosen.
    pub reason: String,
    /// The boot id of the host when the probe ran.
    boot: String,
    /// SHA-256 of the kernel image that was booted.
    kernel: String,
}

/// The guest that probes KVM.
#[derive(Clone, Debug)]
pub struct Probe<'a> {
    /// The kernel image.
    pub kernel: &'a Path,
    /// The command line that makes the kernel test its timer, MSI-X and virtio, and exit.
    pub cmdline: &'a str,
    /// The exit that means success.
    pub success: &'a Exit,
    /// The machine model.
    pub machine: Machine,
    /// The file in which the result is kept.
    pub cache: &'a Path,
}

impl Probe<'_> {
    /// Returns the verdict of an earlier probe with this kernel, made since the host was booted.
    #[must_use]
    pub fn known(&self) -> Option<Verdict> {
        let verdict: Verdict = serde_json::from_slice(&std::fs::read(self.cache).ok()?).ok()?;
        (verdict.boot == boot_id() && verdict.kernel == self.kernel_hash().ok()?).then_some(verdict)
    }

    fn kernel_hash(&self) -> Result<String> {
        let image = std::fs::read(self.kernel).with_context(|| format!("no {}", self.kernel.display()))?;
        Ok(Sha256::digest(image).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Runs the probe and keeps its result.
    pub fn decide(&self, qemu: &Qemu) -> Result<Verdict> {
        let (accel, reason) = match self.try_kvm(qemu)? {
            Ok(()) => (Accel::Kvm, "KVM runs the kernel".to_owned()),
            Err(reason) => (Accel::Tcg, reason),
        };
        let verdict = Verdict { accel, reason, boot: boot_id(), kernel: self.kernel_hash()? };
        std::fs::write(self.cache, serde_json::to_vec_pretty(&verdict)?)
            .with_context(|| format!("cannot write {}", self.cache.display()))?;
        Ok(verdict)
    }

    /// Boots the kernel under KVM. The inner error is the reason why KVM does not work.
    fn try_kvm(&self, qemu: &Qemu) -> Result<Result<(), String>> {
        if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            return Ok(Err(format!("no /dev/kvm: {e}")));
        }
        let spec = VmSpec {
            name: "kvm-probe".into(),
            index: 0,
            machine: self.machine,
            accel: Accel::Kvm,
            cpus: 2,
            memory_mb: 64,
            kernel: self.kernel.to_owned(),
            cmdline: self.cmdline.to_owned(),
            fw_cfg: Vec::new(),
            initrd: None,
            nics: vec![Nic::Management],
            boots_again: false,
        };
        let (events, inbox) = channel();
        let _vm = Vm::start(qemu, spec, None, events)?;
        let started = Instant::now();
        loop {
            match inbox.recv_timeout(PROBE_LIMIT.saturating_sub(started.elapsed())) {
                Ok(Event { kind: EventKind::Exited(exit), .. }) if exit == *self.success => {
                    return Ok(Ok(()));
                }
                Ok(Event { kind: EventKind::Exited(exit), .. }) => {
                    return Ok(Err(format!("under KVM {exit}")));
                }
                Ok(Event { kind: EventKind::RestartedUnderTcg, .. }) => {
                    return Ok(Err("/dev/kvm is there, but the kernel prints nothing under it".into()));
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Ok(Err("/dev/kvm is there, but the kernel does not complete its test".into()));
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the probe's machine has ended"),
            }
        }
    }
}

/// Returns an id that changes with each boot of the host. Without `/proc` it is empty, and the result stays
/// valid across boots.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcg" => Ok(Self::Only(Accel::Tcg)),
            "kvm" => Ok(Self::Only(Accel::Kvm)),
            _ => Err(format!("unknown accelerator `{text}` (known: auto, tcg, kvm)")),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(accel) => accel.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_for_its_kernel_and_boot() {
        let dir = tempfile::tempdir().unwrap();
        let [kernel, cache] = ["kernel", "cache"].map(|name| dir.path().join(name));
        std::fs::write(&kernel, "one").unwrap();
        let probe = Probe {
            kernel: &kernel,
            cmdline: "",
            success: &Exit::Guest(16),
            machine: Machine::Microvm,
            cache: &cache,
        };
        assert_eq!(probe.known(), None);
        let mut verdict = Verdict {
            accel: Accel::Kvm,
            reason: String::new(),
            boot: boot_id(),
            kernel: probe.kernel_hash().unwrap(),
        };
        let keep = |v: &Verdict| std::fs::write(&cache, serde_json::to_vec(v).unwrap()).unwrap();
        keep(&verdict);
        assert_eq!(probe.known(), Some(verdict.clone()));
        std::fs::write(&kernel, "two").unwrap();
        assert_eq!(probe.known(), None);
        std::fs::write(&kernel, "one").unwrap();
        verdict.boot = "another".into();
        keep(&verdict);
        assert_eq!(probe.known(), None);
    }
}
