//! Runs other programs: quietly, with a limit on their silence, and with their output kept.

use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{WaitId, WaitIdOptions};
use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The result of a program that has ended.
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output and standard error, in the order written.
    pub output: String,
}

/// Runs a program to its end and appends its output to the file `log`. A program that writes nothing for
/// `silence` is killed. Its total time is not limited, because a slow machine must still pass.
pub fn run(command: &mut Command, log: &Path, silence: Duration) -> Result<Finished> {
    let mut file = File::options().create(true).append(true).read(true).open(log)?;
    writeln!(file, "$ {}", line(command))?;
    let start = file.stream_position()?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    qemu::die_with_this_thread(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program(command)))?;
    let status = wait_while_it_writes(&mut child, &file, silence)?;
    let mut output = Vec::new();
    file.seek(std::io::SeekFrom::Start(start))?;
    file.read_to_end(&mut output)?;
    match status {
        Some(status) => Ok(Finished { status, output: String::from_utf8_lossy(&output).into_owned() }),
        None => bail!("{} was silent for {} s", program(command), silence.as_secs()),
    }
}

/// Runs a program as [`run`] does. A failure is an error that contains the last line of the output.
pub fn run_ok(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let done = run(command, log, limit)?;
    if !done.status.success() {
        let last = done.output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
        bail!("{} failed ({}): {last}", program(command), done.status);
    }
    Ok(done.output)
}

/// Runs a program whose output the user sees, on standard error.
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

/// Runs a program and returns its standard output.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", program(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", program(command), output.status, said.lines().last().unwrap_or_default());
    }
    Ok(output.stdout)
}

/// Runs a program until it has printed a line that begins with `last` on standard output, and kills it then.
/// Returns the lines up to that one. A program that ends before, or takes longer than `limit`, is an error.
pub fn lines_until(command: &mut Command, last: &str, limit: Duration) -> Result<Vec<String>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    qemu::die_with_this_thread(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program(command)))?;
    let collected = collect_until(&mut child, last, limit);
    // It may have ended already.
    let _ = child.kill();
    child.wait()?;
    collected.with_context(|| format!("{} has not printed a line `{last}`", program(command)))
}

fn collect_until(child: &mut Child, last: &str, limit: Duration) -> Result<Vec<String>> {
    let (begun, mut collected) = (Instant::now(), Vec::new());
    let printed = lines(child.stdout.take().context("no standard output")?);
    loop {
        interrupt::check()?;
        ensure!(begun.elapsed() < limit, "it has run for {} s", limit.as_secs());
        match printed.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                let is_last = line.starts_with(last);
                collected.push(line);
                if is_last {
                    return Ok(collected);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("it has ended"),
        }
    }
}

/// Returns the lines that a child writes, read by a thread until the child closes its end.
pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // The pipe is read even if nobody listens any more: a full pipe would stop the child.
            let _ = send.send(line);
        }
    });
    receive
}

/// Waits for a child's end. Kills it after `limit` and returns `None`.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    wait_until(child, || Ok(limit))
}

/// Waits for a child's end. If it writes nothing to `file` for `silence`, kills it and returns `None`. An
/// interrupt kills it and is an error.
fn wait_while_it_writes(child: &mut Child, file: &File, silence: Duration) -> Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut written = 0;
    let mut heard = Duration::ZERO;
    let limit = || {
        interrupt::check()?;
        let length = file.metadata().map_or(written, |meta| meta.len());
        if length != written {
            (written, heard) = (length, begun.elapsed());
        }
        Ok(heard + silence)
    };
    wait_until(child, limit)
}

/// Waits for a child's end. Kills it once it has run longer than the present `limit`, and returns `None`; or
/// once `limit` fails, and returns that error.
fn wait_until(child: &mut Child, mut limit: impl FnMut() -> Result<Duration>) -> Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(time) = processor_time_at_its_end(child) {
            PROCESSOR_TIME.set(PROCESSOR_TIME.get() + time);
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let limit = limit();
        if limit.as_ref().map_or(true, |limit| begun.elapsed() >= *limit) {
            child.kill()?;
            child.wait()?;
            return limit.map(|_| None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

thread_local! {
    static PROCESSOR_TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the processor time of the programs that this thread has waited for since it last asked, and of
/// theirs.
pub fn take_processor_time() -> Duration {
    PROCESSOR_TIME.take()
}

/// Returns the processor time of a child that has ended and has not been waited for, and of its own children
/// that have ended.
fn processor_time_at_its_end(child: &Child) -> Option<Duration> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::Pid(pid), options).ok()??;
    processor_time(child.id(), 4).ok()
}

/// Returns the processor time of a process and its threads, from the words 14 and 15 of `/proc/PID/stat`
/// (proc_pid_stat(5)), with `words` 4 that of its children that it has waited for as well.
pub fn processor_time(pid: u32, words: usize) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("no command in stat")?;
    let ticks: Vec<u64> =
        rest.split_whitespace().skip(11).take(words).map(str::parse).collect::<Result<_, _>>()?;
    let hertz = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks.iter().sum::<u64>() as f64 / hertz as f64))
}

/// Returns true if a program is in `PATH`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_after_the_line_and_one_without_it_fails() {
        let limit = Duration::from_secs(60);
        let shell = |text: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", text]);
            shell
        };
        let lines = lines_until(&mut shell("echo x; echo y 1; exec sleep 600"), "y", limit).unwrap();
        assert_eq!(lines, ["x", "y 1"]);
        let fails = |text, limit| format!("{:#}", lines_until(&mut shell(text), "y", limit).unwrap_err());
        assert_eq!(fails("echo x", limit), "sh has not printed a line `y`: it has ended");
        let late = fails("exec sleep 600", Duration::ZERO);
        assert_eq!(late, "sh has not printed a line `y`: it has run for 0 s");
    }
}
