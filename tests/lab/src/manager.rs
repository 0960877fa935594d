//! Processes of the manager's program: the daemon, and its clients.

use crate::cargo::{self, Profile};
use crate::tool;
use anyhow::{Context, Result, anyhow, bail, ensure};
use platform::TimeLimit;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The longest time until the daemon accepts connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The longest time for a daemon to end after its output has ended.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The text before the daemon's address in the line that it prints when it accepts connections.
const LISTENING: &str = "listening on ";
/// The text before the reason when the manager's program fails: of this build, and of earlier ones.
const FAILED: [&str; 2] = ["ferrolite: ", "ferrolite-manager: "];

/// Returns the reason in a line of a program of the manager that has failed.
pub fn reason(line: &str) -> Option<&str> {
    FAILED.iter().find_map(|name| line.strip_prefix(name))
}

/// The file with the address of the dashboard, in the daemon's directory.
const HTTP_FILE: &str = "http";

/// Builds the manager, once per process. Returns its program.
pub fn build(profile: Profile) -> Result<PathBuf> {
    cargo::program("ferrolite", profile)
}

/// A job for a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The name of the application.
    pub app: &'a str,
    /// The number of nodes on which the job runs; 0 for all that have the application.
    pub nodes: u16,
    /// The input files.
    pub inputs: &'a [PathBuf],
    /// The arguments of the application.
    pub args: &'a [String],
    /// The time limit of the job.
    pub time: Option<TimeLimit>,
    /// The name of the dataset that the output becomes; then no output is written.
    pub keep: Option<&'a str>,
    /// Further options of the submission.
    pub more: &'a [String],
}

impl Job<'_> {
    /// Adds the job to a command that submits it. `output` and `json` are written when it is done.
    pub fn describe(&self, command: &mut Command, output: &Path, json: &Path) {
        command.args(["--app", self.app]);
        if self.nodes > 0 {
            command.args(["--nodes", &self.nodes.to_string()]);
        }
        for input in self.inputs {
            command.arg("--input").arg(input);
        }
        match self.keep {
            Some(name) => command.args(["--keep", name]),
            None => command.arg("--output").arg(output),
        };
        command.arg("--json").arg(json);
        if let Some(limit) = &self.time {
            command.args(["--time", &limit.to_string()]);
        }
        command.args(self.more);
        if !self.args.is_empty() {
            command.arg("--args").args(self.args);
        }
    }
}

/// A running daemon. Killed when dropped.
pub struct Manager {
    program: PathBuf,
    /// The directory of its files, and its further options.
    work: PathBuf,
    more: Vec<String>,
    daemon: Process,
    key: PathBuf,
    address: String,
}

impl Manager {
    /// Starts a daemon with a new cluster key. `port` 0 selects a free port.
    pub fn start(program: &Path, port: u16, work: &Path) -> Result<Self> {
        Self::start_with(program, port, work, &[])
    }

    /// Starts a daemon as [`start`](Self::start) does, on all addresses of the host, of both families.
    pub fn start_on_all(program: &Path, port: u16, work: &Path) -> Result<Self> {
        Self::start_with(program, port, work, &["--listen", &format!("[::]:{port}")])
    }

    /// Starts a daemon as [`start`](Self::start) does, with more options.
    pub fn start_with(program: &Path, port: u16, work: &Path, more: &[&str]) -> Result<Self> {
        let more: Vec<String> = more.iter().map(|word| String::from(*word)).collect();
        let (daemon, address) = daemon(program, port, work, &more)?;
        let key = work.join("cluster.key");
        Ok(Self { program: program.to_owned(), work: work.to_owned(), more, daemon, key, address })
    }

    /// Starts a daemon as [`start_with`](Self::start_with) does, with a dashboard on a free port of the
    /// loopback address.
    pub fn start_with_dashboard(program: &Path, port: u16, work: &Path, more: &[&str]) -> Result<Self> {
        let file = work.join(HTTP_FILE);
        let file = file.to_str().context("a path that is text")?;
        let http = ["--http", "127.0.0.1:0", "--http-port-file", file];
        Self::start_with(program, port, work, &[more, &http].concat())
    }

    /// Kills the daemon (SIGKILL), and starts another one with its address and its files.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.daemon.child.kill()?;
        self.daemon.child.wait()?;
        self.start_again()
    }

    /// Stops the daemon in good order (SIGTERM), and starts another one with its address and its files.
    pub fn stop_and_restart(&mut self) -> Result<()> {
        let daemon = &mut self.daemon.child;
        let process = Pid::from_child(daemon);
        kill_process(process, Signal::TERM).context("cannot stop the manager")?;
        let status = tool::wait(daemon, END_LIMIT)?.context("the manager does not stop")?;
        ensure!(status.success(), "the manager fails when it stops: {status}");
        self.start_again()
    }

    /// Stops the daemon in good order, and starts that of another build with its address and its files.
    pub fn stop_and_start(&mut self, program: &Path) -> Result<()> {
        self.program = program.to_owned();
        self.stop_and_restart()
    }

    fn start_again(&mut self) -> Result<()> {
        (self.daemon, self.address) = daemon(&self.program, self.port()?, &self.work, &self.more)?;
        Ok(())
    }

    /// Returns the daemon's next line that contains `text`, if it comes within `limit`.
    pub fn wait_for_line(&mut self, text: &str, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        while let Some(line) = self.daemon.line(deadline.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return Some(line);
            }
        }
        None
    }

    /// Returns the daemon's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address of the dashboard, if the daemon was started with one.
    pub fn dashboard(&self) -> Option<String> {
        std::fs::read_to_string(self.work.join(HTTP_FILE)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the file with the cluster's key.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// Returns the daemon's process id.
    pub fn process(&self) -> u32 {
        self.daemon.child.id()
    }

    /// Returns the TCP port on which the daemon listens.
    pub fn port(&self) -> Result<u16> {
        let port = self.address.rsplit(':').next().and_then(|port| port.parse().ok());
        port.with_context(|| format!("the manager listens on `{}`", self.address))
    }

    /// Waits until `count` nodes have joined, and writes their descriptions to `json`.
    pub fn wait_nodes(&self, count: u16, limit: Duration, json: &Path) -> Result<Process> {
        let mut command = self.client("nodes");
        command.args(["--wait", &count.to_string(), "--timeout", &limit.as_secs().max(1).to_string()]);
        command.arg("--json").arg(json);
        Process::start(command)
    }

    /// Submits a job. `output` and `json` are written when it is done.
    pub fn submit(&self, job: &Job<'_>, output: &Path, json: &Path) -> Result<Process> {
        let mut command = self.client("submit");
        job.describe(&mut command, output, json);
        Process::start(command)
    }

    /// Runs perftest on the node of that name. `output` is written when it is done; `empty` must be an empty
    /// file.
    pub fn perftest(&self, node: &str, words: &[String], empty: &Path, output: &Path) -> Result<Process> {
        let mut command = self.client("submit");
        command.args(["--app", "perftest", "--on", node]).arg("--input").arg(empty);
        command.arg("--output").arg(output).arg("--args").args(words);
        Process::start(command)
    }

    /// Returns a command for this manager.
    pub fn client(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([subcommand, "--manager", &self.address]).arg("--key-file").arg(&self.key);
        command
    }

    /// Fails if the daemon has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.daemon.child.try_wait()? {
            Some(status) => Err(self.daemon.failure(status).context("the manager has ended")),
            None => Ok(()),
        }
    }
}

/// Starts a daemon, and waits until it accepts connections. Returns its address too.
fn daemon(program: &Path, port: u16, work: &Path, more: &[String]) -> Result<(Process, String)> {
    let mut command = Command::new(program);
    command.arg("daemon");
    if !more.iter().any(|word| word == "--listen") {
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
    }
    command
        .arg("--key-file")
        .arg(work.join("cluster.key"))
        .arg("--state")
        .arg(work.join("manager"))
        .args(more);
    let mut daemon = Process::start(command)?;
    let deadline = Instant::now() + START_LIMIT;
    while let Some(line) = daemon.line(deadline.saturating_duration_since(Instant::now())) {
        if let Some(address) = line.strip_prefix(LISTENING) {
            return Ok((daemon, address.trim().to_owned()));
        }
    }
    // There are no more lines: the daemon is about to end, or is too slow.
    match tool::wait(&mut daemon.child, END_LIMIT)? {
        Some(status) => {
            Err(daemon.failure(status).context(format!("the manager cannot start on port {port}")))
        }
        None => bail!("the manager does not listen within {} s", START_LIMIT.as_secs()),
    }
}

/// A process of the manager's program, and its standard error. Killed when dropped.
pub struct Process {
    child: Child,
    said: Receiver<String>,
    last: String,
}

impl Process {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            qemu::die_with_this_thread(&mut command).spawn().context("cannot start the manager")?;
        let stderr = child.stderr.take().context("no standard error")?;
        Ok(Self { child, said: tool::lines(stderr), last: String::new() })
    }

    /// Prints the process's progress. Returns `Some` when it has ended successfully, and an error when it has
    /// failed.
    pub fn poll(&mut self) -> Result<Option<()>> {
        self.poll_and_print(true)
    }

    /// Polls as [`poll`](Self::poll) does, without printing progress.
    pub(crate) fn poll_quietly(&mut self) -> Result<Option<()>> {
        self.poll_and_print(false)
    }

    fn poll_and_print(&mut self, print: bool) -> Result<Option<()>> {
        let status = self.child.try_wait()?;
        while let Some(line) = self.line(Duration::ZERO) {
            if print && reason(&line).is_none() {
                eprintln!("  {line}");
            }
        }
        match status {
            None => Ok(None),
            Some(status) if status.success() => Ok(Some(())),
            Some(status) => Err(self.failure(status)),
        }
    }

    /// Returns the next line of output, or `None` if no line comes within the given time.
    fn line(&mut self, within: Duration) -> Option<String> {
        let line = self.said.recv_timeout(within).ok()?;
        self.last.clone_from(&line);
        Some(line)
    }

    /// Returns the error of a failed process. The process has ended, so all of its output arrives.
    fn failure(&mut self, status: ExitStatus) -> anyhow::Error {
        while self.line(Duration::from_secs(1)).is_some() {}
        match reason(&self.last) {
            Some(reason) => anyhow!("{}", reason.trim()),
            None => anyhow!("ferrolite ended with {status}: {}", self.last),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
