//! Which QEMU there is.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// The oldest QEMU that has all that is used here (`-netdev stream` came with 7.2): major and minor version.
pub const OLDEST_QEMU: (u32, u32) = (7, 2);

/// A QEMU for x86-64 that is recent enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Its major and minor version.
    pub version: (u32, u32),
}

impl Qemu {
    /// Looks for `qemu-system-x86_64` in `PATH` and asks for its version. `Ok(None)` if there is none.
    pub fn find() -> Result<Option<Self>> {
        let program = PathBuf::from("qemu-system-x86_64");
        let output = match Command::new(&program).arg("--version").output() {
            Ok(output) => output,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context("cannot run qemu-system-x86_64"),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(version) = parse_version(&text) else {
            bail!("qemu-system-x86_64 --version says `{}`", text.lines().next().unwrap_or_default());
        };
        if version < OLDEST_QEMU {
            let ((major, minor), (least, least_minor)) = (version, OLDEST_QEMU);
            bail!("qemu-system-x86_64 is version {major}.{minor}; {least}.{least_minor} or newer is needed");
        }
        Ok(Some(Self { program, version }))
    }
}

/// Reads `QEMU emulator version 7.2.22 (Debian ...)`.
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
