//! Commands that run in the background of a guest.

use super::channel::{Output, RunError, Status};
use super::guest::{Guest, quoted};
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

/// The time limit for a command that is normally immediate, on a busy host.
const SOON: Duration = Duration::from_secs(30);
/// The shell's exit status for a process killed by SIGKILL.
const KILLED: Status = Status(137);

/// A command in the background of a guest. It continues to run when this value is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The command's directory in the guest.
    dir: String,
    /// The command's process group.
    group: u32,
}

impl Job {
    /// Returns the command's process group in the guest.
    pub(super) fn group(&self) -> u32 {
        self.group
    }
}

impl Guest {
    /// Starts a shell command in a session of its own, without input.
    pub fn background(&mut self, command: &str) -> Result<Job> {
        self.jobs += 1;
        let dir = format!("/run/jobs/{}", self.jobs);
        let wrapper = "sh $0/command </dev/null >$0/out 2>$0/err; echo $? >$0/new; mv $0/new $0/status";
        let start = format!(
            "mkdir -p {dir}; printf '%s\\n' {} >{dir}/command\nsetsid sh -c {} {dir} >/dev/null 2>&1 &\necho $!",
            quoted(command),
            quoted(wrapper)
        );
        let said = self.check(&start, SOON)?;
        let group = said.trim().parse().with_context(|| format!("a guest's shell said `{said}`"))?;
        Ok(Job { dir, group })
    }

    /// Returns the exit status of a background command; `None` while it runs.
    pub fn status_of(&mut self, job: &Job) -> Result<Option<Status>> {
        let Job { dir, group } = job;
        let ask = format!("kill -0 {group} 2>/dev/null && echo runs; cat {dir}/status 2>/dev/null || true");
        let said = self.check(&ask, SOON)?;
        match said.lines().last() {
            Some("runs") => Ok(None),
            Some(status) => Ok(Some(Status(status.parse().context("a status is not a number")?))),
            None => Ok(Some(KILLED)),
        }
    }

    /// Waits for the end of a background command and returns its output. Fails if the command does not end in
    /// time; it then continues to run.
    pub fn wait_for(&mut self, job: &Job, within: Duration) -> Result<Output> {
        let Job { dir, group } = job;
        let wait =
            format!("while [ ! -e {dir}/status ] && kill -0 {group} 2>/dev/null; do usleep 20000; done");
        match self.run(&wait, within) {
            Ok(_) => {}
            Err(RunError::TimedOut { .. }) => {
                let printed = self.printed(job)?;
                bail!(
                    "it still runs after {within:?}; it has printed: {} {}",
                    String::from_utf8_lossy(&printed.0).trim_end(),
                    String::from_utf8_lossy(&printed.1).trim_end()
                );
            }
            Err(e) => return Err(e.into()),
        }
        let status = self.status_of(job)?.context("a command that has ended is reported as running")?;
        let (stdout, stderr) = self.printed(job)?;
        Ok(Output { status, stdout, stderr })
    }

    /// Returns the output of a background command so far: standard output and standard error.
    pub fn printed(&mut self, job: &Job) -> Result<(Vec<u8>, Vec<u8>)> {
        let output = self.run(&format!("cat {0}/out; cat {0}/err >&2", job.dir), SOON)?;
        Ok((output.stdout, output.stderr))
    }

    /// Waits until the output of a background command contains a text. Fails if the command ends first.
    pub fn wait_until_printed(&mut self, job: &Job, text: &str, within: Duration) -> Result<()> {
        let Job { dir, group } = job;
        let text = quoted(text);
        let find = format!("grep -qF -e {text} {dir}/out {dir}/err");
        let wait = format!(
            "until {find}; do kill -0 {group} 2>/dev/null || {{ {find} && exit; cat {dir}/out {dir}/err >&2; exit 1; }}\n\
             usleep 20000; done"
        );
        self.check(&wait, within).map(drop)
    }

    /// Sends a signal (`TERM`, `KILL`, ...) to a background command and its child processes.
    pub fn signal(&mut self, job: &Job, signal: &str) -> Result<()> {
        ensure!(signal.bytes().all(|b| b.is_ascii_alphanumeric()), "`{signal}` is not a signal");
        self.check(&format!("kill -{signal} -{} 2>/dev/null || true", job.group), SOON).map(drop)
    }
}
