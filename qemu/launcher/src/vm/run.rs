//! A running virtual machine: its process, its console, its end.

use super::{Accel, Exit, VmSpec};
use crate::{Qemu, Symbols, die_with_this_thread};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time within which a machine under KVM must write to its console after its start. A machine that stays
/// silent is restarted under TCG.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The number of the last console lines that are kept for messages.
const TAIL: usize = 100;

/// An event of a machine.
#[derive(Clone, Debug)]
pub struct Event {
    /// The machine's number in its cluster.
    pub index: u16,
    /// The time since the machine's QEMU was started.
    pub at: Duration,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of a machine's event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A line that the machine wrote to its console.
    Line(String),
    /// The machine stayed silent under KVM and is restarted under TCG.
    RestartedUnderTcg,
    /// The machine ended. No further event follows.
    Exited(Exit),
}

/// A running machine. It is killed when this value is dropped, and by the kernel when this program ends in
/// any way.
#[derive(Debug)]
pub struct Vm {
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The running QEMU: its process id, and a process file descriptor, so that a signal never reaches
    /// another process that reuses the id.
    process: Option<(u32, OwnedFd)>,
    /// True after the machine was told to end: no QEMU is started any more.
    ended: bool,
    tail: VecDeque<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm {
    /// Starts a machine. Its events are sent to `events`. Its console is also written to `console`, if given,
    /// with backtraces symbolized from the kernel image.
    pub fn start(qemu: &Qemu, spec: VmSpec, console: Option<&Path>, events: Sender<Event>) -> Result<Self> {
        Self::start_from(qemu, spec, None, console, events)
    }

    /// Starts a machine as [`start`](Self::start) does. With `medium`, QEMU gets these arguments in place of
    /// those for the kernel, so that the machine's firmware boots; the specification's kernel serves
    /// backtraces only.
    pub fn start_from(
        qemu: &Qemu,
        spec: VmSpec,
        medium: Option<Vec<OsString>>,
        console: Option<&Path>,
        events: Sender<Event>,
    ) -> Result<Self> {
        let console = console
            .map(|path| {
                File::create(path).with_context(|| format!("cannot write the console {}", path.display()))
            })
            .transpose()?;
        let shared = Arc::new(Shared::default());
        let name = spec.name.clone();
        let keeper = Keeper {
            qemu: qemu.clone(),
            spec,
            medium,
            console,
            events,
            shared: Arc::clone(&shared),
            started: Instant::now(),
            symbols: None,
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || keeper.keep())
            .context("cannot start a thread")?;
        Ok(Self { name, shared, thread: Some(thread) })
    }

    /// Returns the machine's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id of the machine's QEMU, while one runs.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.shared.lock().process.as_ref().map(|(id, _)| *id)
    }

    /// Kills the machine. An event reports its end.
    pub fn kill(&self) {
        let mut state = self.shared.lock();
        state.ended = true;
        signal(&state, Signal::KILL);
    }

    /// Returns the last lines of the machine's console.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        self.shared.lock().tail.iter().cloned().collect()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends a signal. A process that has ended already accepts none and needs none.
fn signal(state: &State, signal: Signal) {
    if let Some((_, process)) = &state.process {
        let _ = pidfd_send_signal(process, signal);
    }
}

/// The state of the thread that supervises a machine. The thread starts QEMU itself, because the kernel ties
/// a child to its parent's thread.
struct Keeper {
    qemu: Qemu,
    spec: VmSpec,
    medium: Option<Vec<OsString>>,
    console: Option<File>,
    events: Sender<Event>,
    shared: Arc<Shared>,
    started: Instant,
    symbols: Option<Symbols>,
}

/// The result of [`Keeper::run_once`].
enum Outcome {
    Ended(Exit),
    Silent,
}

impl Keeper {
    fn keep(mut self) {
        let exit = loop {
            self.started = Instant::now();
            match self.run_once() {
                Ok(Outcome::Ended(exit)) => break exit,
                Ok(Outcome::Silent) => {
                    self.spec.accel = Accel::Tcg;
                    self.send_event(EventKind::RestartedUnderTcg);
                }
                Err(e) => break Exit::Failed(format!("{e:#}")),
            }
        };
        self.send_event(EventKind::Exited(exit));
    }

    /// Sends an event. The owner may have stopped listening.
    fn send_event(&self, kind: EventKind) {
        let _ = self.events.send(Event { index: self.spec.index, at: self.started.elapsed(), kind });
    }

    fn run_once(&mut self) -> Result<Outcome> {
        let Some(mut child) = self.spawn()? else { return Ok(Outcome::Ended(Exit::Killed(9))) };
        let watched = self.watch(&mut child);
        if !matches!(watched, Ok(Watched::Closed { .. })) {
            let _ = child.kill();
        }
        let status = child.wait().context("cannot wait for QEMU")?;
        self.shared.lock().process = None;
        Ok(match watched? {
            Watched::Closed { stderr } => Outcome::Ended(Exit::decode(status, &stderr)),
            Watched::Silent => Outcome::Silent,
        })
    }

    /// Starts QEMU, unless the machine was told to end in the meantime.
    fn spawn(&self) -> Result<Option<Child>> {
        let mut state = self.shared.lock();
        if state.ended {
            return Ok(None);
        }
        let mut command = self.qemu.command();
        match &self.medium {
            None => command.args(self.spec.arguments()),
            Some(medium) => command.args(self.spec.arguments_without_kernel()).args(medium),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            die_with_this_thread(&mut command).spawn().context("cannot start qemu-system-x86_64")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => state.process = Some((child.id(), process)),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(e).context("pidfd_open");
            }
        }
        Ok(Some(child))
    }

    /// Passes the console on until QEMU closes it.
    fn watch(&mut self, child: &mut Child) -> Result<Watched> {
        let mut stdout = child.stdout.take().context("no standard output")?;
        let mut errors = child.stderr.take();
        let mut stderr = Vec::new();
        let mut lines = LineSplitter::default();
        let mut heard = false;
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let until_silent = (self.spec.accel == Accel::Kvm && !heard)
                .then(|| SILENCE.saturating_sub(self.started.elapsed()));
            let mut fds = vec![PollFd::new(&stdout, PollFlags::IN)];
            fds.extend(errors.as_ref().map(|e| PollFd::new(e, PollFlags::IN)));
            let timeout = until_silent.map(|p| Timespec {
                tv_sec: i64::try_from(p.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: p.subsec_nanos().into(),
            });
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if until_silent.is_some() => return Ok(Watched::Silent),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("poll"),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready.get(1) == Some(&true) {
                let n = errors.as_mut().map_or(Ok(0), |e| e.read(&mut buffer)).unwrap_or(0);
                stderr.extend_from_slice(&buffer[..n]);
                if n == 0 {
                    errors = None;
                }
            }
            if ready.first() == Some(&true) {
                let n = stdout.read(&mut buffer).context("cannot read the console")?;
                if n == 0 {
                    break;
                }
                heard = true;
                for line in lines.push(&buffer[..n]) {
                    self.line(line)?;
                }
            }
        }
        if let Some(rest) = lines.finish() {
            self.line(rest)?;
        }
        if let Some(errors) = &mut errors {
            let _ = errors.read_to_end(&mut stderr);
        }
        Ok(Watched::Closed { stderr: String::from_utf8_lossy(&stderr).into_owned() })
    }

    fn line(&mut self, line: String) -> Result<()> {
        let frames = self.symbolise(&line).into_iter().map(|frame| format!("    {frame}"));
        for line in std::iter::once(line).chain(frames) {
            if let Some(console) = &mut self.console {
                writeln!(console, "{line}").context("cannot write the console file")?;
            }
            let mut state = self.shared.lock();
            state.tail.push_back(line.clone());
            if state.tail.len() > TAIL {
                state.tail.pop_front();
            }
            drop(state);
            self.send_event(EventKind::Line(line));
        }
        Ok(())
    }

    /// Returns the frames at the addresses of a backtrace line. The symbols are loaded at first use.
    fn symbolise(&mut self, line: &str) -> Vec<String> {
        if !line.contains("backtrace: 0x") {
            return Vec::new();
        }
        if self.symbols.is_none() {
            self.symbols = Symbols::load(&self.spec.kernel).ok();
        }
        self.symbols.as_ref().map(|symbols| symbols.annotate(line)).unwrap_or_default()
    }
}

enum Watched {
    Closed { stderr: String },
    Silent,
}

/// Splits a console's bytes into lines. A carriage return at the end of a line is dropped, and invalid UTF-8
/// is replaced. A line also ends where the cursor is sent elsewhere, as firmware does that draws a box.
#[derive(Default)]
struct LineSplitter {
    partial: Vec<u8>,
}

impl LineSplitter {
    /// The length at which a line is cut, in bytes, so that a guest that writes no newline uses only limited
    /// memory.
    const LONGEST: usize = 64 * 1024;

    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|b| matches!(b, b'\n' | b'H')) {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= Self::LONGEST {
                lines.extend(self.finish());
            } else if let Some(sequence) = self.cursor_position() {
                self.partial.truncate(self.partial.len() - sequence);
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// Returns the length of the sequence at the end, `ESC [ ROW ; COLUMN H`, that sends the cursor
    /// elsewhere.
    fn cursor_position(&self) -> Option<usize> {
        let rest = self.partial.strip_suffix(b"H")?;
        let sequence = rest.rsplit(|b| *b == 0x1b).next().filter(|sequence| sequence.len() < rest.len())?;
        let numbers = sequence.strip_prefix(b"[")?;
        numbers.iter().all(|b| b.is_ascii_digit() || *b == b';').then_some(sequence.len() + 2)
    }

    fn finish(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.partial);
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lines() {
        let mut lines = LineSplitter::default();
        assert_eq!(lines.push(b"one\r\ntw"), ["one"]);
        assert_eq!(lines.push(b"o\n\nx\xff"), ["two", ""]);
        assert_eq!(lines.finish().unwrap(), "x\u{fffd}");
        assert_eq!(lines.finish(), None);
        assert_eq!(
            lines.push(b"\x1b[01;02HERROR in H\x1b[03;04Hx\x1b[0m HI\n"),
            ["ERROR in H", "x\x1b[0m HI"]
        );
    }
}
