//! Tests by tools that are not part of the stable toolchain: fuzzing by `cargo fuzz`, Miri, spelling by
//! `typos`, and licences by `cargo deny`.
//!
//! Fuzzing and Miri run code that `cargo test` runs too. If a tool is missing, its tests are reported as
//! skipped.
//! `--full` first tries to install it; the quick set uses only tools that are installed.

use anyhow::{Context, Result, bail, ensure};
use end_to_end::runner::{Case, Lane, Outcome};
use lab::{cargo, paths, tool};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence. Miri prints nothing while a test runs.
const SILENCE: Duration = Duration::from_secs(1200);
/// The duration of fuzzing a target.
const FUZZING: Duration = Duration::from_secs(30);
/// The longest generated input, in bytes: enough for a whole frame, and for some hundreds of decisions.
const LONGEST_INPUT: u32 = 4400;

/// A fuzz target: its name, and its initial inputs.
struct Target {
    name: &'static str,
    seeds: fn() -> Result<Vec<Vec<u8>>>,
}

const TARGETS: [Target; 8] = [
    Target { name: "boot", seeds: decisions },
    Target { name: "parse", seeds: captured_frames },
    Target { name: "two_transports", seeds: decisions },
    Target { name: "card_commands", seeds: decisions },
    Target { name: "card_queues", seeds: decisions },
    Target { name: "card_slave", seeds: decisions },
    Target { name: "device", seeds: decisions },
    Target { name: "manager", seeds: decisions },
];

pub(super) fn cases(full: bool) -> Vec<Case> {
    let mut cases: Vec<_> = TARGETS
        .into_iter()
        .map(|target| Case::new(format!("fuzz::{}", target.name), move |log| fuzz(&target, full, log)))
        .collect();
    cases.push(Case::new("lint::typos", move |log| typos(full, log)));
    cases.push(Case::new("lint::dependencies", move |log| deny(full, log)));
    cases.push(Case::new("miri::roce", move |log| miri_of_transport(full, log)));
    cases.push(Case::new("miri::connectx3", move |log| miri_of_card(full, log)));
    cases.push(Case::new("miri::mlx4", move |log| miri_of_driver(full, log)));
    cases.into_iter().map(|case| case.in_lane(Lane::Tools)).collect()
}

/// Fuzzes one target for [`FUZZING`], with a seed that the log names. Each run starts from the inputs of
/// earlier ones that reached new code, which stay in the directory of the target.
fn fuzz(target: &Target, install: bool, log: &Path) -> Result<Outcome> {
    let Some(path) = path_with("cargo-fuzz", "cargo-fuzz", install, log)? else {
        return Ok(Outcome::Skipped("there is no cargo-fuzz; --full installs it".into()));
    };
    let work = paths::made(paths::state()?.join("fuzz").join(target.name))?;
    let corpus = paths::made(work.join("corpus"))?;
    for (n, seed) in (target.seeds)()?.into_iter().enumerate() {
        std::fs::write(corpus.join(format!("seed-{n}")), seed)?;
    }
    let mut command = Command::new("cargo");
    // There is hardly any unsafe code to watch, and without a sanitizer stable Rust is enough.
    command.args(["fuzz", "run", "--sanitizer", "none", "--target-dir"]).arg(paths::target().join("fuzz"));
    command.arg(target.name).arg(&corpus).arg("--");
    command.arg(format!("-max_total_time={}", FUZZING.as_secs()));
    command.arg(format!("-max_len={LONGEST_INPUT}"));
    command.arg(format!("-artifact_prefix={}/", work.display()));
    command.args(["-timeout=20", "-print_final_stats=1"]);
    command.current_dir(paths::root().join("fuzz")).env("PATH", path);
    let output = tool::run_ok(&mut command, log, SILENCE)?;
    let runs = output.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
    let runs: u64 =
        runs.and_then(|n| n.trim().parse().ok()).context("it did not say how many runs there were")?;
    ensure!(runs >= 1000, "only {runs} runs in {} s", FUZZING.as_secs());
    Ok(Outcome::Passed)
}

/// Returns the search path with a tool in it, which is installed from its package if allowed; `None` if it is
/// not available.
fn path_with(program: &str, package: &str, install: bool, log: &Path) -> Result<Option<OsString>> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    if tool::exists(program) {
        return Ok(Some(inherited));
    }
    let own = paths::state()?.join("tools");
    let there = own.join("bin").join(program);
    if install && !there.is_file() {
        let mut command = Command::new("cargo");
        command.args(["install", "--quiet", "--locked", package, "--root"]).arg(&own);
        // The attempt is in the log. An unreachable registry is not a failure of the tests.
        tool::run(&mut command, log, SILENCE)?;
    }
    if !there.is_file() {
        return Ok(None);
    }
    let dirs = std::iter::once(own.join("bin")).chain(std::env::split_paths(&inherited));
    Ok(Some(std::env::join_paths(dirs)?))
}

/// Looks for misspelt words in all files, by `typos` with `_typos.toml`.
fn typos(install: bool, log: &Path) -> Result<Outcome> {
    let Some(path) = path_with("typos", "typos-cli", install, log)? else {
        return Ok(Outcome::Skipped("there is no typos; --full installs it".into()));
    };
    let mut command = Command::new("typos");
    command.args(["--format", "brief", "--hidden"]).current_dir(paths::root()).env("PATH", path);
    tool::run_ok(&mut command, log, SILENCE)?;
    Ok(Outcome::Passed)
}

/// Checks licences, duplicates and sources of all dependencies, by `cargo deny` with `deny.toml`. Advisories
/// need a database from the network, so they are left to a call by hand.
fn deny(install: bool, log: &Path) -> Result<Outcome> {
    let Some(path) = path_with("cargo-deny", "cargo-deny", install, log)? else {
        return Ok(Outcome::Skipped("there is no cargo-deny; --full installs it".into()));
    };
    let mut command = cargo::host("deny");
    command.args(["--offline", "check", "licenses", "bans", "sources"]).env("PATH", path);
    tool::run_ok(&mut command, log, SILENCE)?;
    Ok(Outcome::Passed)
}

/// Returns the frames of all captures.
fn captured_frames() -> Result<Vec<Vec<u8>>> {
    let dir = paths::root().join("drivers/roce/tests/data");
    let mut captures: Vec<_> =
        std::fs::read_dir(&dir)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    captures.retain(|path| path.extension().is_some_and(|e| e == "pcap"));
    captures.sort();
    let mut frames = Vec::new();
    for path in captures {
        let bytes = std::fs::read(&path)?;
        let mut rest = bytes.get(24..).context("a capture without a header")?;
        while let Some((header, after)) = rest.split_first_chunk::<16>() {
            let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
            let (frame, next) =
                after.split_at_checked(len).with_context(|| format!("{} is cut", path.display()))?;
            frames.push(frame.to_vec());
            rest = next;
        }
    }
    if frames.is_empty() {
        bail!("no captures in {}", dir.display());
    }
    Ok(frames)
}

/// Returns strings of decisions from a fixed generator (SplitMix64), calm ones and wild ones.
fn decisions() -> Result<Vec<Vec<u8>>> {
    let mut state = 1u64;
    let mut byte = |calm: bool| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let byte = (mixed >> 56) as u8;
        if calm { byte & 0x8c } else { byte }
    };
    Ok((0..40).map(|n| (0..600).map(|_| byte(n % 2 == 0)).collect()).collect())
}

/// Runs tests of the transport in Miri, which detects undefined behaviour. The carry-less ICRC is included.
fn miri_of_transport(install: bool, log: &Path) -> Result<Outcome> {
    let tests = ["icrc::", "replay::", "parse::", "transports::"];
    miri(["--package", "roce", "--lib"], install, log)?;
    miri(
        ["--package", "roce", "--package", "hostile-transport", "--test", "it", "--"]
            .into_iter()
            .chain(tests),
        install,
        log,
    )
}

/// Runs tests of the emulated card in Miri, except those with system calls that Miri does not support, and a
/// long one.
fn miri_of_card(install: bool, log: &Path) -> Result<Outcome> {
    const LONG: &str = "many_groups";
    let args = ["--package", "connectx3", "--lib", "--", "--skip", "vfio::", "--skip", LONG];
    miri(args, install, log)
}

/// Runs tests of the driver in Miri, except a long one.
fn miri_of_driver(install: bool, log: &Path) -> Result<Outcome> {
    const LONG: &str = "numbers_are_taken_once";
    miri(["--package", "mlx4", "--lib", "--", "--skip", LONG], install, log)
}

fn miri(args: impl IntoIterator<Item = &'static str>, install: bool, log: &Path) -> Result<Outcome> {
    if !has_miri(install, log)? {
        return Ok(Outcome::Skipped("there is no Miri in a nightly toolchain; --full installs it".into()));
    }
    let mut command = Command::new("cargo");
    command.args(["+nightly", "miri", "test", "--target-dir"]).arg(paths::target().join("miri")).args(args);
    // The tests read captures from files.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("RUSTFLAGS", "-Ctarget-feature=+pclmulqdq");
    tool::run_ok(command.current_dir(paths::root()), log, SILENCE)?;
    Ok(Outcome::Passed)
}

fn has_miri(install: bool, log: &Path) -> Result<bool> {
    let there = || tool::output(Command::new("cargo").args(["+nightly", "miri", "--version"])).is_ok();
    if there() || !install || !tool::exists("rustup") {
        return Ok(there());
    }
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"]);
    tool::run(&mut command, log, SILENCE)?;
    Ok(there())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_the_targets_take() {
        assert_eq!(captured_frames().expect("captures").len(), 723);
        let decisions = decisions().expect("always");
        assert!(decisions.iter().all(|seed| seed.len() == 600) && decisions[0] != decisions[2]);
    }
}
