//! Commands on the host with a time limit.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Returns a command that `timeout` (coreutils) kills after a number of seconds, with messages in English.
pub(crate) fn bounded(program: impl AsRef<OsStr>, seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(seconds.to_string()).arg(program);
    command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

/// Runs a command to its end and returns its output. If it fails, the error contains its messages.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let complaint = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?}: {}: {}", done.status, complaint.trim());
    String::from_utf8(done.stdout).with_context(|| format!("{command:?} did not print text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_and_lateness_are_errors() {
        assert_eq!(output(bounded("echo", 5).arg("hi")).unwrap(), "hi\n");
        let complaint = output(bounded("ls", 5).arg("/no/such/file")).unwrap_err();
        assert!(complaint.to_string().contains("No such file"), "{complaint}");
        assert!(output(bounded("sleep", 1).arg("60")).is_err());
    }
}
