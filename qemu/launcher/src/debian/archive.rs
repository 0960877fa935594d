//! A set of unpacked Debian packages, which grows by the dependencies of its programs.

use super::{Apt, apt, elf};
use anyhow::{Context, Result, bail};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

const PROGRAM_DIRS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
const LIBRARY_DIRS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64"];
/// The maximum number of symbolic links followed before a file counts as missing.
const MAX_LINKS: u32 = 16;

/// Unpacked packages, each in a directory of its own.
#[derive(Debug)]
pub(crate) struct Archive {
    apt: Apt,
    debs: PathBuf,
    unpacked: PathBuf,
    /// The package files, by package.
    files: BTreeMap<String, String>,
}

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub package: String,
    pub path: PathBuf,
}

impl Archive {
    /// Creates an empty set. Package files are kept in `debs`, unpacked ones in `unpacked`.
    pub(crate) fn new(apt: Apt, debs: PathBuf, unpacked: PathBuf) -> Self {
        Self { apt, debs, unpacked, files: BTreeMap::new() }
    }

    /// Returns the package files (`name_version_architecture.deb`) in the set.
    pub(crate) fn files(&self) -> Vec<String> {
        self.files.values().cloned().collect()
    }

    /// Downloads and unpacks the packages that the archive does not contain yet.
    pub(crate) fn add(&mut self, packages: &[&str]) -> Result<()> {
        let missing: Vec<String> =
            packages.iter().filter(|p| !self.files.contains_key(**p)).map(|&p| p.to_owned()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let files = self.apt.candidates(&missing)?;
        self.add_files(&files)
    }

    /// Downloads and unpacks package files, which must be apt's candidates.
    pub(crate) fn add_files(&mut self, files: &[String]) -> Result<()> {
        self.apt.download(&packages(files), &self.debs)?;
        for file in files {
            let package = apt::package_of(file).to_owned();
            let dir = self.unpacked.join(&package);
            fs::create_dir_all(&dir)?;
            apt::unpack(&self.debs.join(file), &dir)?;
            self.files.insert(package, file.clone());
        }
        Ok(())
    }

    /// Adds the libraries on which the packages in the set depend, and those on which these depend. It asks
    /// apt in bulk, because each query takes about a second; [`libraries`](Self::libraries) finds missing
    /// libraries one by one.
    pub(crate) fn add_likely_libraries(&mut self) -> Result<()> {
        for _ in 0..2 {
            let packages: Vec<&str> = self.files.keys().map(String::as_str).collect();
            let mut depends = self.apt.depends(&packages)?;
            depends.retain(|package| package.starts_with("lib"));
            let depends: Vec<&str> = depends.iter().map(String::as_str).collect();
            if self.add(&depends).is_err() {
                // One alternative that this suite lacks makes the whole query fail.
                break;
            }
        }
        Ok(())
    }

    /// Returns the directory of a package.
    pub(crate) fn package_dir(&self, package: &str) -> PathBuf {
        self.unpacked.join(package)
    }

    /// Finds a program by name.
    pub(crate) fn program(&self, name: &str) -> Result<Found> {
        let found = PROGRAM_DIRS.iter().find_map(|dir| self.find(&Path::new(dir).join(name), MAX_LINKS));
        found.with_context(|| format!("no package has a program {name}"))
    }

    /// Finds a file by its path from the root, without a leading slash.
    pub(crate) fn file(&self, path: &str) -> Result<Found> {
        self.find(Path::new(path), MAX_LINKS).with_context(|| format!("no package has a file {path}"))
    }

    /// Finds a shared library by name (`DT_SONAME`).
    pub(crate) fn library(&self, name: &str) -> Option<Found> {
        LIBRARY_DIRS.iter().find_map(|dir| self.find(&Path::new(dir).join(name), MAX_LINKS))
    }

    /// Finds the file at a path. Symbolic links are followed as if all packages were installed at one root.
    fn find(&self, path: &Path, links_left: u32) -> Option<Found> {
        self.files.keys().find_map(|package| {
            let here = self.unpacked.join(package).join(path);
            let kind = fs::symlink_metadata(&here).ok()?.file_type();
            if kind.is_symlink() {
                let target = fs::read_link(&here).ok()?;
                let next = normal(&path.parent()?.join(target));
                return self.find(&next, links_left.checked_sub(1)?);
            }
            kind.is_file().then(|| Found { package: package.clone(), path: here })
        })
    }

    /// Returns all shared libraries that some files need, directly or indirectly, by name. Adds the packages
    /// that contain them.
    pub(crate) fn libraries(&mut self, of: &[Found]) -> Result<BTreeMap<String, Found>> {
        let mut libraries = BTreeMap::new();
        let mut open: Vec<Found> = of.to_vec();
        while let Some(file) = open.pop() {
            let content = fs::read(&file.path)?;
            let needed = elf::needed_libraries(&content)
                .with_context(|| format!("cannot read {}", file.path.display()))?;
            for name in needed {
                if let Entry::Vacant(place) = libraries.entry(name) {
                    let library = self.obtain(place.key(), &file.package)?;
                    open.push(library.clone());
                    place.insert(library);
                }
            }
        }
        Ok(libraries)
    }

    /// Finds a library that a file of `package` needs, in the set or in one of the dependencies of `package`,
    /// which is then added.
    fn obtain(&mut self, name: &str, package: &str) -> Result<Found> {
        if let Some(library) = self.library(name) {
            return Ok(library);
        }
        let mut owners = self.apt.depends(&[package])?;
        owners.sort_by_key(|owner| std::cmp::Reverse(likeness(owner, name)));
        for owner in owners {
            // An alternative that this suite lacks is skipped.
            if self.add(&[&owner]).is_ok()
                && let Some(library) = self.library(name)
            {
                return Ok(library);
            }
        }
        bail!("{package} needs {name}, but no package it depends on has it")
    }
}

/// Returns the length of the common prefix of a package's and a library's name: `libmnl0` is the likely owner
/// of `libmnl.so.0`.
fn likeness(package: &str, library: &str) -> usize {
    package.bytes().zip(library.bytes()).take_while(|(a, b)| a == b).count()
}

/// Returns a path without `.`, `..` and the root.
fn normal(path: &Path) -> PathBuf {
    // A link to an absolute path replaces the path before it, so only the part after the last root counts.
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir => parts.clear(),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.iter().collect()
}

/// Returns the names of the packages in some package files.
pub(crate) fn packages(files: &[String]) -> Vec<String> {
    files.iter().map(|file| apt::package_of(file).to_owned()).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_across_packages() {
        let root = tempfile::tempdir().unwrap();
        let mut archive = Archive::new(Apt::host(), root.path().join("debs"), root.path().to_owned());
        for (package, dir) in [("one", "usr/bin"), ("two", "usr/lib/x86_64-linux-gnu")] {
            fs::create_dir_all(root.path().join(package).join(dir)).unwrap();
            archive.files.insert(package.into(), format!("{package}_1_amd64.deb"));
        }
        let library = root.path().join("two/usr/lib/x86_64-linux-gnu/libx.so.1.5");
        fs::write(&library, "x").unwrap();
        symlink("libx.so.1.5", library.with_file_name("libx.so.1")).unwrap();
        symlink("/usr/lib/x86_64-linux-gnu/../x86_64-linux-gnu/libx.so.1", root.path().join("one/usr/bin/x"))
            .unwrap();
        symlink("loop", root.path().join("one/usr/bin/loop")).unwrap();
        let found = Found { package: "two".into(), path: library };
        assert_eq!(archive.library("libx.so.1"), Some(found.clone()));
        assert_eq!(archive.program("x").unwrap(), found);
        assert!(archive.program("loop").is_err());
        assert!(archive.program("none").is_err());
    }

    #[test]
    fn the_likely_owner_comes_first() {
        assert!(likeness("libmnl0", "libmnl.so.0") > likeness("libm17n-0", "libmnl.so.0"));
        assert!(likeness("libmnl0", "libmnl.so.0") > likeness("zlib1g", "libmnl.so.0"));
    }
}
