//! The installed QEMU.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest version of QEMU, major and minor, with all features used here (`-netdev stream` came with 7.2).
pub const OLDEST_QEMU: (u32, u32) = (7, 2);

/// The name of the program.
const NAME: &str = "qemu-system-x86_64";
/// The device that a server outside of QEMU implements. QEMU has it from 10.1 on, if it is enabled in the
/// build.
const VFIO_USER: &str = "vfio-user-pci";

/// A QEMU for x86-64 that is recent enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program to be started.
    program: PathBuf,
    /// The first arguments of the program.
    leading: Vec<OsString>,
    /// The major and minor version.
    pub version: (u32, u32),
}

impl Qemu {
    /// Looks for `qemu-system-x86_64` in `PATH` and asks for its version. Returns `Ok(None)` if there is
    /// none.
    pub fn find() -> Result<Option<Self>> {
        match Command::new(NAME).arg("--version").output() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Self::ask(NAME.into(), Vec::new()).map(Some),
        }
    }

    /// Asks the QEMU started as `program` with the arguments `leading` for its version.
    pub(crate) fn ask(program: PathBuf, leading: Vec<OsString>) -> Result<Self> {
        let mut qemu = Self { program, leading, version: (0, 0) };
        let text = qemu.says(&["--version"])?;
        let Some(version) = parse_version(&text) else {
            bail!("{NAME} --version says `{}`", text.lines().next().unwrap_or_default());
        };
        if version < OLDEST_QEMU {
            let ((major, minor), (least, least_minor)) = (version, OLDEST_QEMU);
            bail!("{NAME} is version {major}.{minor}; {least}.{least_minor} or newer is needed");
        }
        qemu.version = version;
        Ok(qemu)
    }

    /// Returns this QEMU, started by the words `by` of another command: a program and its first arguments.
    #[must_use]
    pub fn within(&self, by: &[String]) -> Self {
        let Some((program, arguments)) = by.split_first() else { return self.clone() };
        let mut leading: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        leading.push(self.program.clone().into());
        leading.extend(self.leading.iter().cloned());
        Self { program: program.into(), leading, version: self.version }
    }

    /// Returns this QEMU with a log of the code that it translates: a line `IN:` for each block, and a line
    /// with the address of each instruction.
    #[must_use]
    pub fn logging_translation(&self, to: &Path) -> Self {
        let mut logging = self.clone();
        logging.leading.extend(["-d", "in_asm", "-D"].map(OsString::from));
        logging.leading.push(to.into());
        logging
    }

    /// Returns whether QEMU supports devices that another process implements (vfio-user).
    pub fn has_vfio_user(&self) -> Result<bool> {
        let output = self.command().args(["-device", &format!("{VFIO_USER},help")]).output();
        let output = output.with_context(|| format!("cannot run {NAME}"))?;
        Ok(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("socket"))
    }

    /// Returns the command that starts QEMU, to which arguments must be added.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.leading);
        command
    }

    fn says(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command().args(arguments).output().with_context(|| format!("cannot run {NAME}"))?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{NAME} {}: {}", arguments.join(" "), complaint.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Parses `QEMU emulator version 7.2.22 (Debian ...)`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split("version ").nth(1)?.split(['.', ' ', '\n', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg)\nCopy"), Some((7, 2)));
        assert_eq!(parse_version("QEMU emulator version 10.1\n"), Some((10, 1)));
        assert_eq!(parse_version("something else"), None);
    }
}
