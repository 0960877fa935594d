//! Images with further complete Debian packages and all their dependencies, cached.

use super::cpio::Cpio;
use super::image::{self, Image};
use crate::debian::archive::Archive;
use crate::debian::{Apt, apt};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The prefix of the names of an extended image's files.
pub(super) const PREFIX: &str = "extended-";
/// Directories that are left out, because no program reads them; also character set converters, of which the
/// C library has 8 MB.
const LEFT_OUT: [&str; 7] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/info",
    "usr/share/bug",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// The description of the cached image and its origin.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    recipe: String,
    /// The file name of the initramfs that is extended.
    base: String,
    files: Vec<String>,
    initramfs: String,
}

/// Returns the image extended with some packages. The caller holds the cache's lock.
pub(super) fn extend(apt: &Apt, cache_dir: &Path, base: &Image, packages: &[&str]) -> Result<Image> {
    for package in packages {
        ensure!(is_name(package), "`{package}` is not a name of a Debian package");
    }
    let mut wanted = packages.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let path = cache_dir.join(format!("{PREFIX}{}.json", short_hash(&wanted.join(" "))));
    let base_name = base.initramfs.file_name().and_then(|name| name.to_str()).context("no initramfs")?;
    let recipe = short_hash(include_str!("layer.rs"));
    let cached = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok());
    let cached = cached.filter(|manifest| {
        manifest.recipe == recipe
            && manifest.base == base_name
            && cache_dir.join(&manifest.initramfs).is_file()
    });
    let files = closure(apt, &wanted);
    match (cached, files) {
        // If apt cannot tell the current packages, the cached image counts as current.
        (Some(manifest), Err(_)) => Ok(image(cache_dir, base, manifest)),
        (Some(manifest), Ok(files)) if manifest.files == files => Ok(image(cache_dir, base, manifest)),
        (_, files) => {
            let files = files?;
            let id = short_hash(&format!("{recipe}\n{base_name}\n{}", files.join("\n")));
            let manifest = Manifest {
                recipe,
                base: base_name.to_owned(),
                files,
                initramfs: format!("{PREFIX}{id}.cpio"),
            };
            build(apt, cache_dir, base, &manifest)?;
            image::write_whole(&path, &serde_json::to_vec_pretty(&manifest)?)?;
            Ok(image(cache_dir, base, manifest))
        }
    }
}

fn image(cache_dir: &Path, base: &Image, manifest: Manifest) -> Image {
    let mut packages = [base.packages.clone(), manifest.files].concat();
    packages.sort();
    packages.dedup();
    Image { kernel: base.kernel.clone(), initramfs: cache_dir.join(manifest.initramfs), packages }
}

fn closure(apt: &Apt, packages: &[&str]) -> Result<Vec<String>> {
    let sorted = |mut files: Vec<String>| {
        files.sort();
        files
    };
    apt.closure(packages).map(sorted).or_else(|first| {
        // If the lists contain the kernel, they are complete and the package's name is wrong.
        if apt.knows(image::KERNEL_META_PACKAGE)
            && let Some(unknown) = packages.iter().find(|package| !apt.knows(package))
        {
            bail!("apt knows no package {unknown}");
        }
        apt.update().with_context(|| format!("after: {first:#}"))?;
        apt.closure(packages).map(sorted)
    })
}

fn build(apt: &Apt, cache_dir: &Path, base: &Image, manifest: &Manifest) -> Result<()> {
    let debs = cache_dir.join("debs");
    fs::create_dir_all(&debs)?;
    let work = tempfile::Builder::new().prefix(image::WORK_PREFIX).tempdir_in(cache_dir)?;
    let mut archive = Archive::new(apt.clone(), debs, work.path().join("unpacked"));
    archive.add_files(&manifest.files)?;
    let path = work.path().join("initramfs.cpio");
    let mut whole = BufWriter::new(File::create(&path)?);
    io::copy(&mut File::open(&base.initramfs).context("cannot read the initramfs")?, &mut whole)?;
    let mut cpio = Cpio::new(whole);
    for file in &manifest.files {
        add_tree(&mut cpio, &archive.package_dir(apt::package_of(file)), Path::new(""))?;
    }
    cpio.finish()?;
    fs::rename(&path, cache_dir.join(&manifest.initramfs)).context("cannot keep the initramfs")
}

/// Adds the files below `root`/`at`, in the order of their names.
fn add_tree<W: Write>(cpio: &mut Cpio<W>, root: &Path, at: &Path) -> Result<()> {
    let mut entries = fs::read_dir(root.join(at))?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = at.join(entry.file_name());
        let name = path.to_str().with_context(|| format!("{} is not text", path.display()))?;
        let kind = entry.file_type()?;
        if LEFT_OUT.contains(&name) {
            continue;
        }
        if kind.is_dir() {
            cpio.directory(name)?;
            add_tree(cpio, root, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?;
            cpio.link(name, target.to_str().with_context(|| format!("the target of {name} is not text"))?)?;
        } else if kind.is_file() {
            cpio.file(name, entry.metadata()?.permissions().mode(), &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// Debian policy, section 5.6.7: at least two characters, lower case letters, digits, `+`, `-`, `.`; the
/// first is a letter or digit.
fn is_name(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() >= 2
        && name.bytes().next().is_some_and(letter)
        && name.bytes().all(|b| letter(b) || b"+-.".contains(&b))
}

fn short_hash(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages() {
        assert!(["python3-minimal", "libstdc++6", "linux-image-6.1.0-49-amd64"].into_iter().all(is_name));
        assert!(["", "a", "-y", "--option", "Python", "a b", "a;b", "../x"].into_iter().all(|n| !is_name(n)));
    }

    #[test]
    fn a_package_goes_in_as_it_is_but_for_its_documentation() {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["usr/bin", "usr/share/doc/x"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        fs::write(dir.path().join("usr/bin/tool"), "#!").unwrap();
        fs::set_permissions(dir.path().join("usr/bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("usr/share/doc/x/README"), "read").unwrap();
        std::os::unix::fs::symlink("tool", dir.path().join("usr/bin/alias")).unwrap();
        let mut cpio = Cpio::new(Vec::new());
        add_tree(&mut cpio, dir.path(), Path::new("")).unwrap();
        let mut expected = Cpio::new(Vec::new());
        expected.link("usr/bin/alias", "tool").unwrap();
        expected.file("usr/bin/tool", 0o755, b"#!").unwrap();
        expected.directory("usr/share").unwrap();
        assert_eq!(cpio.finish().unwrap(), expected.finish().unwrap());
    }
}
