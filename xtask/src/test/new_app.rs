//! `cargo xtask new-app` in a copy of the repository: the application that it makes runs, and a bad name
//! leaves nothing behind.

use anyhow::{Context, Result, ensure};
use end_to_end::runner::{Case, Lane, Outcome};
use lab::{paths, tool};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest silence of a compiler.
const SILENCE: Duration = Duration::from_secs(600);
/// The name of the new application.
const NAME: &str = "word-length";
/// Directories that are not copied: compiled crates, and the history.
const SKIPPED: [&str; 2] = ["target", ".git"];
/// The files that `new-app` changes.
const CHANGED: [&str; 5] =
    ["Cargo.toml", "Cargo.lock", "kernel/Cargo.lock", "apps/all/Cargo.toml", "apps/all/src/lib.rs"];

pub(super) fn cases() -> Vec<Case> {
    // It compiles everything into a target directory of its own.
    vec![Case::new("apps::new-app", check).in_lane(Lane::Tools).full_if(true)]
}

/// A copy of the repository. It is always at the same place, and its files have the times of the originals,
/// so that cargo compiles only what has changed since the last test.
struct Copied {
    root: PathBuf,
    target: PathBuf,
}

impl Copied {
    fn new() -> Result<Self> {
        let work = paths::state()?.join("new-app");
        let root = work.join("tree");
        if root.exists() {
            fs::remove_dir_all(&root).context("cannot remove the former copy")?;
        }
        copy(&paths::root(), &root)?;
        Ok(Self { root, target: work.join("target") })
    }

    /// Returns a command that works on the copy. The directory of a package, which cargo would set, tells
    /// xtask where the repository is.
    fn command(&self, program: &str, directory: &str) -> Command {
        let directory = self.root.join(directory);
        let mut command = Command::new(program);
        command.current_dir(&directory).env("CARGO_TARGET_DIR", &self.target);
        command.env("CARGO_MANIFEST_DIR", directory);
        command
    }

    fn xtask(&self, words: &[&str]) -> Command {
        let mut command = self.command("/proc/self/exe", "xtask");
        command.args(words);
        command
    }

    /// Returns the contents of the files that `new-app` changes, and the names in `apps/`.
    fn state(&self) -> Result<(Vec<Vec<u8>>, Vec<PathBuf>)> {
        let files: Vec<Vec<u8>> =
            CHANGED.iter().map(|file| fs::read(self.root.join(file))).collect::<Result<_, _>>()?;
        let entries = fs::read_dir(self.root.join("apps"))?;
        let mut apps: Vec<_> = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
        apps.sort();
        Ok((files, apps))
    }

    /// Checks that `new-app` with this name fails with a line that contains `why`, and changes nothing.
    fn refuses(&self, name: &str, why: &str) -> Result<()> {
        let before = self.state()?;
        let done = self.xtask(&["new-app", name]).output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(!done.status.success(), "`new-app {name}` succeeds");
        ensure!(said.contains(why) && said.lines().count() == 1, "`new-app {name}` says: {said}");
        ensure!(self.state()? == before, "`new-app {name}` leaves something behind");
        Ok(())
    }
}

/// Copies a directory with the times of its files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                copy(&path, &target)?;
            }
        } else if entry.file_type()?.is_file() {
            fs::copy(&path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
            File::options().append(true).open(&target)?.set_modified(entry.metadata()?.modified()?)?;
        }
    }
    Ok(())
}

fn check(log: &Path) -> Result<Outcome> {
    let copied = Copied::new()?;
    // The first of these is refused by its form, the next by the crates, and the last by the table.
    copied.refuses("Word", "a letter first")?;
    copied.refuses("spin", "Cargo.lock has a crate of that name")?;
    let names = ["build", "--package", "applications", "--example", "names"];
    tool::run_ok(copied.command("cargo", "").args(names), log, SILENCE)?;
    copied.refuses("pagerank", "taken by an application")?;
    a_failure_is_undone(&copied, log)?;
    tool::run_ok(&mut copied.xtask(&["new-app", NAME]), log, SILENCE)?;
    it_runs(&copied, log)?;
    fs::remove_dir_all(&copied.root).context("cannot remove the copy")?;
    Ok(Outcome::Passed)
}

/// Checks that nothing is left if the last step fails: the lock file of the kernel cannot be made.
fn a_failure_is_undone(copied: &Copied, log: &Path) -> Result<()> {
    let manifest = copied.root.join("kernel/Cargo.toml");
    let (text, before) = (fs::read_to_string(&manifest)?, copied.state()?);
    fs::write(&manifest, "no manifest")?;
    let failed = tool::run(&mut copied.xtask(&["new-app", NAME]), log, SILENCE)?;
    fs::write(&manifest, text)?;
    ensure!(!failed.status.success(), "`new-app` succeeds without a kernel");
    ensure!(copied.state()? == before, "a failed `new-app` leaves something behind");
    Ok(())
}

/// Runs the new application on two Linux nodes, and on two appliances whose image has no other. The copy's
/// own xtask does the second, because the list of applications is compiled into it.
fn it_runs(copied: &Copied, log: &Path) -> Result<()> {
    let (input, output) = (copied.root.join("input"), copied.root.join("output"));
    fs::write(&input, "one\nthree\n")?;
    let mut own = copied.command("cargo", "");
    own.args(["run", "--bin", "xtask", "--", "run", "--apps", NAME]);
    for mut run in [copied.xtask(&["run", "--linux"]), own] {
        run.args(["--nodes", "2", "--app", NAME, "--arg", "least=4"]);
        tool::run_ok(run.arg("--input").arg(&input).arg("--output").arg(&output), log, SILENCE)?;
        let found = fs::read_to_string(&output)?;
        ensure!(found == "lines\t1\nlongest\t5\n", "another result: {found}");
        fs::remove_file(&output)?;
    }
    Ok(())
}
