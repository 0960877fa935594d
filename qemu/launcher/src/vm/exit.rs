//! The exit of a virtual machine.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// SIGABRT: QEMU found an error in itself or in the host.
const ABORT: i32 = 6;

/// The way in which a virtual machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The guest wrote this value, 1 to 127, to the debug exit port. Its meaning is defined by the guest.
    Guest(u8),
    /// The guest powered off or requested a reset.
    PoweredOff,
    /// This signal killed QEMU.
    Killed(i32),
    /// QEMU itself failed, with this message.
    Failed(String),
}

impl Exit {
    /// Decodes QEMU's exit status. The debug exit device converts the guest's value to `value * 2 + 1`. A
    /// guest must not write 0, because that results in 1, the status with which QEMU itself fails.
    #[must_use]
    pub fn decode(status: ExitStatus, stderr: &str) -> Self {
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::PoweredOff,
            (Some(code), _) if code >= 3 && code % 2 == 1 => {
                Self::Guest(u8::try_from(code >> 1).unwrap_or(0))
            }
            // QEMU prints a reason before it aborts; a process that is killed prints none.
            (None, Some(signal)) if signal != ABORT || stderr.trim().is_empty() => Self::Killed(signal),
            _ => {
                let said =
                    stderr.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ");
                Self::Failed(if said.is_empty() { format!("{status}") } else { said })
            }
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest(value) => write!(f, "the guest ended with status {value}"),
            Self::PoweredOff => f.write_str("the guest switched itself off"),
            Self::Killed(signal) => write!(f, "QEMU was killed by signal {signal}"),
            Self::Failed(said) => write!(f, "QEMU failed: {said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes() {
        let exited = |code: i32| Exit::decode(ExitStatus::from_raw(code << 8), " a\n\nb \n");
        assert_eq!(exited(0), Exit::PoweredOff);
        assert_eq!(exited(1), Exit::Failed("a; b".into()));
        assert_eq!(exited(2), Exit::Failed("a; b".into()));
        assert_eq!(exited(3), Exit::Guest(1));
        assert_eq!(exited(33), Exit::Guest(16));
        assert_eq!(exited(255), Exit::Guest(127));
        assert_eq!(Exit::decode(ExitStatus::from_raw(9), "a warning"), Exit::Killed(9));
        assert_eq!(Exit::decode(ExitStatus::from_raw(6), "no KVM"), Exit::Failed("no KVM".into()));
    }
}
