//! The command channel to a guest: commands are sent as lines, and output is returned preceded by its length.
//!
//! The guest's end is `init.sh`. A request is `NUMBER SECONDS KIND COMMAND\n`, with `\` and newline escaped
//! in the command. The reply is `done NUMBER STATUS STDOUT-BYTES STDERR-BYTES\n`, followed by the given
//! numbers of arbitrary bytes. KIND is `-`, or the word that identifies the command's streams (see
//! `streams.rs`).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The extra time for the reply that a command has timed out: a guest under TCG on a busy host is slow.
const GRACE: Duration = Duration::from_secs(15);
/// The maximum length of a line from a guest, in bytes.
const LINE_LIMIT: usize = 256;
/// The maximum output of a command per stream, in bytes.
const OUTPUT_LIMIT: usize = 1 << 28;

/// The exit status of a command; 128 + N if signal N killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// Returns whether the command succeeded.
    #[must_use]
    pub fn success(self) -> bool {
        self.0 == 0
    }
}

/// The result of a command in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit status.
    pub status: Status,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error output.
    pub stderr: Vec<u8>,
}

/// The reason why a command in a guest has no result.
#[derive(Debug, Error)]
pub enum RunError {
    /// The command did not end in time and was killed with its process group. The guest can run further
    /// commands.
    #[error("did not end within {within:?}; it had printed: {} {}",
        String::from_utf8_lossy(stdout).trim_end(), String::from_utf8_lossy(stderr).trim_end())]
    TimedOut {
        /// The time limit.
        within: Duration,
        /// The standard output up to the time limit.
        stdout: Vec<u8>,
        /// The standard error output up to the time limit.
        stderr: Vec<u8>,
    },
    /// A command cannot contain a zero byte.
    #[error("the command contains a zero byte")]
    ZeroByte,
    /// The guest has ended or does not answer. No further command will be run.
    #[error("the guest does not answer: {0}")]
    Lost(String),
    /// The command's output could not be passed on, or its input could not be read.
    #[error("cannot pass on the input or output of a command in a guest")]
    Host(#[from] io::Error),
}

/// The host's end of the channel.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// Data that was received and not yet used.
    ahead: Vec<u8>,
    number: u64,
    lost: bool,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, ahead: Vec::new(), number: 0, lost: false }
    }

    /// Waits until the guest accepts commands.
    pub(super) fn wait_ready(&mut self, deadline: Instant) -> Result<(), RunError> {
        let line = self.line(deadline).map_err(|e| self.lose(&e))?;
        if line != "ready" {
            return Err(self.lose(&invalid(format!("it began with `{line}`"))));
        }
        Ok(())
    }

    /// Runs a shell command in the guest and waits for its end, at most `within`, rounded up to whole
    /// seconds.
    pub(super) fn run(&mut self, command: &str, within: Duration) -> Result<Output, RunError> {
        self.run_as("-", command, within)
    }

    /// Runs a shell command like [`run`](Self::run); its input and output are streams identified by the word
    /// `kind`.
    pub(super) fn run_as(&mut self, kind: &str, command: &str, within: Duration) -> Result<Output, RunError> {
        if self.lost {
            return Err(RunError::Lost("it was lost before".into()));
        }
        if command.contains('\0') {
            return Err(RunError::ZeroByte);
        }
        self.number += 1;
        let deadline = Instant::now() + within + GRACE;
        let request = request(self.number, within, kind, command);
        let reply = self.exchange(&request, deadline).map_err(|e| self.lose(&e))?;
        let Reply { status, stdout, stderr } = reply;
        match status {
            Some(status) => Ok(Output { status, stdout, stderr }),
            None => Err(RunError::TimedOut { within, stdout, stderr }),
        }
    }

    /// Sends a command that ends the guest's end of the channel, without waiting for a reply.
    pub(super) fn send_last(&mut self, command: &str, deadline: Instant) -> io::Result<()> {
        self.number += 1;
        self.stream.set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(request(self.number, GRACE, "-", command).as_bytes())
    }

    fn exchange(&mut self, request: &str, deadline: Instant) -> io::Result<Reply> {
        self.stream.set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(request.as_bytes())?;
        let line = self.line(deadline)?;
        let (status, [out, err]) =
            parse_done(&line, self.number).ok_or_else(|| invalid(format!("it said `{line}`")))?;
        Ok(Reply { status, stdout: self.bytes(out, deadline)?, stderr: self.bytes(err, deadline)? })
    }

    fn lose(&mut self, why: &io::Error) -> RunError {
        self.lost = true;
        RunError::Lost(why.to_string())
    }

    /// Returns the next line, without its newline.
    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).take(end).collect();
                return String::from_utf8(line).map_err(|_| invalid("a line is not text".into()));
            }
            if self.ahead.len() > LINE_LIMIT {
                return Err(invalid("a line is too long".into()));
            }
            self.receive(deadline)?;
        }
    }

    fn bytes(&mut self, count: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.ahead.len() < count {
            self.receive(deadline)?;
        }
        Ok(self.ahead.drain(..count).collect())
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.set_read_timeout(Some(left(deadline)?))?;
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its machine has ended")),
            Ok(count) => {
                self.ahead.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(too_late()),
            Err(e) => Err(e),
        }
    }
}

struct Reply {
    /// The exit status; `None` if the command was killed at its time limit.
    status: Option<Status>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

fn request(number: u64, within: Duration, kind: &str, command: &str) -> String {
    let seconds = within.as_secs() + u64::from(within.subsec_nanos() > 0);
    let escaped = command.replace('\\', "\\\\").replace('\n', "\\n");
    // The final newline protects a trailing blank, which the shell's `read` would strip.
    format!("{number} {} {kind} {escaped}\\n\n", seconds.max(1))
}

/// Parses `done NUMBER STATUS OUT ERR`.
fn parse_done(line: &str, number: u64) -> Option<(Option<Status>, [usize; 2])> {
    let mut words = line.strip_prefix("done ")?.split(' ');
    (words.next()?.parse() == Ok(number)).then_some(())?;
    let status = match words.next()? {
        "late" => None,
        status => Some(Status(status.parse().ok()?)),
    };
    let mut length = || words.next()?.parse().ok().filter(|&length| length <= OUTPUT_LIMIT);
    let lengths = [length()?, length()?];
    words.next().is_none().then_some((status, lengths))
}

/// Returns the time until a deadline. It is never zero, because a zero timeout means no timeout.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(too_late()) } else { Ok(left) }
}

fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    /// Returns a channel whose guest has already sent some bytes, and the guest's end.
    fn channel(sends: &[u8]) -> (Channel, UnixStream) {
        let (host, mut guest) = UnixStream::pair().unwrap();
        guest.write_all(sends).unwrap();
        (Channel::new(host), guest)
    }

    #[test]
    fn golden_exchange_with_binary_output() {
        let (mut channel, mut guest) = channel(b"ready\ndone 1 3 5 2\n\0\ndoneno");
        channel.wait_ready(Instant::now() + SOON).unwrap();
        let output = channel.run("echo 'a\\b'\nexit 3", Duration::from_millis(1500)).unwrap();
        assert_eq!(output, Output { status: Status(3), stdout: b"\0\ndon".into(), stderr: b"en".into() });
        let mut asked = [0; 64];
        let count = guest.read(&mut asked).unwrap();
        assert_eq!(asked[..count], *b"1 2 - echo 'a\\\\b'\\nexit 3\\n\n");
        assert_eq!(channel.ahead, b"o");
    }

    #[test]
    fn a_late_command_gives_its_output_and_leaves_the_guest_usable() {
        let (mut channel, _guest) = channel(b"done 1 late 2 0\nhidone 2 0 0 0\n");
        match channel.run("sleep 9", SOON) {
            Err(RunError::TimedOut { within: SOON, stdout, .. }) => assert_eq!(stdout, b"hi"),
            other => panic!("{other:?}"),
        }
        assert!(channel.run("true", SOON).unwrap().status.success());
    }

    #[test]
    fn nonsense_is_an_error_and_the_end() {
        for said in [
            "done 2 0 0 0\n",
            "done 1 0 0\n",
            "done 1 256 0 0\n",
            "done 1 0 0 99999999999\n",
            "\n",
            "\u{e9}\n",
        ] {
            let (mut channel, guest) = channel(said.as_bytes());
            assert!(matches!(channel.run("true", SOON), Err(RunError::Lost(_))), "{said:?}");
            drop(guest);
            assert!(matches!(channel.run("true", SOON), Err(RunError::Lost(_))));
        }
    }

    #[test]
    fn a_guest_that_ends_is_noticed() {
        let (mut channel, guest) = channel(b"done 1 0 5 0\nab");
        guest.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(channel.run("true", SOON), Err(RunError::Lost(_))));
    }

    #[test]
    fn a_zero_byte_is_refused_before_it_is_sent() {
        let (mut channel, _guest) = channel(b"done 1 0 0 0\n");
        assert!(matches!(channel.run("a\0b", SOON), Err(RunError::ZeroByte)));
        assert!(channel.run("ab", SOON).is_ok());
    }
}
