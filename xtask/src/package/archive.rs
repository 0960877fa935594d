//! A package as a tree of files, and dpkg-deb.

use super::version::Version;
use anyhow::{Context, Result, bail, ensure};
use lab::{setup, tool};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The maintainer, in the form of Debian. The domain is reserved: it receives no mail (RFC 2606).
const MAINTAINER: &str = "The Ferrolite authors <packages@ferrolite.example>";
/// The files for dpkg that a package may have: scripts, and the library's names and trigger.
const FOR_DPKG: [(&str, u32); 5] =
    [("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755), ("shlibs", 0o644), ("triggers", 0o644)];
/// The file of a package's directory with the objections of lintian that do not apply, and the reasons.
const OVERRIDES: &str = "lintian-overrides";

/// Ensures that dpkg-deb, gzip and strip exist.
pub(super) fn check_tools() -> Result<()> {
    setup::binutils()?;
    for tool in ["dpkg-deb", "gzip"] {
        ensure!(tool::exists(tool), "{tool} is missing: packages are made on Debian");
    }
    Ok(())
}

/// A package that is being made.
pub(super) struct Archive<'a> {
    name: &'a str,
    version: &'a Version,
    tree: TempDir,
}

impl<'a> Archive<'a> {
    /// Starts a package with its licence and its changes.
    pub(super) fn new(name: &'a str, version: &'a Version) -> Result<Self> {
        let tree = tempfile::tempdir()?;
        fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o755))?;
        let archive = Self { name, version, tree };
        let root = lab::paths::root();
        let copyright = copyright(&fs::read_to_string(root.join("LICENSE-MIT"))?);
        archive.add(&format!("usr/share/doc/{name}/copyright"), copyright.as_bytes(), 0o644)?;
        let changes = archive.changes()?;
        archive.add_compressed(&format!("usr/share/doc/{name}/changelog.Debian"), changes.as_bytes())?;
        Ok(archive)
    }

    /// Adds a file.
    pub(super) fn add(&self, place: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let path = self.path(place)?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    }

    /// Adds a file that is compressed by gzip; `.gz` is added to its name.
    pub(super) fn add_compressed(&self, place: &str, bytes: &[u8]) -> Result<()> {
        self.add(place, bytes, 0o644)?;
        tool::output(Command::new("gzip").arg("-9n").arg(self.path(place)?))?;
        Ok(())
    }

    /// Adds a program or library without its symbols.
    pub(super) fn add_stripped(&self, place: &str, program: &Path, mode: u32) -> Result<()> {
        let path = self.path(place)?;
        let mut strip = Command::new("strip");
        strip.args(["--strip-unneeded", "--remove-section=.comment", "-o"]).arg(&path).arg(program);
        tool::output(&mut strip)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    }

    /// Adds a symbolic link.
    pub(super) fn link(&self, place: &str, target: &str) -> Result<()> {
        let path = self.path(place)?;
        symlink(target, &path).with_context(|| format!("cannot make {}", path.display()))
    }

    /// Writes the package with the fields and scripts of `description` into a directory. Returns its path.
    pub(super) fn finish(self, description: &Path, out: &Path) -> Result<PathBuf> {
        let control = fs::read_to_string(description.join("control"))
            .with_context(|| format!("{} has no control file", description.display()))?;
        let overrides = description.join(OVERRIDES);
        if overrides.exists() {
            self.add(&format!("usr/share/lintian/overrides/{}", self.name), &fs::read(&overrides)?, 0o644)?;
        }
        self.add("DEBIAN/control", self.fields(&control)?.as_bytes(), 0o644)?;
        let conffiles = self.conffiles()?;
        if !conffiles.is_empty() {
            self.add("DEBIAN/conffiles", conffiles.as_bytes(), 0o644)?;
        }
        for (name, mode) in FOR_DPKG {
            let path = description.join(name);
            if path.exists() {
                self.add(&format!("DEBIAN/{name}"), &fs::read(&path)?, mode)?;
            }
        }
        self.add("DEBIAN/md5sums", self.sums()?.as_bytes(), 0o644)?;
        let path = out.join(format!("{}_{}_amd64.deb", self.name, self.version.text));
        let mut dpkg = Command::new("dpkg-deb");
        // The times of all files become that of the commit.
        dpkg.env("SOURCE_DATE_EPOCH", self.version.time.to_string());
        dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(self.tree.path()).arg(&path);
        tool::output(&mut dpkg)?;
        Ok(path)
    }

    /// Returns the path of a file in the tree, whose directory exists.
    fn path(&self, place: &str) -> Result<PathBuf> {
        let path = self.tree.path().join(place);
        let directory = path.parent().context("a file is in a directory")?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(path)
    }

    /// Returns the control file: the fields of the package, and those that are the same for all packages.
    fn fields(&self, control: &str) -> Result<String> {
        let Some((first, rest)) = control.split_once('\n') else { bail!("a control file has one line") };
        ensure!(
            first == format!("Package: {}", self.name),
            "the control file of {} names another",
            self.name
        );
        let kib = size(self.tree.path())?.div_ceil(1024);
        let version = &self.version.text;
        Ok(format!(
            "{first}\nVersion: {version}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {kib}\n{rest}"
        ))
    }

    /// Returns the files in `/etc`, which the operator may change.
    fn conffiles(&self) -> Result<String> {
        let mut lines = String::new();
        for place in self.files()? {
            if place.starts_with("etc") {
                writeln!(lines, "/{}", place.display())?;
            }
        }
        Ok(lines)
    }

    /// Returns the checksums of the installed files.
    fn sums(&self) -> Result<String> {
        let mut md5sum = Command::new("md5sum");
        md5sum.current_dir(self.tree.path()).arg("--");
        md5sum.args(self.files()?.into_iter().filter(|place| !place.starts_with("DEBIAN")));
        Ok(String::from_utf8(tool::output(&mut md5sum)?)?)
    }

    /// Returns all files of the tree by their places, in order. Links are left out.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let (mut files, mut directories) = (Vec::new(), vec![self.tree.path().to_owned()]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    files.push(entry.path().strip_prefix(self.tree.path())?.to_owned());
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns the changes in Debian's form.
    fn changes(&self) -> Result<String> {
        let date = Command::new("date")
            .args(["-R", "-u", &format!("--date=@{}", self.version.time)])
            .env("LC_ALL", "C")
            .output()?;
        let date = String::from_utf8(date.stdout)?;
        Ok(format!(
            "{} ({}) unstable; urgency=medium\n\n  * Package of this commit; CHANGELOG.md of the sources lists the changes.\n\n \
             -- {MAINTAINER}  {}\n",
            self.name,
            self.version.text,
            date.trim()
        ))
    }
}

/// Returns the size of all files below a directory, in bytes.
fn size(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            bytes += size(&entry.path())?;
        } else if kind.is_file() {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Returns the licence in the machine-readable form of Debian.
fn copyright(mit: &str) -> String {
    let text = mit.lines().skip_while(|line| !line.starts_with("Permission"));
    let mut out = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: Ferrolite\n\nFiles: *\nCopyright: 2026 The Ferrolite authors\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n",
    );
    for line in text {
        out += if line.is_empty() { " ." } else { " " };
        out += line;
        out.push('\n');
    }
    out += "\nLicense: Apache-2.0\n On Debian systems, the text of the Apache License 2.0 is in\n \
            /usr/share/common-licenses/Apache-2.0.\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_has_debians_form() {
        let text = copyright("MIT License\n\nCopyright (c) x\n\nPermission is granted\n\nTHE SOFTWARE\n");
        assert!(
            text.contains(
                "License: Expat\n Permission is granted\n .\n THE SOFTWARE\n\nLicense: Apache-2.0\n"
            )
        );
    }

    #[test]
    fn a_package_has_its_files_and_fields() {
        if check_tools().is_err() {
            return;
        }
        let version = Version { text: "1.2+3.gabc-1".into(), time: 1_700_000_000 };
        let archive = Archive::new("x", &version).unwrap();
        archive.add("etc/default/x", b"A=1\n", 0o644).unwrap();
        archive.link("usr/bin/y", "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("control"), "Package: x\nDescription: a test\n a test\n").unwrap();
        let path = archive.finish(dir.path(), dir.path()).unwrap();
        let show = |option| {
            String::from_utf8(tool::output(Command::new("dpkg-deb").arg(option).arg(&path)).unwrap())
        };
        let fields = show("--field").unwrap();
        assert!(fields.contains("Version: 1.2+3.gabc-1\nArchitecture: amd64\n"), "{fields}");
        let files = show("--contents").unwrap();
        assert!(files.contains("root/root"), "{files}");
        assert!(files.contains("./usr/bin/y -> x\n"), "{files}");
        assert!(files.contains("2023-11-14 22:13 ./etc/default/x\n"), "{files}");
    }
}
