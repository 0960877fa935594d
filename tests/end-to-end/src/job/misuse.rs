//! Tests of bad input: one clear line, a non-zero status, and no output file.

use super::inputs::Input;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Result, bail, ensure};
use lab::tool;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// Arguments of `run`, each with a text that its error line must contain.
const WRONG: [(&str, &[&str], &str); 12] = [
    ("missing-file", &["--input", "/nowhere/text"], "cannot read /nowhere/text: No such file"),
    ("directory-as-input", &["--input", "/usr"], "cannot read /usr: not a file"),
    ("no-nodes", &["--nodes", "0"], "0 is not in 1..=16"),
    ("too-many-nodes", &["--nodes", "17"], "17 is not in 1..=16"),
    ("unknown-app", &["--app", "wordcloud"], "wordcloud"),
    ("unknown-nic", &["--nic", "cx9"], "cx9"),
    ("unknown-option", &["--node", "3"], "--node"),
    ("bad-rdma-limit", &["--rdma-limit", "5MB"], "want a rate as in 500MB/s"),
    ("bad-faults", &["--fabric", "loss=2"], "fault loss: `2` is not a probability"),
    (
        "unwritable-output",
        &["--output", "/nowhere/out"],
        "cannot write the output /nowhere/out: No such file",
    ),
    (
        "unwritable-figures",
        &["--json", "/nowhere/json"],
        "cannot write the figures /nowhere/json: No such file",
    ),
    ("little-memory", &["--nodes", "2", "--memory", "9"], "too little memory: needs "),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = WRONG
        .into_iter()
        .map(|(name, args, says)| {
            Case::new(format!("misuse::{name}"), move |log| {
                refused(args, says, log).map(|()| Outcome::Passed)
            })
        })
        .collect();
    cases.push(Case::new("misuse::input-beyond-memory", |log| large(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("misuse::unreadable-file", |log| unreadable(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("misuse::unknown-test", |log| {
        let done = tool::run(xtask().args(["test", "lint", "no-such"]), log, Duration::from_secs(60))?;
        ensure!(!done.status.success(), "it succeeded");
        let says = "error: no test of this set has `no-such` in its name";
        ensure!(done.output.lines().next().is_some_and(|line| line.starts_with(says)), "{}", done.output);
        Ok(Outcome::Passed)
    }));
    cases.push(Case::new("misuse::tests-beside-tests", |log| {
        // This run has the lock of the clone.
        let done = tool::run(xtask().args(["test", "lint::cycles"]), log, Duration::from_secs(60))?;
        ensure!(!done.status.success(), "it succeeded");
        ensure!(done.output.lines().count() == 1, "{}", done.output);
        one_error(&done.output, "other tests run in this clone")?;
        Ok(Outcome::Passed)
    }));
    cases.push(Case::new("misuse::busy-port", |log| {
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let port = taken.local_addr()?.port().to_string();
        refused(&["--port", &port], &port, log).map(|()| Outcome::Passed)
    }));
    cases
}

/// Submits more input than the nodes have memory for.
fn large(log: &Path) -> Result<()> {
    let input = Input::LongWord.prepared(log)?.input;
    let args = ["--nodes", "1", "--memory", "32", "--input", &input.to_string_lossy()];
    refused(&args, "too little memory: needs ", log)
}

/// Uses a file that exists and that even root cannot read.
fn unreadable(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (socket, secret) = (dir.path().join("socket"), dir.path().join("secret"));
    let _listener = UnixListener::bind(&socket)?;
    std::fs::write(&secret, "text")?;
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o0))?;
    let files = [Some(&socket), std::fs::File::open(&secret).is_err().then_some(&secret)];
    for file in files.into_iter().flatten() {
        let file = file.to_string_lossy();
        refused(&["--input", &file], &format!("cannot read {file}: "), log)?;
    }
    Ok(())
}

/// Runs and expects a failure: non-zero status, no file, and exactly one line that starts with `error:`,
/// which is the last.
pub(crate) fn refused(args: &[&str], says: &str, log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let mut command = xtask();
    command.arg("run").args(args);
    if !args.contains(&"--output") {
        command.arg("--output").arg(&output);
    }
    let done = tool::run(&mut command, log, Duration::from_secs(300))?;
    ensure!(!done.status.success(), "it succeeded");
    one_error(&done.output, says)?;
    ensure!(std::fs::read_dir(dir.path())?.next().is_none(), "it left a file");
    Ok(())
}

/// Fails unless the last line, and no other, is an error that contains `says`.
pub(crate) fn one_error(output: &str, says: &str) -> Result<()> {
    let errors: Vec<_> = output.lines().filter(|l| l.starts_with("error")).collect();
    match errors[..] {
        [only] if output.lines().last() != Some(only) => bail!("the error is not the last line: {only}"),
        [only] if !only.contains(says) => bail!("it says `{only}`, which lacks `{says}`"),
        [_] => Ok(()),
        _ => bail!("{} lines start with `error`", errors.len()),
    }
}
