//! Running other programs: quietly, with a deadline, with their output kept.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a program that has ended left behind.
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output and error, in the order written.
    pub output: String,
}

/// Runs a program to its end or kills it after `limit`, its output going to the file `log` (appended).
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Finished> {
    let mut file = File::options().create(true).append(true).read(true).open(log)?;
    writeln!(file, "$ {}", line(command))?;
    let start = file.stream_position()?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    qemu::die_with_this_thread(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program(command)))?;
    let status = wait(&mut child, limit)?;
    let mut output = Vec::new();
    file.seek(std::io::SeekFrom::Start(start))?;
    file.read_to_end(&mut output)?;
    match status {
        Some(status) => Ok(Finished { status, output: String::from_utf8_lossy(&output).into_owned() }),
        None => bail!("{} did not end within {} s", program(command), limit.as_secs()),
    }
}

/// As [`run`], and a failure is an error that says the last line of the output.
pub fn run_ok(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let done = run(command, log, limit)?;
    if !done.status.success() {
        let last = done.output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
        bail!("{} failed ({}): {last}", program(command), done.status);
    }
    Ok(done.output)
}

/// Runs a program whose progress people shall see, on standard error.
pub fn run_visible(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .with_context(|| format!("cannot run {}", program(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", line(command));
    }
    Ok(())
}

/// Runs a program and gives its standard output.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", program(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", program(command), output.status, said.lines().last().unwrap_or_default());
    }
    Ok(output.stdout)
}

/// Waits for a child's end; kills it after `limit` and gives `None`.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a program can be found in `PATH`.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn program(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
