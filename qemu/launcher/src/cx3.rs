//! The program `cx3`, which serves emulated ConnectX-3 cards to machines: its start, supervision and end.

use crate::die_with_this_thread;
use anyhow::{Context, Result, bail, ensure};
use netfault::Faults;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time limit for the program to listen, and to end after its signal, on a busy host.
const TURN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// The number of lines of the log of `cx3` that an error message quotes.
const TAIL_LINES: usize = 5;
/// The flag `__SO_ACCEPTCON` in `/proc/net/unix`, which marks a listening socket (include/linux/net.h).
const LISTENS: &str = "00010000";

/// A card to be served.
#[derive(Clone, Debug, Default)]
pub struct CardConfig {
    /// The `key=value` options that follow the socket on the program's command line, such as `profile=vf`.
    pub keys: Vec<String>,
    /// The socket of a fabric's port to which the card's first port is connected. `None` connects it to the
    /// program's own switch.
    pub fabric: Option<PathBuf>,
}

impl CardConfig {
    /// Returns a card with a profile, connected to the program's own switch.
    #[must_use]
    pub fn profile(name: &str) -> Self {
        Self { keys: vec![format!("profile={name}")], fabric: None }
    }

    fn argument(&self, socket: &Path) -> Result<String> {
        let mut parts = vec![text(socket)?.to_owned()];
        parts.extend(self.keys.iter().cloned());
        if let Some(fabric) = &self.fabric {
            parts.push(format!("fabric={}", text(fabric)?));
        }
        Ok(parts.join(","))
    }
}

/// The configuration of the program.
#[derive(Clone, Debug)]
pub struct Cx3Config {
    /// The directory for the cards' sockets. It must be short, because a Unix socket's path has at most 107
    /// bytes.
    pub dir: PathBuf,
    /// The cards, by number.
    pub cards: Vec<CardConfig>,
    /// The faults that the program's switch injects.
    pub faults: Faults,
    /// The seed of the generator that selects the frames to be faulted.
    pub seed: u64,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// The file for the program's log.
    pub log: PathBuf,
    /// The log level, in the format of `RUST_LOG`.
    pub log_level: String,
}

impl Cx3Config {
    /// Returns a configuration of `cards` cards of the default profile on a switch without faults.
    #[must_use]
    pub fn new(dir: PathBuf, cards: usize, log: PathBuf) -> Self {
        Self {
            dir,
            cards: vec![CardConfig::default(); cards],
            faults: Faults::default(),
            seed: 1,
            arguments: Vec::new(),
            log,
            log_level: "info".into(),
        }
    }
}

/// The running program. It is killed when this value is dropped, and when the thread that started it ends.
#[derive(Debug)]
pub struct Cx3 {
    child: Child,
    sockets: Vec<PathBuf>,
    log: PathBuf,
}

impl Cx3 {
    /// Starts the program and waits until each card's socket accepts connections. The calling thread must
    /// outlive the program.
    pub fn start(program: &Path, config: &Cx3Config) -> Result<Self> {
        let sockets: Vec<PathBuf> =
            (0..config.cards.len()).map(|n| config.dir.join(format!("card{n}"))).collect();
        let log =
            File::create(&config.log).with_context(|| format!("cannot write {}", config.log.display()))?;
        let mut command = Command::new(program);
        if !config.faults.is_none() {
            command.args(["--faults", &config.faults.to_string(), "--seed", &config.seed.to_string()]);
        }
        command.args(&config.arguments);
        for (card, socket) in config.cards.iter().zip(&sockets) {
            command.arg(card.argument(socket)?);
        }
        command.env("RUST_LOG", &config.log_level).env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = die_with_this_thread(&mut command)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut cx3 = Self { child, sockets, log: config.log.clone() };
        cx3.wait_listening()?;
        Ok(cx3)
    }

    fn wait_listening(&mut self) -> Result<()> {
        let deadline = Instant::now() + TURN;
        while !listen(&fs::read_to_string("/proc/net/unix").context("/proc/net/unix")?, &self.sockets) {
            if let Some(status) = self.child.try_wait()? {
                bail!("cx3 ended with {status}: {}", self.tail());
            }
            ensure!(Instant::now() < deadline, "cx3 does not listen in time: {}", self.tail());
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(())
    }

    /// Returns the socket of a card.
    ///
    /// # Panics
    /// Panics if there is no such card.
    #[must_use]
    pub fn socket(&self, card: usize) -> &Path {
        &self.sockets[card]
    }

    /// Returns the sockets of all cards, in order.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }

    /// Returns the program's log so far.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last lines of the program's log.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("; ")
    }

    /// Returns the id of the program's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the program has ended by itself, which is always a failure.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Ends the program, which must succeed, and returns its log.
    pub fn stop(mut self) -> Result<String> {
        let status = self.finish()?;
        ensure!(status.success(), "cx3 ended with {status}: {}", self.tail());
        self.log()
    }

    fn finish(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, Signal::TERM).context("cannot end cx3")?;
        let deadline = Instant::now() + TURN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(CHECK_EVERY);
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("cx3 does not end after SIGTERM: {}", self.tail())
    }
}

impl Drop for Cx3 {
    fn drop(&mut self) {
        // `stop` reports how the program ends; here the result does not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if all of `sockets` accept connections, according to `/proc/net/unix`. The columns of that
/// file are number, references, protocol, flags, type, state, inode, path.
fn listen(table: &str, sockets: &[PathBuf]) -> bool {
    let listening = |line: &str| {
        let mut words = line.split_whitespace();
        let flags = words.nth(3)?;
        let path = words.nth(3)?;
        (flags == LISTENS).then(|| PathBuf::from(path))
    };
    let listening: Vec<PathBuf> = table.lines().filter_map(listening).collect();
    sockets.iter().all(|socket| listening.contains(socket))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_listens_if_the_kernel_says_so() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 20145 /tmp/x/card0\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20146 /tmp/x/card1\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20147\n";
        assert!(listen(table, &["/tmp/x/card0".into()]));
        assert!(!listen(table, &["/tmp/x/card0".into(), "/tmp/x/card1".into()]));
        assert!(listen(table, &[]));
    }

    #[test]
    fn a_card_as_the_program_reads_it() {
        let card = CardConfig { fabric: Some("/f".into()), ..CardConfig::profile("vf") };
        assert_eq!(card.argument(Path::new("/s")).unwrap(), "/s,profile=vf,fabric=/f");
        assert_eq!(CardConfig::default().argument(Path::new("/s")).unwrap(), "/s");
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error_that_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let config = Cx3Config::new(dir.path().to_owned(), 1, dir.path().join("log"));
        let error = Cx3::start(Path::new("false"), &config).unwrap_err().to_string();
        assert!(error.contains("cx3 ended with exit status: 1"), "{error}");
    }
}
