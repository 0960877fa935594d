//! The real daemon on a free port of 127.0.0.1, with nodes and clients that speak the protocol over TCP.

use crate::support;
use manager::client::{Client, ClientError, Connection, Inputs, Job, Output, Sending};
use manager::key;
use proto::channel::{ChannelError, ClusterKey, Role};
use proto::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output as Ended, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ferrolite");

/// The unit of processor times in /proc, on every architecture that the manager runs on (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// The directory of a test, which is removed at its end.
pub(crate) struct Directory(pub PathBuf);

impl Directory {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ferrolite-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
    /// Makes a file that only its owner can read.
    pub(crate) fn secret(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.file(name, bytes);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
    /// Returns the names in the directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running daemon, killed at the end of the test.
pub(crate) struct Daemon {
    pub child: Child,
    pub log: Box<dyn BufRead + Send>,
    pub address: String,
    pub key_file: PathBuf,
}

impl Daemon {
    /// Starts a daemon. Unless `more` says otherwise, a lease outlasts any test, because nodes here send no
    /// heartbeats.
    pub(crate) fn start(directory: &Directory, more: &[&str]) -> Self {
        Self::launch(Command::new(BINARY), directory, more)
    }

    /// Starts a daemon in a shell, after the command `first`, which sets limits or signals that the daemon
    /// inherits.
    pub(crate) fn start_after(first: &str, directory: &Directory, more: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), BINARY]);
        Self::launch(shell, directory, more)
    }

    fn launch(mut command: Command, directory: &Directory, more: &[&str]) -> Self {
        let lease: &[&str] = if more.contains(&"--lease-ms") { &[] } else { &["--lease-ms", "600000"] };
        let state = directory.join("state");
        let mut child = command
            .args(["daemon", "--listen", "127.0.0.1:0", "--state"])
            .arg(&state)
            .args(lease)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Box::new(BufReader::new(child.stderr.take().unwrap()));
        let mut daemon = Self { child, log, address: String::new(), key_file: state.join("cluster.key") };
        let line = daemon.wait_log("listening on ");
        // The line may be one of JSON.
        let line = line.trim().split("\",").next().unwrap();
        daemon.address = line.rsplit(' ').next().unwrap().into();
        daemon
    }

    /// Returns the memory of the daemon that is in use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.kilobytes("VmRSS:") << 10
    }

    /// Returns the most memory that the daemon has used so far, in bytes.
    pub(crate) fn most_memory(&self) -> usize {
        self.kilobytes("VmHWM:") << 10
    }

    fn kilobytes(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Returns the processor time that the daemon has used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The fields after the name: utime and stime are the 14th and 15th of all, in ticks.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        TICK * fields[11..13].iter().map(|field| field.parse::<u32>().unwrap()).sum()
    }

    /// Reads the log up to a line with `text`, and returns that line.
    pub(crate) fn wait_log(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the daemon ended without saying {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Reads the rest of the log in a thread of its own, and returns its lines.
    pub(crate) fn collect_log(&mut self) -> Lines {
        let lines = Lines::default();
        let (into, log) = (lines.clone(), std::mem::replace(&mut self.log, Box::new(std::io::empty())));
        std::thread::spawn(move || {
            log.lines().map_while(Result::ok).for_each(|line| into.0.lock().unwrap().push(line));
        });
        lines
    }

    pub(crate) fn key(&self) -> ClusterKey {
        key::load(&self.key_file).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address, &self.key()).unwrap()
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.args([name, "--manager", &self.address, "--key-file"]).arg(&self.key_file);
        command
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.child.id(), signal);
    }
}

/// The lines of a log, collected as they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for a line with `text`, and returns it.
    pub(crate) fn wait(&self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if let Some(line) = self.all().into_iter().find(|line| line.contains(text)) {
                return line;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the daemon does not say {text:?}: {:#?}", self.all());
    }
}

fn signal_to(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn error_line(ended: &Ended) -> String {
    assert!(!ended.status.success());
    let text = String::from_utf8(ended.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one clear line: {text}");
    text.trim().into()
}

pub(crate) fn join_as(daemon: &Daemon, name: &str) -> (Connection, Welcome) {
    join_through(&daemon.address, daemon, name)
}

/// Sends a heartbeat after a moment. The answer to it is the time for the next one.
fn keep_alive(node: &mut Connection) {
    std::thread::sleep(Duration::from_millis(20));
    node.sending.send(&ToManager::Heartbeat { seq: 1 }).unwrap();
}

/// Joins through a relay at `address` that passes all bytes on to the daemon.
pub(crate) fn join_through(address: &str, daemon: &Daemon, name: &str) -> (Connection, Welcome) {
    match try_join(address, daemon, name) {
        (connection, ToNode::Welcome(welcome)) => (connection, welcome),
        (_, other) => panic!("{other:?}"),
    }
}

/// Asks to join, and returns the connection and the answer.
pub(crate) fn try_join(address: &str, daemon: &Daemon, name: &str) -> (Connection, ToNode) {
    let mut connection = Connection::open(address, &daemon.key(), Role::Node).unwrap();
    let wish = Join { keep_id: true, ..support::join(name) };
    connection.sending.send(&Hello::Node(wish)).unwrap();
    let answer = connection.receiving.receive(Some(Duration::from_secs(10))).unwrap();
    (connection, answer)
}

/// A node that processes nothing: its input goes by relayed messages to rank 0, which returns all of it in
/// the order of file and offset.
struct EchoNode {
    connection: Connection,
    welcome: Welcome,
    share: Vec<(u32, u64, Vec<u8>)>,
    job: Option<JobStart>,
    /// The number of output bytes that may still be sent before an acknowledgement, and the waiting output.
    window: usize,
    /// The number of bytes of output that were sent.
    given: u64,
    waiting: Vec<u8>,
    collected: usize,
    /// The input that was received, in charges.
    taken: u64,
}

pub(crate) fn echo_node(daemon: &Daemon, name: &str) -> JoinHandle<Result<(), ClientError>> {
    let (connection, welcome) = join_as(daemon, name);
    let mut node = EchoNode {
        connection,
        welcome,
        share: Vec::new(),
        job: None,
        window: ToManager::OUTPUT_WINDOW,
        given: 0,
        waiting: Vec::new(),
        collected: 0,
        taken: 0,
    };
    std::thread::spawn(move || node.run())
}

impl EchoNode {
    fn run(&mut self) -> Result<(), ClientError> {
        let mut members = self.welcome.members.clone();
        loop {
            match self.connection.receiving.receive(Some(Duration::from_secs(60)))? {
                ToNode::Joined(member) => members.push(member),
                ToNode::JobStart(start) => {
                    self.share.clear();
                    (self.collected, self.taken, self.given) = (0, 0, 0);
                    (self.window, self.waiting) = (ToManager::OUTPUT_WINDOW, Vec::new());
                    self.say(&ToManager::JobAccepted { job: start.job })?;
                    self.say(&credit(start.job, 0))?;
                    self.job = Some(start);
                }
                ToNode::JobInput { job, file, offset, bytes, .. } => {
                    self.taken += ToNode::input_charge(bytes.len());
                    self.share.push((file, offset, bytes));
                    self.say(&credit(job, self.taken))?;
                }
                ToNode::JobCancel { job, .. } => self.say(&ToManager::JobOver { job })?,
                ToNode::JobInputEnd { .. } => self.pass_on(&members)?,
                ToNode::Relayed { body, .. } => {
                    let (file, offset, bytes): (u32, u64, Vec<u8>) = decode(&body)?;
                    self.share.push((file, offset, bytes));
                    self.give_if_whole()?;
                }
                ToNode::JobOutputAck { bytes, .. } => {
                    self.window = ToManager::OUTPUT_WINDOW - (self.given - bytes) as usize;
                    self.give()?;
                }
                ToNode::Shutdown => {
                    return self.say(&ToManager::Leave);
                }
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &ToManager) -> Result<(), ClientError> {
        self.connection.sending.send(message)
    }

    fn start(&self) -> &JobStart {
        self.job.as_ref().unwrap()
    }

    fn pass_on(&mut self, members: &[Member]) -> Result<(), ClientError> {
        let first = self.start().nodes[0];
        if first == self.welcome.node {
            return self.give_if_whole();
        }
        let incarnation = members.iter().rfind(|member| member.node == first).unwrap().incarnation;
        for (file, offset, bytes) in std::mem::take(&mut self.share) {
            for (index, piece) in bytes.chunks(4000).enumerate() {
                let offset = offset + 4000 * index as u64;
                let body = encode(&(file, offset, piece));
                self.say(&ToManager::Relay { to: first, incarnation, body })?;
            }
        }
        self.done()
    }

    fn give_if_whole(&mut self) -> Result<(), ClientError> {
        let total: u64 = self.start().inputs.iter().map(|file| file.len).sum();
        let have: usize = self.share.iter().map(|(_, _, bytes)| bytes.len()).sum();
        if have as u64 == total {
            self.share.sort();
            self.waiting = self.share.drain(..).flat_map(|(_, _, bytes)| bytes).collect();
            self.collected = have;
            return self.give();
        }
        Ok(())
    }

    fn give(&mut self) -> Result<(), ClientError> {
        let job = self.start().job;
        while !self.waiting.is_empty() {
            let len = self.waiting.len().min(self.window).min(64 << 10);
            if len == 0 {
                return Ok(());
            }
            let rest = self.waiting.split_off(len);
            let bytes = std::mem::replace(&mut self.waiting, rest);
            self.window -= len;
            let offset = self.given;
            self.given += len as u64;
            self.say(&ToManager::JobOutput { job, offset, bytes })?;
        }
        if self.window == ToManager::OUTPUT_WINDOW { self.done() } else { Ok(()) }
    }

    fn done(&mut self) -> Result<(), ClientError> {
        let job = self.start().job;
        let counts = vec![("bytes".into(), self.collected as u64)];
        self.say(&ToManager::JobDone {
            job,
            report: JobReport { counts, times_us: vec![("map".into(), 1)], ..JobReport::default() },
        })
    }
}

/// Makes the credit message of a node that has received `taken`, in charges.
pub(crate) fn credit(job: JobId, taken: u64) -> ToManager {
    ToManager::JobInputCredit { job, bytes: taken + ToNode::INPUT_WINDOW }
}

pub(crate) fn text(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 27 == 0 { b'\n' } else { b'a' + (state >> 24) as u8 % 26 }
    })
    .take(len)
    .collect()
}

/// Sends a heartbeat, so that the daemon keeps the node until this is dropped.
fn beat(sending: &mut Sending, seq: u64) {
    sending.send(&ToManager::Heartbeat { seq }).unwrap();
}

#[test]
fn join_list_and_shut_down() {
    let directory = Directory::new("join");
    let port_file = directory.join("port");
    let mut daemon = Daemon::start(&directory, &["--port-file", port_file.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&port_file).unwrap().trim(), daemon.address);
    let nodes = ["a", "b"].map(|name| echo_node(&daemon, name));
    let listed = daemon.client().wait_nodes(2, Duration::from_secs(10)).unwrap();
    assert_eq!(listed.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let json = directory.join("nodes.json");
    let ended = daemon.command("nodes").arg("--json").arg(&json).output().unwrap();
    let table = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(table.lines().count(), 3);
    assert!(table.contains("softroce ::ffff:10.77.0.2 RoCE v2, RoCE v1"), "{table}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["nodes"][1]["boot_ms"], 5.0);

    assert!(daemon.command("shutdown").status().unwrap().success());
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    assert!(daemon.client().nodes().unwrap().is_empty());
    daemon.signal("-TERM");
    daemon.wait_log("stops");
    assert!(daemon.child.wait().unwrap().success());
}

#[test]
fn identities_outlive_the_daemon_even_killed() {
    let directory = Directory::new("identity");
    let first = {
        let daemon = Daemon::start(&directory, &[]);
        join_as(&daemon, "a").1
    };
    let daemon = Daemon::start(&directory, &[]);
    let (_one, again) = join_as(&daemon, "a");
    assert_eq!(again.node, first.node);
    assert!(again.incarnation > first.incarnation);
}

#[test]
fn bad_starts_get_one_line() {
    let directory = Directory::new("starts");
    let daemon = Daemon::start(&directory, &[]);
    let run = |args: &[&str]| error_line(&Command::new(BINARY).args(args).output().unwrap());

    let elsewhere = directory.join("elsewhere");
    let elsewhere = elsewhere.to_str().unwrap();
    assert!(Command::new(BINARY).args(["key", "--key-file", elsewhere]).output().unwrap().status.success());
    let busy = run(&["daemon", "--listen", &daemon.address, "--state", elsewhere, "--key-file", elsewhere]);
    assert!(busy.contains(&format!("cannot listen on {}: Address already in use", daemon.address)), "{busy}");
    let state = directory.join("state");
    let shared = run(&["daemon", "--listen", "127.0.0.1:0", "--state", state.to_str().unwrap()]);
    assert!(shared.contains("in use by another manager"), "{shared}");

    let wrong = run(&["nodes", "--manager", &daemon.address, "--key-file", elsewhere]);
    assert!(wrong.ends_with("wrong cluster key"), "{wrong}");
    let absent = run(&["nodes", "--manager", "127.0.0.1:1", "--key-file", elsewhere]);
    assert!(absent.contains("no manager at 127.0.0.1:1: Connection refused"), "{absent}");
    let nonsense = run(&["nodes", "--manager", "nonsense", "--key-file", elsewhere]);
    assert!(nonsense.contains("nonsense is not an address"), "{nonsense}");

    let no_key = run(&["nodes", "--key-file", "/nonexistent/key"]);
    assert!(no_key.contains("cannot read the key file /nonexistent/key: No such file"), "{no_key}");
    let open = directory.file("open", b"00");
    let open = run(&["nodes", "--key-file", open.to_str().unwrap()]);
    assert!(open.contains("open to other users"), "{open}");
    let empty = directory.file("empty", b"hello");
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o600)).unwrap();
    let empty = run(&["nodes", "--key-file", empty.to_str().unwrap()]);
    assert!(empty.contains("holds no cluster key"), "{empty}");
}

#[test]
fn a_new_key_is_for_its_owner_only() {
    let directory = Directory::new("key");
    let path = directory.join("deep/key");
    let (key, made) = key::load_or_make(&path).unwrap();
    assert!(made);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (again, made) = key::load_or_make(&path).unwrap();
    assert!(!made && again == key);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing temporary is left");
}

#[test]
fn strangers_are_shown_out() {
    let directory = Directory::new("strangers");
    let mut daemon = Daemon::start(&directory, &[]);
    let mut stranger = TcpStream::connect(&daemon.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    daemon.wait_log("does not speak Ferrolite's control protocol");
    let wrong = ClusterKey::from_bytes([3; 32]);
    let error = Client::connect(&daemon.address, &wrong).unwrap_err();
    assert!(matches!(error, ClientError::Channel(ChannelError::WrongKey)), "{error}");
    daemon.wait_log("wrong cluster key");
    // A peer that has the key but sends invalid messages does not disturb the others.
    let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    connection.sending.send(&vec![255u8; 300]).unwrap();
    daemon.wait_log("instead of a hello");
    let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    connection.sending.send(&vec![0u8; 70_000]).unwrap();
    assert!(connection.receiving.receive::<ToNode>(Some(Duration::from_secs(10))).is_err());
    let _half_open = TcpStream::connect(&daemon.address).unwrap();
    daemon.wait_log("no handshake in time");
    assert!(daemon.client().nodes().unwrap().is_empty());
}

#[test]
fn a_job_goes_round() {
    let directory = Directory::new("job");
    let daemon = Daemon::start(&directory, &[]);
    for name in ["a", "b", "c"] {
        echo_node(&daemon, name);
    }
    let contents = [text(3_000_000), Vec::new(), vec![b'x'; 700_000], b"end".to_vec()];
    let files: Vec<PathBuf> =
        contents.iter().enumerate().map(|(i, bytes)| directory.file(&format!("in{i}"), bytes)).collect();
    let (output, json) = (directory.join("out"), directory.join("json"));
    let mut command = daemon.command("submit");
    command.args(["--app", "lines", "--output"]).arg(&output).arg("--json").arg(&json);
    for file in &files {
        command.arg("--input").arg(file);
    }
    let ended = command.args(["--args", "-x", "y"]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(fs::read(&output).unwrap(), contents.concat());
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(json["bytes"], 3_700_003);
    assert_eq!(json["nodes"], 3);
    assert_eq!(json["input_bytes"], 3_700_003);
    assert!(String::from_utf8(ended.stdout).unwrap().contains("bytes: 3700003"));

    // A job with an empty input file runs on two nodes and replaces the existing output.
    let mut command = daemon.command("submit");
    command.args(["--app", "lines", "--nodes", "2", "--output"]).arg(&output).arg("--input").arg(&files[1]);
    assert!(command.output().unwrap().status.success());
    assert_eq!(fs::read(&output).unwrap(), b"");
    assert_eq!(directory.names(), ["in0", "in1", "in2", "in3", "json", "out", "state"]);
}

#[test]
fn bad_submissions_get_one_line_and_leave_nothing() {
    let directory = Directory::new("submissions");
    let daemon = Daemon::start(&directory, &[]);
    echo_node(&daemon, "a");
    let good = directory.file("good", b"x\n");
    let output = directory.join("out");
    let submit = |app: &str, input: &Path, output: &Path, more: &[&str]| {
        let mut command = daemon.command("submit");
        command.args(["--app", app, "--input"]).arg(input).arg("--output").arg(output).args(more);
        error_line(&command.output().unwrap())
    };
    assert!(submit("lines", &directory.join("none"), &output, &[]).contains("none: No such file"));
    assert!(submit("lines", &directory.0, &output, &[]).contains("is a directory"));
    assert!(submit("lines", Path::new("/dev/null"), &output, &[]).contains("not a regular file"));
    assert!(submit("lines", &good, &directory.0, &[]).contains("is a directory"));
    assert!(submit("lines", &good, Path::new("/dev/null"), &[]).contains("not a regular file"));
    assert!(submit("lines", &good, Path::new("/nonexistent/out"), &[]).contains("No such file"));
    assert!(submit("sort", &good, &output, &[]).contains("unknown application sort; the nodes have: lines"));
    assert!(submit("lines", &good, &output, &["--nodes", "2"]).contains("only 1 with lines"));
    assert_eq!(directory.names(), ["good", "state"]);
}

#[test]
fn a_node_that_dies_in_a_job_is_named() {
    let directory = Directory::new("death");
    let daemon = Daemon::start(&directory, &["--lease-ms", "5000"]);
    echo_node(&daemon, "other");
    let input = directory.file("in", &text(40_000_000));
    let (mut victim, _) = join_as(&daemon, "victim");
    keep_alive(&mut victim);
    let output = directory.join("out");
    let mut command = daemon.command("submit");
    command.args(["--app", "lines", "--input"]).arg(input).arg("--output").arg(&output);
    let submission = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The node accepts its part and some input. Then its machine fails in the middle of the stream.
    loop {
        match victim.receiving.receive(Some(Duration::from_secs(10))).unwrap() {
            ToNode::JobStart(start) => {
                victim.sending.send(&ToManager::JobAccepted { job: start.job }).unwrap();
                victim.sending.send(&credit(start.job, ToNode::INPUT_WINDOW)).unwrap();
            }
            ToNode::JobInput { offset, .. } if offset > 1_000_000 => break,
            ToNode::HeartbeatAck { .. } => keep_alive(&mut victim),
            _ => {}
        }
    }
    drop(victim);
    let ended = submission.wait_with_output().unwrap();
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        // The membership of the node outlasts its connection.
        said.lines().last().unwrap().ends_with(": lease expired"),
        "{said}"
    );
    assert_eq!(directory.names(), ["in", "state"]);
}

#[test]
fn a_silent_node_loses_its_lease_in_a_job() {
    let directory = Directory::new("lease");
    let daemon = Daemon::start(&directory, &["--lease-ms", "2000"]);
    let mut output = Output::create(&directory.join("out")).unwrap();
    let (mut silent, _) = join_as(&daemon, "silent");
    keep_alive(&mut silent);
    let job = Job { app: "lines".into(), args: vec![], nodes: 0, on: vec![], limit: None, ..Job::default() };
    let client = daemon.client();
    let failed = std::thread::scope(|scope| {
        let submission =
            scope.spawn(|| client.submit(&job, Inputs::open(&[]).unwrap(), &mut output, &|_| {}));
        loop {
            match silent.receiving.receive(Some(Duration::from_secs(10))).unwrap() {
                ToNode::JobStart(start) => {
                    silent.sending.send(&ToManager::JobAccepted { job: start.job }).unwrap();
                    break;
                }
                ToNode::HeartbeatAck { .. } => keep_alive(&mut silent),
                _ => {}
            }
        }
        submission.join().unwrap().unwrap_err()
    });
    assert_eq!(failed.to_string(), "node 1 (silent): lease expired");
}

#[test]
fn a_client_that_is_killed_cancels_its_job() {
    let directory = Directory::new("client");
    let daemon = Daemon::start(&directory, &[]);
    let (mut node, _) = join_as(&daemon, "a");
    let input = directory.file("in", &text(100));
    let left = ["in", "state"];
    for signal in ["-INT", "-TERM", "-HUP", "-KILL"] {
        let mut command = daemon.command("submit");
        command.args(["--app", "lines", "--input"]).arg(&input).arg("--output").arg(directory.join("out"));
        let mut submission = command.stderr(Stdio::null()).spawn().unwrap();
        loop {
            match node.receiving.receive(Some(Duration::from_secs(10))).unwrap() {
                ToNode::JobStart(start) => {
                    node.sending.send(&ToManager::JobAccepted { job: start.job }).unwrap();
                    node.sending.send(&credit(start.job, 0)).unwrap();
                }
                ToNode::JobInputEnd { .. } => signal_to(submission.id(), signal),
                ToNode::JobCancel { job, reason } => {
                    assert!(reason.contains("its client has disconnected"), "{reason}");
                    node.sending.send(&ToManager::JobOver { job }).unwrap();
                    break;
                }
                _ => beat(&mut node.sending, 1),
            }
        }
        assert!(!submission.wait().unwrap().success());
        // The files that SIGKILL leaves behind are hidden and never have the output's name.
        let seen: Vec<String> = directory.names().into_iter().filter(|name| !name.starts_with('.')).collect();
        assert_eq!(seen, left);
        if signal != "-KILL" {
            assert_eq!(directory.names(), left, "{signal}");
        }
    }
}

#[test]
fn a_daemon_that_stops_says_so_to_clients() {
    let directory = Directory::new("stop");
    let daemon = Daemon::start(&directory, &[]);
    let mut client = daemon.client();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.wait_nodes(1, Duration::from_secs(60)));
        // The manager knows of the wait once it has answered a later question on a later connection.
        // Whichever comes first, the client learns of the end.
        daemon.client().nodes().unwrap();
        daemon.signal("-INT");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Failed(_) | ClientError::Lost(_)), "{error}");
    });
}
