//! A cluster without virtual machines: the manager's daemon and a fabric in this process, nodes in it or
//! beside it.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test's own means may fail it")]

use fabric::{Fabric, FabricConfig};
use manager::client::Client;
use manager::core::Config;
use manager::daemon::{Daemon, Options};
use manager::key;
use proto::channel::ClusterKey;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// The longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub dir: TempDir,
    pub address: String,
    pub fabric: Fabric,
    stop: Option<oneshot::Sender<()>>,
    daemon: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts a manager, and a fabric with `ports` ports.
    pub(crate) fn start(ports: usize) -> Self {
        Self::with_lease(ports, Config::default().lease)
    }

    /// Does the same as [`new`](Self::new); a node that the manager does not hear for `lease` is dead.
    pub(crate) fn with_lease(ports: usize, lease: Duration) -> Self {
        // The path is short, because of the sockets in it.
        let dir = TempDir::with_prefix("lite-").unwrap();
        let (key, _) = key::load_or_make(&dir.path().join("cluster.key")).unwrap();
        let options = Options {
            listen: "127.0.0.1:0".parse().unwrap(),
            key,
            state: dir.path().join("state"),
            config: Config { lease, ..Config::default() },
            http: None,
            former: None,
            format: manager::LogFormat::Text,
        };
        let (stop, stopped) = oneshot::channel();
        let (told, address) = std::sync::mpsc::channel();
        let daemon = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let daemon = Daemon::bind(options).await.unwrap();
                told.send(daemon.local_addr().unwrap().to_string()).unwrap();
                daemon.serve(async { drop(stopped.await) }).await.unwrap();
            });
        });
        let address = address.recv_timeout(LIMIT).unwrap();
        let fabric = fabric(ports, dir.path());
        Self { dir, address, fabric, stop: Some(stop), daemon: Some(daemon) }
    }

    /// Starts the manager as a process of its own, and a fabric with `ports` ports.
    pub(crate) fn with_process(ports: usize) -> (Self, Process) {
        let dir = TempDir::with_prefix("lite-").unwrap();
        key::load_or_make(&dir.path().join("cluster.key")).unwrap();
        let address = dir.path().join("address");
        let manager = manager_process(dir.path());
        let deadline = Instant::now() + LIMIT;
        while !address.exists() {
            assert!(Instant::now() < deadline, "the manager does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let address = std::fs::read_to_string(address).unwrap();
        let fabric = fabric(ports, dir.path());
        (Self { dir, address, fabric, stop: None, daemon: None }, manager)
    }

    /// Starts the manager's process again, with the state and at the address of the former.
    pub(crate) fn restart(&self) -> Process {
        manager_process(self.dir.path())
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("cluster.key")
    }

    pub(crate) fn key(&self) -> ClusterKey {
        key::load(&self.key_file()).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address, &self.key()).unwrap()
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Waits until the cluster has `count` members.
    pub(crate) fn wait_nodes(&self, count: u16) {
        self.client().wait_nodes(count, LIMIT).unwrap();
    }

    /// Waits until the sorted names of the members equal `names`.
    pub(crate) fn wait_members(&self, names: &[&str]) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut now: Vec<String> =
                self.client().nodes().unwrap().into_iter().map(|node| node.name).collect();
            now.sort();
            if now == names {
                return;
            }
            assert!(Instant::now() < deadline, "members {now:?}, not {names:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts the manager as a process with its files in `dir`.
fn manager_process(dir: &Path) -> Process {
    let files = ["cluster.key", "state", "address"].map(|name| dir.join(name));
    // Cargo puts examples beside the directory of tests.
    let exe = std::env::current_exe().unwrap();
    Process::start(Command::new(exe.ancestors().nth(2).unwrap().join("examples/manager")).args(files))
}

/// Starts a fabric without faults, with its sockets in the directory `dir`.
fn fabric(ports: usize, dir: &Path) -> Fabric {
    let faults = netfault::Faults::default();
    Fabric::start(&FabricConfig { ports, dir: dir.to_owned(), faults, seed: 0, pcap: None }).unwrap()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.join();
        }
    }
}

/// A process, killed at the end of the test.
pub(crate) struct Process {
    child: Child,
    /// The lines that the process has written to its standard error.
    lines: Receiver<String>,
    /// The lines that a test has read so far, each with its line feed.
    said: String,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // The output is read on without a listener: a full pipe would stop the process.
                let _ = told.send(line);
            }
        });
        Self { child, lines, said: String::new() }
    }

    /// Waits until the process prints a line that contains `text`, unless it has before.
    pub(crate) fn says(&mut self, text: &str) {
        while !self.said.contains(text) {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) => self.said += &(line + "\n"),
                Err(error) => panic!("it does not say `{text}` ({error}), but:\n{}", self.said),
            }
        }
    }

    /// Returns what the process has said up to now, of what was read.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the process; returns its status and its standard error.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the process goes on");
            std::thread::sleep(Duration::from_millis(10));
        };
        for line in &self.lines {
            self.said += &(line + "\n");
        }
        (status, std::mem::take(&mut self.said))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The reference implementation of word count.
pub(crate) fn reference(input: &Path) -> Vec<u8> {
    const PIPELINE: &str = r#"export LC_ALL=C
tr -cs A-Za-z '\n' <"$1" | tr A-Z a-z | sed '/^$/d' | sort | uniq -c | sed -E 's/^ *([0-9]+) (.*)$/\2\t\1/' |
sort -t "$(printf '\t')" -k2,2nr -k1,1"#;
    let done = Command::new("sh").args(["-c", PIPELINE, "sh"]).arg(input).output().unwrap();
    assert!(done.status.success());
    done.stdout
}

/// Returns a text of about `bytes` bytes, which is the same in each run.
pub(crate) fn text(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Small numbers are more frequent.
        let word = (state >> 33) % (1 + (state >> 50) % 5000);
        let mut rest = word;
        loop {
            text.push(b'a' + (rest % 26) as u8);
            rest /= 26;
            if rest == 0 {
                break;
            }
        }
        text.push(if word.is_multiple_of(11) { b'\n' } else { b' ' });
    }
    text
}
