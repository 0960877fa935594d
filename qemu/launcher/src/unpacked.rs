//! A newer QEMU than the host's: Debian's package, unpacked with all its libraries, and run in place.

use crate::Qemu;
use crate::debian::Apt;
use crate::debian::archive::{Archive, packages};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The suites. The backports have a QEMU with vfio-user devices; the release itself has QEMU 10.0.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const PROGRAM: &str = "qemu-system-x86_64";
/// The packages of the program, and of the files that it loads into a machine.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-data", "seabios"];
/// The directories of the files in the last two packages.
const DATA: [(&str, &str); 2] = [("qemu-system-data", "usr/share/qemu"), ("seabios", "usr/share/seabios")];
/// The dynamic loader.
const LOADER: &str = "ld-linux-x86-64.so.2";
/// The prefix of the directory in which the tree is built.
const WORK_PREFIX: &str = "build-";

/// The description of the cached tree and its origin.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    recipe: String,
    packages: Vec<String>,
    dir: String,
}

impl Qemu {
    /// Returns the QEMU in a cache directory. Unpacks it if there is none, or if there is a newer package.
    ///
    /// Needs apt and the Debian mirror for which it is configured, and no privileges unless apt's lists are
    /// missing. If several processes do this at once, one unpacks and the others wait for it; each step has a
    /// time limit.
    pub fn unpacked(cache_dir: &Path) -> Result<Self> {
        fs::create_dir_all(cache_dir).with_context(|| format!("cannot create {}", cache_dir.display()))?;
        let lock = File::create(cache_dir.join("lock")).context("cannot create the cache's lock")?;
        lock.lock().context("cannot lock the cache")?;
        let apt = Apt::of_suites(&cache_dir.join("apt"), &SUITES);
        let there = there(cache_dir, apt.as_ref().ok());
        let dir = match there {
            Some(dir) => dir,
            None => {
                let apt = apt?;
                unpack(&apt, cache_dir).or_else(|first| {
                    // The lists are so old that the mirror no longer has their packages.
                    apt.update().with_context(|| format!("after: {first:#}"))?;
                    unpack(&apt, cache_dir)
                })?
            }
        };
        let qemu = open(&dir)?;
        ensure!(qemu.has_vfio_user()?, "Debian's QEMU {:?} has no vfio-user devices", qemu.version);
        Ok(qemu)
    }
}

/// Returns the cached directory, if it is current. If apt cannot tell, the cached one counts as current.
fn there(cache_dir: &Path, apt: Option<&Apt>) -> Option<PathBuf> {
    let manifest = fs::read(cache_dir.join("manifest.json")).ok()?;
    let manifest: Manifest = serde_json::from_slice(&manifest).ok()?;
    let dir = cache_dir.join(&manifest.dir);
    if manifest.recipe != recipe() || !dir.is_dir() {
        return None;
    }
    let newest = apt.map(|apt| apt.candidates(&packages(&manifest.packages)));
    match newest {
        Some(Ok(mut files)) => {
            files.sort();
            (files == manifest.packages).then_some(dir)
        }
        Some(Err(_)) | None => Some(dir),
    }
}

fn recipe() -> String {
    hex(&Sha256::digest(concat!(include_str!("unpacked.rs"), include_str!("debian/archive.rs"))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unpack(apt: &Apt, cache_dir: &Path) -> Result<PathBuf> {
    remove(cache_dir, |name| name.starts_with(WORK_PREFIX));
    let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(cache_dir);
    let work = work.context("cannot create a directory to unpack in")?;
    let debs = work.path().join("debs");
    fs::create_dir(&debs)?;
    let mut archive = Archive::new(apt.clone(), debs, work.path().join("unpacked"));
    archive.add(&PACKAGES).context("cannot get QEMU's packages")?;
    archive.add_likely_libraries()?;

    let tree = work.path().join("tree");
    for sub in ["bin", "lib", "share"] {
        fs::create_dir_all(tree.join(sub))?;
    }
    let program = archive.program(PROGRAM)?;
    let libraries = archive.libraries(std::slice::from_ref(&program))?;
    ensure!(libraries.contains_key(LOADER), "{PROGRAM} needs no {LOADER}");
    fs::copy(&program.path, tree.join("bin").join(PROGRAM))?;
    for (name, library) in &libraries {
        fs::copy(&library.path, tree.join("lib").join(name))?;
    }
    for (package, sub) in DATA {
        let from = archive.package_dir(package).join(sub);
        for entry in fs::read_dir(&from).with_context(|| format!("{package} has no {sub}"))? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "bin") {
                fs::copy(entry.path(), tree.join("share").join(entry.file_name()))?;
            }
        }
    }

    let mut packages = archive.files();
    packages.sort();
    let recipe = recipe();
    let id = hex(Sha256::digest(format!("{recipe}\n{}", packages.join("\n"))).get(..8).unwrap_or_default());
    let manifest = Manifest { recipe, packages, dir: format!("qemu-{id}") };
    let dir = cache_dir.join(&manifest.dir);
    // A running machine has read its files already.
    remove(cache_dir, |name| name.starts_with("qemu-"));
    fs::rename(&tree, &dir).context("cannot keep QEMU")?;
    let mut file = tempfile::NamedTempFile::new_in(cache_dir)?;
    serde_json::to_writer_pretty(&mut file, &manifest)?;
    file.persist(cache_dir.join("manifest.json")).context("cannot write the cache's manifest")?;
    Ok(dir)
}

/// Removes the directories whose names `old` accepts.
fn remove(cache_dir: &Path, old: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(cache_dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(&old) {
            // A directory that remains only uses disk space.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the QEMU in a directory, which starts with the C library of its own release.
fn open(dir: &Path) -> Result<Qemu> {
    let dir = std::path::absolute(dir)?;
    let library = dir.join("lib");
    let loader = library.join(LOADER);
    let leading = ["--library-path".into(), library.into(), dir.join("bin").join(PROGRAM).into()];
    let data = ["-L".into(), dir.join("share").into()];
    Qemu::ask(loader, leading.into_iter().chain(data).collect())
}
