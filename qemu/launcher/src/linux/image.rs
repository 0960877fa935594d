//! The kernel and initramfs of a Linux guest, built from Debian packages and cached.

use super::cpio::Cpio;
use super::modules::{Modules, Wanted};
use super::{layer, vmlinux};
use crate::debian::Apt;
use crate::debian::archive::{self, Archive};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The package that depends on the newest kernel of the suite.
pub(super) const KERNEL_META_PACKAGE: &str = "linux-image-amd64";
/// The packages with the programs. Their other dependencies are found automatically.
const PACKAGES: [&str; 13] = [
    "busybox-static",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iperf3",
    "iproute2",
    "libgcc-s1",
    "libibverbs1",
    "opensm",
    "perftest",
    "rdma-core",
    "rdmacm-utils",
];
/// The programs that busybox does not have.
const PROGRAMS: [&str; 29] = [
    "ethtool",
    "ibnetdiscover",
    "ibping",
    "ibstat",
    "ibtracert",
    "iperf3",
    "opensm",
    "perfquery",
    "rdma",
    "saquery",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
    "mckey",
    "rping",
    "ucmatose",
    "udaddy",
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_send_lat",
    "ib_send_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];
/// The library that the C library itself loads for `pthread_exit`, so that no program lists it as needed.
const LATE_LIBRARY: &str = "libgcc_s.so.1";
/// The verbs providers of SoftRoCE and ConnectX-3, which are plug-ins. libibverbs reads a plug-in's name from
/// a file in the first directory and finds the plug-in in the second, with the version of the plug-in
/// interface in its name.
const PROVIDERS: [&str; 2] = ["rxe", "mlx4"];
const PROVIDER_LIST_DIR: &str = "etc/libibverbs.d";
const PROVIDER_DIR: &str = "usr/lib/x86_64-linux-gnu/libibverbs";

/// The kernel modules, by the name of their list in the guest. rxe requests crc32 by name from the crypto
/// layer, which no dependency records; newer kernels have it as a plain function.
const MODULES: [(&str, &[Wanted]); 5] = [
    ("base", &[Wanted::Required("virtio_pci"), Wanted::Required("virtio_console")]),
    ("net", &[Wanted::Required("virtio_net")]),
    // ext4 requests crc32c by name, as rxe requests crc32.
    (
        "disk",
        &[Wanted::IfPresent("crc32c_generic"), Wanted::Required("virtio_blk"), Wanted::Required("ext4")],
    ),
    (
        "rdma",
        &[
            Wanted::IfPresent("crc32_generic"),
            Wanted::Required("rdma_rxe"),
            Wanted::Required("ib_uverbs"),
            Wanted::Required("rdma_ucm"),
        ],
    ),
    (
        "mlx4",
        &[
            Wanted::Required("mlx4_core"),
            Wanted::Required("mlx4_en"),
            Wanted::IfPresent("8021q"),
            Wanted::Required("mlx4_ib"),
            Wanted::Required("ib_uverbs"),
            Wanted::Required("ib_umad"),
            Wanted::Required("rdma_ucm"),
            Wanted::IfPresent("ib_ipoib"),
        ],
    ),
];

/// The prefix of the directory in which an image is built.
pub(super) const WORK_PREFIX: &str = "build-";

/// The sources of the recipe. An image is rebuilt when any of them changes.
const RECIPE: [&[u8]; 5] = [
    include_bytes!("image.rs"),
    include_bytes!("../debian/archive.rs"),
    include_bytes!("cpio.rs"),
    include_bytes!("modules.rs"),
    include_bytes!("vmlinux.rs"),
];

/// The release from whose packages an image is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The suite for which the host's apt is configured.
    Host,
    /// Debian 13, with Linux 6.12.
    Trixie,
}

impl Release {
    /// Returns the directory of the release's images in a cache. The releases share nothing.
    fn dir(self, cache_dir: &Path) -> PathBuf {
        match self {
            Self::Host => cache_dir.to_owned(),
            Self::Trixie => cache_dir.join("trixie"),
        }
    }

    /// Returns apt for the release. `dir` is the directory of its images.
    fn apt(self, dir: &Path) -> Result<Apt> {
        match self {
            Self::Host => Ok(Apt::host()),
            Self::Trixie => Apt::of_suites(&dir.join("apt"), &["trixie"]),
        }
    }
}

/// The kernel and initramfs of a Linux guest: busybox, rdma-core, perftest, the programs for an InfiniBand
/// fabric, and their kernel modules.
#[derive(Clone, Debug)]
pub struct Image {
    /// The file that QEMU boots: the kernel's ELF file, or the bzImage if that could not be unpacked.
    pub kernel: PathBuf,
    /// A plain cpio archive without the init program, which [`Guest`](super::Guest) appends.
    pub initramfs: PathBuf,
    /// The package files (`name_version_architecture.deb`) in the initramfs.
    pub packages: Vec<String>,
}

/// The description of the cached image and its origin.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    recipe: String,
    kernel: String,
    initramfs: String,
    kernel_package: String,
    packages: Vec<String>,
}

impl Image {
    /// Returns the image in a cache directory. Builds it if there is none, or if the recipe or a package has
    /// changed.
    ///
    /// Uses packages of the suite for which apt is configured, without installing any. Needs no privileges
    /// while apt's lists are present; as root, updates them when necessary. If several processes build at
    /// once, one builds and the others wait for it; every step of a build has a time limit.
    pub fn build(cache_dir: &Path) -> Result<Self> {
        Self::build_of(cache_dir, Release::Host, &[])
    }

    /// Returns the image of the host's release with further packages, like [`build_of`](Self::build_of).
    pub fn build_with(cache_dir: &Path, packages: &[&str]) -> Result<Self> {
        Self::build_of(cache_dir, Release::Host, packages)
    }

    /// Returns the image of a release with further packages, like [`build`](Self::build). The packages are
    /// complete except for their documentation, with all their dependencies. Their installation scripts are
    /// not run.
    pub fn build_of(cache_dir: &Path, release: Release, packages: &[&str]) -> Result<Self> {
        let cache_dir = &release.dir(cache_dir);
        fs::create_dir_all(cache_dir).with_context(|| format!("cannot create {}", cache_dir.display()))?;
        let lock = File::create(cache_dir.join("lock")).context("cannot create the cache's lock")?;
        lock.lock().context("cannot lock the cache")?;
        let apt = release.apt(cache_dir)?;
        let base = match cached(&apt, cache_dir) {
            Some(image) => image,
            None => build(&apt, cache_dir).or_else(|first| {
                // The lists are missing, or so old that the mirror no longer has their packages.
                apt.update().with_context(|| format!("after: {first:#}"))?;
                build(&apt, cache_dir)
            })?,
        };
        if packages.is_empty() { Ok(base) } else { layer::extend(&apt, cache_dir, &base, packages) }
    }

    /// Returns the total size of the files in the initramfs, in MiB. A guest needs twice that, and 100 MiB,
    /// to start.
    #[must_use]
    pub fn size_mib(&self) -> u32 {
        let bytes = fs::metadata(&self.initramfs).map_or(0, |meta| meta.len());
        u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX)
    }

    fn open(cache_dir: &Path, manifest: Manifest) -> Option<Self> {
        let kernel = cache_dir.join(manifest.kernel);
        let initramfs = cache_dir.join(manifest.initramfs);
        let there = kernel.is_file() && initramfs.is_file();
        there.then_some(Self { kernel, initramfs, packages: manifest.packages })
    }
}

/// Returns the cached image, if it is current. If apt cannot tell, the cached image counts as current.
fn cached(apt: &Apt, cache_dir: &Path) -> Option<Image> {
    let manifest = fs::read(cache_dir.join("manifest.json")).ok()?;
    let manifest: Manifest = serde_json::from_slice(&manifest).ok()?;
    if manifest.recipe != recipe_hash() {
        return None;
    }
    let newest = kernel_package(apt).and_then(|kernel| {
        let mut files = apt.candidates(&archive::packages(&manifest.packages))?;
        files.sort();
        Ok((kernel, files))
    });
    match newest {
        Ok((kernel, files)) if kernel != manifest.kernel_package || files != manifest.packages => None,
        Ok(_) | Err(_) => Image::open(cache_dir, manifest),
    }
}

fn recipe_hash() -> String {
    let mut hash = Sha256::new();
    RECIPE.iter().for_each(|part| hash.update(part));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn kernel_package(apt: &Apt) -> Result<String> {
    let depends = apt.depends(&[KERNEL_META_PACKAGE])?;
    let kernel = depends.into_iter().find(|package| package.starts_with("linux-image-"));
    kernel.with_context(|| format!("{KERNEL_META_PACKAGE} depends on no kernel"))
}

fn build(apt: &Apt, cache_dir: &Path) -> Result<Image> {
    let debs = cache_dir.join("debs");
    fs::create_dir_all(&debs)?;
    remove_interrupted(cache_dir);
    let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(cache_dir);
    let work = work.context("cannot create a directory to build in")?;
    let mut archive = Archive::new(apt.clone(), debs.clone(), work.path().join("unpacked"));

    let kernel_package = kernel_package(apt)?;
    archive.add(&[&kernel_package]).context("cannot get the kernel")?;
    archive.add(&PACKAGES).context("cannot get the RDMA packages")?;
    archive.add_likely_libraries()?;
    let (bzimage, modules) = kernel_files(&archive, &kernel_package)?;
    let kernel = fs::read(&bzimage)?;
    // Any bzImage boots by itself, only more slowly; so an unknown compression is no reason to fail.
    let kernel = vmlinux::extract(&kernel).unwrap_or(kernel);

    let initramfs = work.path().join("initramfs.cpio");
    write_initramfs(&mut archive, modules, &initramfs)?;
    let mut packages = archive.files();
    packages.sort();

    // Names are never reused, so that a starting machine never sees an incomplete file.
    let recipe = recipe_hash();
    let id = id(&recipe, &packages);
    let manifest = Manifest {
        recipe,
        kernel: format!("vmlinux-{id}"),
        initramfs: format!("initramfs-{id}.cpio"),
        kernel_package,
        packages,
    };
    write_whole(&cache_dir.join(&manifest.kernel), &kernel)?;
    fs::rename(&initramfs, cache_dir.join(&manifest.initramfs)).context("cannot keep the initramfs")?;
    write_whole(&cache_dir.join("manifest.json"), &serde_json::to_vec_pretty(&manifest)?)?;
    remove_old(cache_dir, &debs, &manifest);
    Image::open(cache_dir, manifest).context("the image has disappeared")
}

fn id(recipe: &str, packages: &[String]) -> String {
    let hash = Sha256::digest(format!("{recipe}\n{}", packages.join("\n")));
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bzImage and the modules of an unpacked kernel package.
fn kernel_files(archive: &Archive, package: &str) -> Result<(PathBuf, Modules)> {
    let root = archive.package_dir(package);
    let release = package.strip_prefix("linux-image-").unwrap_or(package);
    let modules = ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|dir| root.join(dir).join(release))
        .find(|dir| dir.is_dir())
        .with_context(|| format!("{package} has no modules"))?;
    Ok((root.join("boot").join(format!("vmlinuz-{release}")), Modules::find(&modules)?))
}

fn write_initramfs(archive: &mut Archive, mut modules: Modules, to: &Path) -> Result<()> {
    let mut programs = PROGRAMS.iter().map(|name| archive.program(name)).collect::<Result<Vec<_>>>()?;
    let providers = PROVIDERS.iter().map(|name| provider(archive, name)).collect::<Result<Vec<_>>>()?;
    let mut linked = programs.clone();
    for provider in &providers {
        linked.push(archive.file(provider)?);
    }
    linked.push(archive.library(LATE_LIBRARY).with_context(|| format!("no package has {LATE_LIBRARY}"))?);
    let libraries = archive.libraries(&linked)?;
    programs.push(archive.program("busybox")?);

    let mut cpio = Cpio::new(BufWriter::new(File::create(to)?));
    for dir in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/sbin", "var"] {
        cpio.directory(dir)?;
    }
    for (file, content) in [
        ("passwd", "root::0:0:root:/:/bin/sh\n"),
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("nsswitch.conf", "passwd: files\nhosts: files\n"),
    ] {
        cpio.file(&format!("etc/{file}"), 0o644, content.as_bytes())?;
    }
    for program in &programs {
        let name =
            program.path.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
        let dir = if name == "busybox" { "bin" } else { "usr/bin" };
        cpio.file(&format!("{dir}/{name}"), 0o755, &fs::read(&program.path)?)?;
    }
    for (name, library) in &libraries {
        // The only library that programs name by its path.
        let dir = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
        cpio.file(&format!("{dir}/{name}"), 0o755, &fs::read(&library.path)?)?;
    }
    let late = archive.library(LATE_LIBRARY).with_context(|| format!("no package has {LATE_LIBRARY}"))?;
    if !libraries.contains_key(LATE_LIBRARY) {
        cpio.file(&format!("lib/x86_64-linux-gnu/{LATE_LIBRARY}"), 0o755, &fs::read(&late.path)?)?;
    }
    let lists = PROVIDERS.map(|name| format!("{PROVIDER_LIST_DIR}/{name}.driver"));
    for file in lists.iter().chain(&providers) {
        cpio.file(file, 0o644, &fs::read(archive.file(file)?.path)?)?;
    }
    for (list, wanted) in MODULES {
        // The list from which `init.sh` loads the modules.
        let names: String = modules.order(wanted)?.iter().map(|name| format!("{name}\n")).collect();
        cpio.file(&format!("modules/{list}"), 0o644, names.as_bytes())?;
    }
    for (name, image) in modules.taken() {
        cpio.file(&format!("modules/{name}.ko"), 0o644, image)?;
    }
    cpio.finish().map(drop)
}

/// Returns the path of `libNAME-rdmavNN.so`.
fn provider(archive: &Archive, name: &str) -> Result<String> {
    let dir = archive.package_dir("ibverbs-providers").join(PROVIDER_DIR);
    let names = fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let found = names.find(|found| found.starts_with(&format!("lib{name}-")));
    Ok(format!("{PROVIDER_DIR}/{}", found.with_context(|| format!("rdma-core has no provider {name}"))?))
}

/// Writes a file atomically: it appears complete or not at all.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().context("a file without a directory")?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(content)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Removes the unpacked packages of interrupted builds, some 400 MB each. The caller holds the lock, so no
/// build is running.
fn remove_interrupted(cache_dir: &Path) {
    for (name, path) in files_of(cache_dir) {
        if name.starts_with(WORK_PREFIX) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Removes the files of earlier builds. A running machine has read its files already.
fn remove_old(cache_dir: &Path, debs: &Path, manifest: &Manifest) {
    let keep = [&manifest.kernel, &manifest.initramfs];
    let images = files_of(cache_dir).into_iter().filter(|(name, _)| {
        let ours = ["vmlinux-", "initramfs-", layer::PREFIX].iter().any(|prefix| name.starts_with(prefix));
        ours && !keep.contains(&name)
    });
    let packages = files_of(debs).into_iter().filter(|(name, _)| {
        // In a file's name, apt writes the colon of a version's epoch as %3a.
        name.ends_with(".deb") && !manifest.packages.contains(name)
    });
    for (_, path) in images.chain(packages) {
        // A file that remains only uses disk space.
        let _ = fs::remove_file(path);
    }
}

fn files_of(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let named = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, entry.path()));
    entries.filter_map(|entry| named(entry.ok()?)).collect()
}
