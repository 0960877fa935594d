//! Debian packages in one tree, as if they were installed there.

use super::{Apt, apt};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages of the C library, which comes from the host: its loader starts the programs.
const OF_HOST: [&str; 1] = ["libc6"];
const PROGRAMS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// The file that a complete tree has: the list of its packages.
const COMPLETE: &str = "packages";

/// Packages of one suite, unpacked in one tree. Nothing is installed.
#[derive(Clone, Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Returns the tree with some packages and all that they depend on, below a cache directory. Fetches them
    /// if they are not there.
    ///
    /// # Errors
    /// If apt does not know a package, or cannot fetch it.
    pub fn get(cache_dir: &Path, packages: &[&str]) -> Result<Self> {
        Self::unpacked(cache_dir, packages, || {
            let apt = Apt::host();
            let files = apt.closure(packages).or_else(|first| {
                apt.update().with_context(|| format!("after: {first:#}"))?;
                apt.closure(packages)
            })?;
            let names = files.iter().map(|file| apt::package_of(file).to_owned());
            Ok((apt, names.filter(|name| !OF_HOST.contains(&name.as_str())).collect()))
        })
    }

    /// Returns the tree with some packages of another suite, without those that they depend on, below a cache
    /// directory. Fetches them if they are not there.
    ///
    /// # Errors
    /// If apt does not know a package, or cannot fetch it.
    pub fn of_suite(cache_dir: &Path, suite: &str, packages: &[&str]) -> Result<Self> {
        Self::unpacked(cache_dir, packages, || {
            let apt = Apt::of_suites(&cache_dir.join("apt"), &[suite])?;
            Ok((apt, packages.iter().map(ToString::to_string).collect()))
        })
    }

    /// Returns the tree of `packages`. `find` returns apt, and the names of all packages to be fetched.
    fn unpacked(
        cache_dir: &Path,
        packages: &[&str],
        find: impl FnOnce() -> Result<(Apt, Vec<String>)>,
    ) -> Result<Self> {
        fs::create_dir_all(cache_dir).with_context(|| format!("cannot create {}", cache_dir.display()))?;
        let lock = File::create(cache_dir.join("lock")).context("cannot create the cache's lock")?;
        lock.lock().context("cannot lock the cache")?;
        let (root, wanted) = (std::path::absolute(cache_dir.join("root"))?, packages.join("\n"));
        if fs::read_to_string(root.join(COMPLETE)).is_ok_and(|there| there == wanted) {
            return Ok(Self { root });
        }
        let (apt, fetched) = find()?;
        let work = tempfile::Builder::new().prefix("build-").tempdir_in(cache_dir)?;
        apt.download(&fetched, work.path()).or_else(|first| {
            // The lists are so old that the mirror no longer has their packages.
            apt.update().with_context(|| format!("after: {first:#}"))?;
            apt.download(&fetched, work.path())
        })?;
        let tree = work.path().join("tree");
        fs::create_dir(&tree)?;
        for entry in fs::read_dir(work.path())? {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                apt::unpack(&file, &tree)?;
            }
        }
        fs::write(tree.join(COMPLETE), wanted)?;
        if root.exists() {
            fs::remove_dir_all(&root).context("cannot remove the former packages")?;
        }
        fs::rename(&tree, &root).context("cannot keep the packages")?;
        Ok(Self { root })
    }

    /// Returns the path of a file or directory of a package, which is given without a leading slash.
    ///
    /// # Errors
    /// If no package has it.
    pub fn path(&self, path: &str) -> Result<PathBuf> {
        let found = self.root.join(path);
        anyhow::ensure!(found.exists(), "no package has {path}");
        Ok(found)
    }

    /// Returns the command that runs a program of the packages with their libraries. The programs that it
    /// starts come from the packages, too.
    ///
    /// # Errors
    /// If no package has the program.
    pub fn command(&self, program: &str) -> Result<Command> {
        let found = PROGRAMS.iter().map(|dir| self.root.join(dir).join(program)).find(|path| path.exists());
        let mut command =
            Command::new(found.with_context(|| format!("no package has the program {program}"))?);
        let path = self.search_path(&PROGRAMS, std::env::var_os("PATH"))?;
        let magic = self.root.join("usr/lib/file/magic.mgc");
        command.env("PATH", path).env("LD_LIBRARY_PATH", self.search_path(&LIBRARIES, None)?);
        command
            .env("LC_ALL", "C")
            .env("SOURCE_DATE_EPOCH", "0")
            .env("MTOOLS_SKIP_CHECK", "1")
            .env("MAGIC", magic);
        Ok(command)
    }

    fn search_path(&self, dirs: &[&str], after: Option<OsString>) -> Result<OsString> {
        let ours = dirs.iter().map(|dir| self.root.join(dir));
        let after = after.unwrap_or_default();
        let others = std::env::split_paths(&after).filter(|dir| !dir.as_os_str().is_empty());
        Ok(std::env::join_paths(ours.chain(others))?)
    }
}
