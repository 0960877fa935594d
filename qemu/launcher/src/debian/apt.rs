//! apt and dpkg: packages are looked up, downloaded and unpacked, but not installed.

use super::command::{bounded, output};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The time limit of one apt or dpkg command, in seconds. A kernel package has some 70 MB.
pub(crate) const WITHIN_S: u32 = 600;

/// apt with a certain set of package lists.
#[derive(Clone, Debug)]
pub(crate) struct Apt {
    /// Options that each command receives with `-o`.
    options: Vec<String>,
    /// True if the lists are the host's, which only root may update.
    host: bool,
}

impl Apt {
    /// Returns apt with the suites for which the host is configured.
    pub(crate) fn host() -> Self {
        Self { options: Vec::new(), host: true }
    }

    /// Returns apt with directories of its own.
    pub(super) fn with_options(options: Vec<String>) -> Self {
        Self { options, host: false }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = bounded(program, WITHIN_S);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    /// Returns the package files (`name_version_architecture.deb`) of the newest candidates of some packages,
    /// in any order. Fails if apt does not know one of them.
    pub(crate) fn candidates(&self, packages: &[String]) -> Result<Vec<String>> {
        let uris = output(self.command("apt-get").args(["download", "--print-uris"]).args(packages))?;
        parse_uris(&uris)
    }

    /// Returns the package files (`name_version_architecture.deb`) of some packages and all their
    /// dependencies, in any order. The dependencies are those that apt would install on a machine that has
    /// only the packages needed for installation.
    pub(crate) fn closure(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut status = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut status, installed(&INSTALLERS).as_bytes())?;
        let mut command = self.command("apt-get");
        let status = format!("Dir::State::status={}", status.path().display());
        command.args(["-o", &status, "-o", "Debug::NoLocking=1", "--quiet=2", "--no-install-recommends"]);
        let printed = output(command.args(["install", "--yes", "--print-uris"]).args(packages))?;
        parse_uris(&printed)
    }

    /// Returns whether apt's lists contain a package.
    pub(crate) fn knows(&self, package: &str) -> bool {
        output(self.command("apt-cache").args(["show", "--no-all-versions", package]))
            .is_ok_and(|shown| !shown.trim().is_empty())
    }

    /// Downloads packages into a directory. apt checks their hashes and skips files that are already there.
    pub(crate) fn download(&self, packages: &[String], dir: &Path) -> Result<()> {
        let mut command = self.command("apt-get");
        // With root as the sandbox user, apt can write to a directory that is only accessible to the caller.
        command
            .args(["download", "--quiet=2", "-o", "APT::Sandbox::User=root"])
            .args(packages)
            .current_dir(dir);
        output(&mut command).map(drop)
    }

    /// Returns the direct dependencies of some packages, including alternatives and providers of virtual
    /// packages.
    pub(crate) fn depends(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks"]);
        let listing = output(command.args(["--no-replaces", "--no-enhances"]).args(packages))?;
        Ok(parse_depends(&listing))
    }

    /// Updates apt's lists. Only root may update the host's lists.
    pub(crate) fn update(&self) -> Result<()> {
        if self.host && !rustix::process::geteuid().is_root() {
            bail!("apt's package lists are missing or too old: run `apt-get update` as root");
        }
        output(self.command("apt-get").args(["update", "--quiet=2"])).map(drop)
    }
}

/// Parses the lines of `--print-uris`: `'address' file size hash`.
fn parse_uris(uris: &str) -> Result<Vec<String>> {
    uris.lines()
        .map(|line| {
            let file = line.split(' ').nth(1).filter(|file| file.ends_with(".deb"));
            file.map(str::to_owned).with_context(|| format!("apt-get printed an unexpected line: {line}"))
        })
        .collect()
}

/// Packages that only install other packages or configure them. Dependency resolution treats them as
/// installed.
const INSTALLERS: [&str; 7] =
    ["adduser", "debconf", "debianutils", "dpkg", "init-system-helpers", "perl-base", "tar"];

/// Returns the text of dpkg's status file that marks packages as installed, in a version that satisfies every
/// dependency.
fn installed(packages: &[&str]) -> String {
    let mut list = String::new();
    for package in packages {
        let _ = write!(
            list,
            "Package: {package}\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: foreign\n\
             Version: 9999:1\nMaintainer: nobody\nDescription: taken as installed\n\n"
        );
    }
    list
}

/// Returns the name of the package in a package file.
pub(crate) fn package_of(file: &str) -> &str {
    file.split_once('_').map_or(file, |(package, _)| package)
}

fn parse_depends(listing: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    // The line with the package's own name is not indented.
    for line in listing.lines().filter(|line| line.starts_with(' ')) {
        let line = line.trim_start_matches([' ', '|']);
        // The line is either `Depends: name`, or the bare name of a provider of the virtual package above it.
        let name = line.rsplit(": ").next().unwrap_or(line).trim();
        let name = name.split(':').next().unwrap_or(name);
        if !name.is_empty() && !name.starts_with('<') && !found.iter().any(|f| f == name) {
            found.push(name.to_owned());
        }
    }
    found
}

/// Unpacks a package file into a directory.
pub(crate) fn unpack(deb: &Path, dir: &Path) -> Result<()> {
    output(bounded("dpkg-deb", WITHIN_S).arg("-x").arg(deb).arg(dir)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_from_addresses() {
        let uris = "'http://mirror/p/perftest_4.5%2b0.17-1_amd64.deb' perftest_4.5+0.17-1_amd64.deb 266940 SHA256:d5bb\n\
                    'http://mirror/i/iproute2_6.1.0-3_amd64.deb' iproute2_6.1.0-3_amd64.deb 1045828 SHA256:1204\n";
        let files = parse_uris(uris).unwrap();
        assert_eq!(files, ["perftest_4.5+0.17-1_amd64.deb", "iproute2_6.1.0-3_amd64.deb"]);
        assert_eq!(package_of(&files[0]), "perftest");
        assert!(parse_uris("E: nothing").is_err());
    }

    #[test]
    fn dependencies_with_alternatives_and_virtual_packages() {
        let listing = "iproute2\n |Depends: debconf\n  Depends: <debconf-2.0>\n    cdebconf\n    debconf\n\
                       \x20 PreDepends: libc6\n  Depends: python3:any\n";
        assert_eq!(parse_depends(listing), ["debconf", "cdebconf", "libc6", "python3"]);
        assert!(parse_depends("lonely\nother\n").is_empty());
    }
}
