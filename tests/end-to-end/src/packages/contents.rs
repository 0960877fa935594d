//! The contents of the packages, as dpkg-deb shows them.

use super::{LIMIT, made};
use anyhow::{Context, Result, ensure};
use lab::tool;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files that each package must have, in the order of [`super::NAMES`].
const FILES: [&[&str]; 3] = [
    &[
        "etc/default/ferrolite-manager",
        "etc/ferrolite/manager.toml",
        "usr/bin/ferrolite",
        "usr/bin/ferrolite-manager",
        "usr/lib/ferrolite/ferrolite.efi",
        "usr/lib/systemd/system/ferrolite-manager.service",
        "usr/lib/systemd/system/ferrolite-pxe.service",
        "usr/lib/sysusers.d/ferrolite.conf",
        "usr/share/man/man1/ferrolite-manager.1.gz",
        "usr/share/man/man1/ferrolite-job-submit.1.gz",
    ],
    &[
        "usr/bin/lite-node",
        "usr/include/ferrolite.h",
        "usr/lib/python3/dist-packages/ferrolite.py",
        "usr/lib/systemd/system/ferrolite-node.service",
        "usr/lib/x86_64-linux-gnu/libferrolite.so.0",
        "usr/share/man/man1/lite-node.1.gz",
    ],
    &["usr/bin/cx3", "usr/share/man/man1/cx3.1.gz"],
];
/// The packages of Debian that have the libraries that programs may need.
const LIBRARIES: [(&str, &str); 5] = [
    ("ld-linux-x86-64.so.2", "libc6"),
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("libibverbs.so.1", "libibverbs1"),
];

/// Makes the packages of tests, and checks each.
pub(super) fn check(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let packages = made(&dir.path().join("packages"), &["--dev"], log)?;
    for (package, files) in packages.iter().zip(FILES) {
        let tree = dir.path().join(package.file_stem().context("no name")?);
        tool::run_ok(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&tree), log, LIMIT)?;
        let name = package.display();
        for file in files {
            ensure!(tree.join(file).exists(), "{name} has no {file}");
        }
        check_owners(package, log)?;
        check_scripts(&tree, log)?;
        check_libraries(&tree, log).with_context(|| format!("{name}"))?;
        check_units(&tree)?;
        check_settings(&tree, log)?;
    }
    Ok(())
}

/// Fails unless all files are root's, and only theirs to write.
fn check_owners(package: &Path, log: &Path) -> Result<()> {
    let list = tool::run_ok(Command::new("dpkg-deb").arg("--contents").arg(package), log, LIMIT)?;
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        ensure!(words.get(1) == Some(&"root/root"), "not of root: {line}");
        let mode = words.first().context("an empty line")?;
        ensure!(mode.starts_with('l') || mode.chars().nth(8) == Some('-'), "others may write: {line}");
    }
    Ok(())
}

/// Fails unless the shell can read the scripts.
fn check_scripts(tree: &Path, log: &Path) -> Result<()> {
    for script in ["postinst", "prerm", "postrm"] {
        let path = tree.join("DEBIAN").join(script);
        if path.exists() {
            tool::run_ok(Command::new("sh").arg("-n").arg(path), log, LIMIT)?;
        }
    }
    Ok(())
}

/// Fails unless each program runs and the package depends on the owners of all libraries of its programs.
fn check_libraries(tree: &Path, log: &Path) -> Result<()> {
    let control = fs::read_to_string(tree.join("DEBIAN/control"))?;
    let depends = control.lines().find_map(|line| line.strip_prefix("Depends: ")).context("no Depends")?;
    let depends: BTreeSet<&str> =
        depends.split(", ").filter_map(|package| package.split_whitespace().next()).collect();
    for entry in fs::read_dir(tree.join("usr/bin"))? {
        let program = entry?.path();
        let dump = tool::run_ok(Command::new("objdump").arg("-p").arg(&program), log, LIMIT)?;
        for library in dump.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")) {
            let library = library.trim();
            let owner = LIBRARIES.iter().find(|(name, _)| *name == library);
            let (_, owner) = owner.with_context(|| format!("{} needs {library}", program.display()))?;
            ensure!(depends.contains(owner), "{} needs {library} of {owner}", program.display());
        }
        tool::run_ok(Command::new(&program).arg("--version"), log, LIMIT)?;
    }
    Ok(())
}

/// Fails unless the manager takes the file of its settings, if the package has one.
fn check_settings(tree: &Path, log: &Path) -> Result<()> {
    let file = tree.join("etc/ferrolite/manager.toml");
    if file.exists() {
        let mut check = Command::new(tree.join("usr/bin/ferrolite"));
        tool::run_ok(check.args(["config", "check"]).arg(file), log, LIMIT)?;
    }
    Ok(())
}

/// Fails unless each unit names a program of its package, runs as another user than root, and has no
/// capability; ports below 1024 are the PXE service's alone.
fn check_units(tree: &Path) -> Result<()> {
    let Ok(units) = fs::read_dir(tree.join("usr/lib/systemd/system")) else { return Ok(()) };
    for entry in units {
        let path = entry?.path();
        let unit = fs::read_to_string(&path)?;
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let start = value("ExecStart").and_then(|line| line.split_whitespace().next()).context("no start")?;
        ensure!(tree.join(start.trim_start_matches('/')).exists(), "{}: no {start}", path.display());
        let user = value("User").or(value("DynamicUser"));
        ensure!(user.is_some_and(|user| user != "root"), "{} runs as root", path.display());
        ensure!(value("Type") == Some("notify"), "{} says nothing when it is ready", path.display());
        let expected: &[&str] = if path.ends_with("ferrolite-pxe.service") {
            &["CAP_NET_BIND_SERVICE", "CAP_NET_RAW"]
        } else {
            &[]
        };
        for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
            let has: Vec<&str> = value(key).unwrap_or_default().split_whitespace().collect();
            ensure!(has == expected, "{}: {key} is {has:?}", path.display());
        }
    }
    Ok(())
}
