//! `cargo xtask release`: the files of a release in one directory.

mod licences;
mod sums;
mod version;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lab::cargo::{self, Profile};
use lab::image::{self, Apps, Contents};
use lab::{paths, setup, tool, ui};
use std::fs;
use std::path::{Path, PathBuf};

/// The options of `cargo xtask release`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Directory for the files; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The files of the repository that a release contains as they are, and their places in it.
const COPIED: [(&str, &str); 6] = [
    ("host/capi/include/ferrolite.h", "include/ferrolite.h"),
    ("host/capi/python/ferrolite.py", "python/ferrolite.py"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("docs/security.md", "docs/security.md"),
];

/// Builds the images, the programs of the host and the library for C, and writes them with the header, the
/// Python module, the version, the licences of all dependencies, and checksums. Refuses a checkout with
/// changes.
pub(crate) fn release(options: &Options) -> Result<()> {
    let root = paths::root();
    let commit = version::clean_commit(&root)?;
    let version = version::of_all_crates(&version::manifests(&root)?)?;
    let out = empty_directory(&options.out)?;
    setup::bindings()?;
    for (name, contents) in
        [("ferrolite.elf", Contents::default()), ("ferrolite-core.elf", Contents::with(Apps::core()))]
    {
        let image = ui::step(&format!("the image {name}"), || image::build_of(&contents))?;
        copy(&image.elf, &out.join("images").join(name))?;
    }
    for name in ["ferrolite", "ferrolite-manager"] {
        let program = ui::step(&format!("the program {name}"), || cargo::program(name, Profile::Release))?;
        copy(&program, &out.join("bin").join(name))?;
    }
    for library in ui::step("the library for C", build_library)? {
        let name = library.file_name().context("a library without a name")?.to_owned();
        copy(&library, &out.join("lib").join(name))?;
    }
    for (from, to) in COPIED {
        copy(&root.join(from), &out.join(to))?;
    }
    write(&out.join("VERSION"), &format!("ferrolite {version}\ncommit {commit}\n"))?;
    write(&out.join("LICENCES.md"), &licences::page(&licences::metadata()?)?)?;
    // The builds take minutes, in which the checkout may have changed.
    let now = version::clean_commit(&root)?;
    ensure!(now == commit, "the checkout was at commit {commit} and is at {now} now: start again");
    let sums = sums::of_directory(&out)?;
    write(&out.join(sums::FILE), &sums)?;
    println!("{}: Ferrolite {version}, commit {commit}, {} files", out.display(), sums.lines().count() + 1);
    Ok(())
}

/// Creates the directory of the release, and returns its path.
fn empty_directory(out: &Path) -> Result<PathBuf> {
    let out = std::path::absolute(out).with_context(|| format!("{} is no path", out.display()))?;
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    if fs::read_dir(&out).with_context(|| format!("cannot read {}", out.display()))?.next().is_some() {
        bail!("{} is not empty; a release needs a directory of its own", out.display());
    }
    Ok(out)
}

/// Builds the library for C as it ships, with RNICs through libibverbs. Returns the shared and the static
/// library.
fn build_library() -> Result<[PathBuf; 2]> {
    let mut build = cargo::host("build");
    build.args(["--release", "--package", "ferrolite", "--features", "ferrolite/libibverbs"]);
    tool::run_visible(&mut build).context("the library for C does not build")?;
    let dir = paths::target().join("release");
    Ok([dir.join("libferrolite.so"), dir.join("libferrolite.a")])
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copied_files_exist() {
        for (from, _) in COPIED {
            assert!(paths::root().join(from).is_file(), "{from}");
        }
    }

    #[test]
    fn only_an_empty_directory_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/release");
        assert_eq!(empty_directory(&out).unwrap(), out);
        assert!(empty_directory(&out).is_ok());
        fs::write(out.join("x"), "").unwrap();
        let why = empty_directory(&out).unwrap_err().to_string();
        assert!(why.ends_with("is not empty; a release needs a directory of its own"), "{why}");
    }
}
