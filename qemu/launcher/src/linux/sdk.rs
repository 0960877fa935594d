//! C programs for Linux guests, compiled against Debian's rdma-core without installing it.

use crate::debian::command::{bounded, output};
use crate::debian::{Apt, apt, archive};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The packages with the headers, the link for the linker, and the library to which it leads.
const PACKAGES: [&str; 2] = ["libibverbs-dev", "libibverbs1"];
/// The time limit for compiling a small program on a busy host, in seconds.
const WITHIN_S: u32 = 120;

/// Compiles a C program that uses libibverbs with the host's `cc`. Headers and library are kept in the cache
/// directory.
pub fn compile(source: &Path, program: &Path, cache_dir: &Path) -> Result<()> {
    let sdk = sdk(cache_dir)?;
    let mut cc = bounded("cc", WITHIN_S);
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sdk.join("usr/include"));
    cc.arg("-o").arg(program).arg(source);
    // The library's own dependencies are in the guest.
    cc.arg("-L").arg(sdk.join("usr/lib/x86_64-linux-gnu"));
    output(cc.args(["-libverbs", "-Wl,--unresolved-symbols=ignore-in-shared-libs"])).map(drop)
}

fn sdk(cache_dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(cache_dir).with_context(|| format!("cannot create {}", cache_dir.display()))?;
    let lock = File::create(cache_dir.join("lock")).context("cannot create the cache's lock")?;
    lock.lock().context("cannot lock the cache")?;
    let wanted = PACKAGES.map(str::to_owned);
    // If apt cannot tell the newest packages, the cached ones are used.
    let files = Apt::host().candidates(&wanted).map(|mut files| {
        files.sort();
        files.join(" ")
    });
    let (dir, stamp) = (cache_dir.join("sdk"), cache_dir.join("sdk.packages"));
    match (fs::read_to_string(&stamp), &files) {
        (Ok(_), Err(_)) => return Ok(dir),
        (Ok(there), Ok(files)) if there == *files => return Ok(dir),
        _ => {}
    }
    let files = files?;
    let debs = cache_dir.join("sdk-debs");
    let _ = fs::remove_file(&stamp);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(&debs)?;
    let names: Vec<String> = files.split(' ').map(str::to_owned).collect();
    Apt::host().download(&archive::packages(&names), &debs)?;
    for file in &names {
        apt::unpack(&debs.join(file), &dir)?;
    }
    fs::remove_dir_all(&debs)?;
    fs::write(stamp, files)?;
    Ok(dir)
}
