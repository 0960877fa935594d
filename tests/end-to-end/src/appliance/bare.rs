//! A machine that a test describes option by option, controlled by QMP: without the debug exit
//! device, with any processors, memory and consoles.

use anyhow::{Context, Result, bail, ensure};
use qemu::{Qemu, die_with_this_thread};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest time without a message of QEMU that is awaited, on a busy host. 288 processors that share two
/// have taken half of it.
const LIMIT: Duration = Duration::from_secs(600);

/// The interval at which a console is read.
const LOOK: Duration = Duration::from_millis(50);

/// A running machine. Killed when dropped.
pub(crate) struct Bare {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// Events that came before they were awaited.
    events: Vec<Value>,
    reader: Option<JoinHandle<()>>,
    /// The file of the first serial port.
    pub console: PathBuf,
}

impl Bare {
    /// Starts a machine with the words of `options`, whose first serial port is written to
    /// `console`. QEMU's own messages follow there.
    pub(crate) fn start(qemu: &Qemu, options: &str, rest: &[&str], console: &Path) -> Result<Self> {
        let serial = format!("file:{}", console.display());
        Self::start_with(qemu, options, &[&["-serial", &serial], rest].concat(), console)
    }

    /// Starts a machine as [`start`](Self::start) does, whose `rest` has the serial ports. One of
    /// them must be written to `console`.
    pub(crate) fn start_with(qemu: &Qemu, options: &str, rest: &[&str], console: &Path) -> Result<Self> {
        let errors = File::create(console.with_extension("qemu.log")).context("cannot write a log")?;
        File::create(console).context("cannot write a console")?;
        let mut command = qemu.command();
        command.args(options.split_ascii_whitespace());
        command.args(rest);
        // The machine waits: one that ends at once would end QEMU before it takes the first command.
        command.args(["-display", "none", "-nodefaults", "-no-user-config", "-qmp", "stdio", "-S"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = die_with_this_thread(&mut command).spawn().context("cannot start QEMU")?;
        let commands = child.stdin.take().context("no standard input")?;
        let lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let (sender, messages) = channel();
        let reader = std::thread::spawn(move || {
            for message in lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let console = console.to_owned();
        let mut bare = Self { child, commands, messages, events: Vec::new(), reader: Some(reader), console };
        bare.execute("qmp_capabilities", &json!({}))?;
        bare.execute("cont", &json!({}))?;
        Ok(bare)
    }

    /// Returns the number of QEMU's process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Executes a QMP command and returns its result.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.commands, "{request}").with_context(|| format!("QEMU takes no `{command}`"))?;
        loop {
            let message = self.message()?;
            if let Some(result) = message.get("return") {
                return Ok(result.clone());
            }
            if let Some(error) = message.get("error") {
                bail!("{command}: {error}");
            }
            self.events.extend(message.get("event").is_some().then_some(message));
        }
    }

    fn message(&self) -> Result<Value> {
        match self.messages.recv_timeout(LIMIT) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => bail!("QEMU is silent; the console ends: {}", self.tail()),
            Err(RecvTimeoutError::Disconnected) => bail!("QEMU has ended; the console ends: {}", self.tail()),
        }
    }

    fn tail(&self) -> String {
        let said = self.said();
        let lines: Vec<_> = said.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Waits for an event, and returns its data.
    pub(crate) fn event(&mut self, name: &str) -> Result<Value> {
        loop {
            let is_it = |event: &Value| event.get("event").and_then(Value::as_str) == Some(name);
            if let Some(at) = self.events.iter().position(is_it) {
                let event = self.events.remove(at);
                return Ok(event.get("data").cloned().unwrap_or_default());
            }
            let message = self.message()?;
            self.events.push(message);
        }
    }

    /// Returns the first serial port's output so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Waits until the console contains `text`. Fails after a long silence.
    pub(crate) fn says(&mut self, text: &str) -> Result<()> {
        let (mut seen, mut silent) = (0, Duration::ZERO);
        loop {
            let said = self.said();
            if said.contains(text) {
                return Ok(());
            }
            ensure!(silent < LIMIT, "the console does not say `{text}`, but ends: {}", self.tail());
            if let Some(status) = self.child.try_wait()? {
                ensure!(
                    self.said().contains(text),
                    "QEMU ended, {status}, without `{text}`: {}",
                    self.tail()
                );
                return Ok(());
            }
            silent = if said.len() > seen { Duration::ZERO } else { silent + LOOK };
            seen = said.len();
            std::thread::sleep(LOOK);
        }
    }

    /// Returns the memory that the machine has touched, in KiB, if it is in a memory file.
    pub(crate) fn memory_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()).context("no RssShmem")?;
        kib.parse().context("RssShmem is no number")
    }

    /// Waits until QEMU ends. Fails after a long silence of it and of the console.
    pub(crate) fn ends(mut self) -> Result<ExitStatus> {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let ended = matches!(self.messages.recv_timeout(LOOK), Err(RecvTimeoutError::Disconnected));
            if ended {
                return Ok(self.child.wait()?);
            }
            let said = std::fs::metadata(&self.console).map_or(0, |console| console.len());
            if said > seen {
                (seen, since) = (said, Instant::now());
            }
            ensure!(since.elapsed() < LIMIT, "QEMU does not end; the console: {}", self.tail());
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
