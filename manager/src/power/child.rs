//! Programs that reach a power controller. Each is killed with all of its own if nobody waits for it.

use super::Trouble;
use proto::printable;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The number of bytes of an output that are kept.
const MOST: u64 = 64 << 10;
/// The number of characters of a line that are told.
const LINE: usize = 200;

/// The end of a program.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ended {
    /// Returns the last line of its errors, for people.
    pub(super) fn complaint(&self) -> String {
        let line = self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
        printable(line.unwrap_or("no line on its standard error")).chars().take(LINE).collect()
    }
}

/// The processes of a program, which end with this.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // It fails if all have ended.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs a program until it has ended and has closed its output. `Err` tells that it cannot be started.
pub(super) async fn run(command: &mut Command) -> Result<Ended, io::Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut group = Group(leader);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = tokio::try_join!(text(stdout), text(stderr))?;
    let status = child.wait().await?;
    // The number of the group may belong to others once its leader has been waited for.
    group.0 = None;
    Ok(Ended { status, stdout, stderr })
}

/// Reads an output to its end, and keeps its beginning.
async fn text(output: Option<impl AsyncRead + Unpin>) -> Result<String, io::Error> {
    let Some(mut output) = output else { return Ok(String::new()) };
    let mut kept = Vec::new();
    (&mut output).take(MOST).read_to_end(&mut kept).await?;
    tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Returns the reason why a program has not done its work.
pub(super) fn failed(ended: &Ended) -> Trouble {
    let status = match ended.status.code() {
        Some(code) => format!("exit status {code}"),
        None => ended.status.to_string(),
    };
    Trouble::other(format!("{status}: {}", ended.complaint()))
}
