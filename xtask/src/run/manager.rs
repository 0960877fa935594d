//! The manager's processes: the daemon, and the command that submits a job to it.

use super::Options;
use crate::{paths, tool};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long the daemon may take until it accepts connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// What the daemon prints before its address once it accepts connections.
const LISTENING: &str = "listening on ";

/// Builds the manager; gives its program.
pub fn build() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--package", "manager", "--bin", "ferrolite-manager"]);
    tool::run_visible(cargo.current_dir(paths::root())).context("the manager does not build")?;
    Ok(paths::target().join("release/ferrolite-manager"))
}

/// A running daemon. Killed when dropped.
pub struct Manager {
    program: PathBuf,
    child: Child,
    key: PathBuf,
    address: String,
}

impl Manager {
    /// Starts a daemon with a new cluster key; `port` 0 takes a free one.
    pub fn start(program: &Path, port: u16, work: &Path) -> Result<Self> {
        let key = work.join("cluster.key");
        let log = work.join("manager.log");
        let mut command = Command::new(program);
        command.args(["daemon", "--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--key-file").arg(&key).arg("--state").arg(work.join("manager"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child =
            qemu::die_with_this_thread(&mut command).spawn().context("cannot start the manager")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut manager = Self { program: program.to_owned(), child, key, address: String::new() };
        let lines = lines(stdout);
        loop {
            match lines.recv_timeout(START_LIMIT) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix(LISTENING) {
                        manager.address = address.trim().to_owned();
                        return Ok(manager);
                    }
                }
                Err(_) => bail!("the manager does not start: {}", last_line(&log)),
            }
        }
    }

    /// The file with the cluster's key.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// The TCP port that it listens on.
    pub fn port(&self) -> Result<u16> {
        let port = self.address.rsplit(':').next().and_then(|port| port.parse().ok());
        port.with_context(|| format!("the manager listens on `{}`", self.address))
    }

    /// Submits the job; `output` and `json` are written when it is done.
    pub fn submit(&self, options: &Options, output: &Path, json: &Path) -> Result<Job> {
        let mut command = Command::new(&self.program);
        command.args(["submit", "--manager", &self.address, "--app", &options.app]);
        command.args(["--nodes", &options.nodes.to_string(), "--timeout", &options.timeout.to_string()]);
        command.arg("--key-file").arg(&self.key);
        for input in &options.input {
            command.arg("--input").arg(input);
        }
        command.arg("--output").arg(output).arg("--json").arg(json);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            qemu::die_with_this_thread(&mut command).spawn().context("cannot start the manager's client")?;
        let stderr = child.stderr.take().context("no standard error")?;
        Ok(Job { child, progress: lines(stderr), last: String::new() })
    }

    /// Whether the daemon still runs.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(anyhow!("the manager has ended ({status})")),
            None => Ok(()),
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A submitted job: the client that waits for it. Killed when dropped.
pub struct Job {
    child: Child,
    progress: Receiver<String>,
    last: String,
}

impl Job {
    /// Passes progress on; `Some` when the job is done, an error when it has failed.
    pub fn poll(&mut self) -> Result<Option<()>> {
        let status = self.child.try_wait()?;
        self.pass_progress();
        match status {
            None => Ok(None),
            Some(status) if status.success() => Ok(Some(())),
            Some(status) => Err(self.failure(status)),
        }
    }

    fn pass_progress(&mut self) {
        while let Ok(line) = self.progress.try_recv() {
            if !line.starts_with("error:") {
                eprintln!("  {line}");
            }
            self.last = line;
        }
    }

    fn failure(&mut self, status: ExitStatus) -> anyhow::Error {
        // The client has ended, so what it said arrives and then the channel ends.
        while let Ok(line) = self.progress.recv_timeout(Duration::from_secs(1)) {
            self.last = line;
        }
        match self.last.strip_prefix("error:") {
            Some(reason) => anyhow!("{}", reason.trim()),
            None => anyhow!("the manager's client ended with {status}: {}", self.last),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    // An error means that it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The lines that a child writes, read by a thread until it closes its end.
fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // The pipe is read on when nobody listens any more: a full one would stop the child.
            let _ = send.send(line);
        }
    });
    receive
}

fn last_line(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it says nothing");
    last.trim_start_matches("error:").trim().to_owned()
}
