//! A shell in a guest on a terminal of the host.

use super::channel::{Channel, RunError, Status};
use super::guest::Guest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::SIGWINCH;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ctrl-], which ends the session, as in telnet and `virsh console`.
const ESCAPE: u8 = 0x1d;
/// The interval of checks for the end of the shell and a change of the window's size.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// A shell has no time limit, but the guest's protocol needs one; this is ten years.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The time limit for setting the terminal's size.
const SOON: Duration = Duration::from_secs(10);

/// The way in which a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The shell ended with this status.
    Shell(Status),
    /// The user typed Ctrl-].
    Escape,
}

/// A terminal without line editing, echo and signals. Its settings are restored on drop.
struct Raw<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Raw<'a> {
    fn new(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Drain, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // A closed terminal needs no settings.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

impl Guest {
    /// Runs a shell in the guest on the terminal `keyboard`, printing to `screen`, until the shell ends or
    /// the user types Ctrl-]. `kind` is the terminal's type, as in `TERM`.
    pub fn shell(
        &mut self,
        keyboard: BorrowedFd<'_>,
        screen: &mut dyn Write,
        kind: &str,
    ) -> Result<SessionEnd, RunError> {
        let resized = Arc::new(AtomicBool::new(false));
        let hook = signal_hook::flag::register(SIGWINCH, Arc::clone(&resized))?;
        let raw = Raw::new(keyboard)?;
        let port = UnixStream::connect(&self.terminal)?;
        port.set_write_timeout(Some(SOON))?;
        // Characters that are not part of a terminal's name could form commands.
        let kind: String =
            kind.chars().filter(|c| c.is_ascii_alphanumeric() || "-+._".contains(*c)).collect();
        // The leader of a session without a terminal acquires the first one that it opens.
        let command = format!(
            "echo $$ >/run/shell; exec <>/dev/hvc0 >&0 2>&1; {}export TERM={kind} PS1='\\h:\\w# '; exec sh -i",
            stty(keyboard)?
        );
        let ended = AtomicBool::new(false);
        let (channel, side) = (&mut self.channel, &mut self.side);
        let end = std::thread::scope(|scope| {
            let shell = scope.spawn(|| {
                let end = channel.run(&command, FOR_EVER);
                ended.store(true, Ordering::Release);
                end
            });
            let relayed = relay(keyboard, &port, screen, &ended, || {
                let resized = resized.swap(false, Ordering::AcqRel);
                if resized { set_size(side, keyboard) } else { Ok(()) }
            });
            if !ended.load(Ordering::Acquire) {
                // The thread above waits for the shell's end.
                side.run("kill -KILL -$(cat /run/shell)", SOON)?;
            }
            let status = shell.join().map_err(|_| io::Error::other("a thread panicked"))?;
            if relayed? == Relayed::Escape {
                Ok(SessionEnd::Escape)
            } else {
                Ok(SessionEnd::Shell(status?.status))
            }
        });
        drop(raw);
        signal_hook::low_level::unregister(hook);
        end
    }
}

/// Returns the command that sets the size of the terminal at its standard input to the size of this one. A
/// terminal forgets its size when nobody has it open.
fn stty(terminal: BorrowedFd<'_>) -> io::Result<String> {
    let Winsize { ws_row: rows, ws_col: columns, .. } = tcgetwinsize(terminal)?;
    Ok(if rows > 0 && columns > 0 { format!("stty rows {rows} cols {columns}; ") } else { String::new() })
}

fn set_size(side: &mut Channel, terminal: BorrowedFd<'_>) -> Result<(), RunError> {
    side.run(&format!("exec </dev/hvc0; {}", stty(terminal)?), SOON).map(drop)
}

/// The reason why the two terminals are disconnected.
#[derive(PartialEq, Eq)]
enum Relayed {
    /// The user typed Ctrl-].
    Escape,
    /// The shell has ended, or the host's terminal is closed.
    End,
}

/// Connects the terminals until the shell has ended or the user types Ctrl-]. Calls `tick` at intervals.
fn relay(
    keyboard: BorrowedFd<'_>,
    mut port: &UnixStream,
    screen: &mut dyn Write,
    ended: &AtomicBool,
    mut tick: impl FnMut() -> Result<(), RunError>,
) -> Result<Relayed, RunError> {
    let mut buffer = [0; 4096];
    loop {
        tick()?;
        let last = ended.load(Ordering::Acquire);
        let mut files = [PollFd::new(port, PollFlags::IN), PollFd::new(&keyboard, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(CHECK_EVERY.subsec_nanos()) };
        match poll(&mut files, Some(&timeout)) {
            // The shell's last output has come before this point.
            Ok(0) if last => return Ok(Relayed::End),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let [from_guest, typed] = files.map(|file| !file.revents().is_empty());
        if from_guest {
            match port.read(&mut buffer) {
                Ok(0) => return Ok(Relayed::End),
                Ok(count) => screen.write_all(&buffer[..count]).and_then(|()| screen.flush())?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        if typed && !last {
            let count = match rustix::io::read(keyboard, &mut buffer) {
                Ok(0) => return Ok(Relayed::End),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(io::Error::from(e).into()),
            };
            let escape = buffer[..count].iter().position(|byte| *byte == ESCAPE);
            port.write_all(&buffer[..escape.unwrap_or(count)])?;
            if escape.is_some() {
                return Ok(Relayed::Escape);
            }
        }
    }
}
