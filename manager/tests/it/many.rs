//! The maximum number of members on the real daemon, each over a connection of its own.

use crate::daemon::{Daemon, Directory};
use crate::strangers::raise_own_limit;
use crate::support;
use manager::client::{Inputs, Job, Output};
use proto::channel::{Channel, ClusterKey, Handshake, HandshakeStep, Opener, Role, Sealer};
use proto::*;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

const MEMBERS: u16 = 4095;
/// The number of members that die together at the end.
const DEATHS: u16 = 10;
/// The number of members that join at once.
const AT_ONCE: u16 = 32;
/// The limit of the memory of the daemon's process. docs/security.md states it.
const MOST_BYTES: usize = 1 << 30;
/// The interval of heartbeats, a tenth of the lease that [`Daemon::start`] sets.
const BEAT: Duration = Duration::from_secs(60);
/// The longest time without any progress.
const SILENCE: Duration = Duration::from_secs(300);

/// The numbers of messages that all members together have received.
#[derive(Default)]
struct Heard {
    welcomes: AtomicUsize,
    /// News of a member, in a welcome or alone.
    members: AtomicUsize,
    left: AtomicUsize,
    settled: AtomicUsize,
}

impl Heard {
    /// Waits until a count is `expected`.
    fn wait(&self, what: &str, count: impl Fn(&Self) -> &AtomicUsize, expected: usize) {
        let (mut last, mut since) = (usize::MAX, Instant::now());
        loop {
            let now = count(self).load(Ordering::SeqCst);
            if now == expected {
                return;
            }
            assert!(now < expected, "{now} {what}, not {expected}");
            if now != last {
                (last, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < SILENCE, "{now} {what} of {expected}, and no more");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A member that answers what it is asked.
struct Member {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    buffer: Vec<u8>,
    heard: Arc<Heard>,
}

impl Member {
    async fn connect(address: &str, key: &ClusterKey, heard: Arc<Heard>) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut random = [0; 32];
        getrandom::fill(&mut random).unwrap();
        let mut side = Handshake::initiator(&key.for_role(Role::Node).unwrap(), random);
        let mut buffer = vec![0; 4096];
        loop {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "the daemon has ended the handshake");
            let mut bytes = &buffer[..count];
            match side.feed(&mut bytes).unwrap() {
                HandshakeStep::Continue { reply, next } => {
                    stream.write_all(&reply).await.unwrap();
                    side = next;
                }
                HandshakeStep::Done { channel: Channel { sealer, opener, .. }, .. } => {
                    let buffer = bytes.to_vec();
                    return Self { stream, sealer, opener, buffer, heard };
                }
            }
        }
    }

    async fn say<M: serde::Serialize>(&mut self, messages: &[M]) {
        let mut sealed = Vec::new();
        for message in messages {
            self.sealer.seal(&encode(message), &mut sealed).unwrap();
        }
        self.stream.write_all(&sealed).await.unwrap();
    }

    /// Receives some messages; none once the connection has ended. Nothing is lost if this is dropped early.
    async fn hear(&mut self) -> Vec<ToNode> {
        loop {
            let (mut messages, mut bytes) = (Vec::new(), &self.buffer[..]);
            while let Some(message) = self.opener.open(&mut bytes).unwrap() {
                messages.push(decode(&message).unwrap());
            }
            self.buffer = bytes.to_vec();
            if !messages.is_empty() {
                return messages;
            }
            self.buffer.reserve(8 << 10);
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return Vec::new();
            }
        }
    }

    /// Answers all messages and sends heartbeats, until the connection or this member ends.
    async fn live(mut self, mut dies: watch::Receiver<bool>) {
        let (mut beats, mut seq) = (tokio::time::interval(BEAT), 0);
        loop {
            let messages = tokio::select! {
                messages = self.hear() => Some(messages),
                _ = beats.tick() => None,
                _ = dies.wait_for(|&dies| dies) => return,
            };
            let Some(messages) = messages else {
                seq += 1;
                self.say(&[ToManager::Heartbeat { seq }]).await;
                continue;
            };
            if messages.is_empty() {
                return;
            }
            let answers: Vec<ToManager> =
                messages.into_iter().flat_map(|message| self.answer(message)).collect();
            self.say(&answers).await;
        }
    }

    fn answer(&self, message: ToNode) -> Vec<ToManager> {
        let count = |counter: &AtomicUsize| _ = counter.fetch_add(1, Ordering::SeqCst);
        match message {
            ToNode::Joined(_) => count(&self.heard.members),
            ToNode::Left { node, incarnation, .. } => {
                count(&self.heard.left);
                return vec![ToManager::LeftSeen { node, incarnation }];
            }
            ToNode::Settled { .. } => count(&self.heard.settled),
            ToNode::JobStart(start) => {
                let bytes = ToNode::INPUT_WINDOW;
                let job = start.job;
                return vec![ToManager::JobAccepted { job }, ToManager::JobInputCredit { job, bytes }];
            }
            ToNode::JobInputEnd { job } => {
                let report = JobReport { counts: vec![("ended".into(), 1)], ..JobReport::default() };
                return vec![ToManager::JobDone { job, report }];
            }
            ToNode::AskImage => {
                let image = RunningImage { kernel: [1; 32], version: "1".into() };
                return vec![ToManager::Image(image)];
            }
            ToNode::JobInput { .. } | ToNode::HeartbeatAck { .. } | ToNode::JobForget { .. } => {}
            other => panic!("{other:?}"),
        }
        Vec::new()
    }
}

/// Joins all members, a few at a time: the next ones when all know each other. Returns two flags
/// that end some of them and the others.
fn join_all(
    runtime: &tokio::runtime::Runtime,
    daemon: &Daemon,
    heard: &Arc<Heard>,
) -> [watch::Sender<bool>; 2] {
    let [(kill, dies), (end, lives)] = [watch::channel(false), watch::channel(false)];
    for number in 1..=MEMBERS {
        let dies = if number <= DEATHS { &dies } else { &lives };
        runtime.spawn(join(daemon.address.clone(), daemon.key(), number, heard.clone(), dies.clone()));
        if number.is_multiple_of(AT_ONCE) || number == MEMBERS {
            let all = usize::from(number);
            heard.wait("welcomes", |heard| &heard.welcomes, all);
            heard.wait("news of members", |heard| &heard.members, all * (all - 1));
        }
    }
    [kill, end]
}

/// Joins, and lives until `dies` or the end of the connection.
async fn join(address: String, key: ClusterKey, number: u16, heard: Arc<Heard>, dies: watch::Receiver<bool>) {
    let mut member = Member::connect(&address, &key, heard).await;
    let mut wish = support::join(&format!("appliance-{number:04}"));
    wish.rnic.mac.0[4..].copy_from_slice(&number.to_be_bytes());
    wish.boot.stages = (0..20).map(|stage| (format!("stage number {stage:02}"), 1)).collect();
    member.say(&[Hello::Node(wish)]).await;
    let mut messages = member.hear().await.into_iter();
    let Some(ToNode::Welcome(welcome)) = messages.next() else { panic!("no welcome") };
    member.heard.welcomes.fetch_add(1, Ordering::SeqCst);
    member.heard.members.fetch_add(welcome.members.len(), Ordering::SeqCst);
    let answers: Vec<ToManager> = messages.flat_map(|message| member.answer(message)).collect();
    member.say(&answers).await;
    member.live(dies).await;
}

/// Returns the most memory that the daemon has used so far, in bytes.
fn most_memory(daemon: &Daemon) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn as_many_members_as_there_can_be_join_are_listed_work_and_die() {
    raise_own_limit();
    let directory = Directory::new("many");
    let mut daemon = Daemon::start(&directory, &[]);
    let _log = daemon.collect_log();
    let (all, runtime) = (usize::from(MEMBERS), tokio::runtime::Runtime::new().unwrap());
    let (start, heard) = (Instant::now(), Arc::new(Heard::default()));
    let step = |what: &str| {
        println!("{what} after {:?}, {} MiB at most", start.elapsed(), most_memory(&daemon) >> 20);
    };
    let [kill, _end] = join_all(&runtime, &daemon, &heard);
    step("all have joined and know each other");
    let listed = daemon.client().nodes().unwrap();
    assert_eq!(listed.len(), all);
    step("all are listed");

    let input = directory.file("in", &vec![b'\n'; 1 << 20]);
    let mut output = Output::create(&directory.join("out")).unwrap();
    let job = Job { app: "lines".into(), args: vec![], nodes: 0, on: vec![], limit: None, ..Job::default() };
    let done = daemon.client().submit(&job, Inputs::open(&[input]).unwrap(), &mut output, &|_| {}).unwrap();
    assert_eq!((done.reports.len(), done.counts()), (all, vec![("ended".into(), all as u64)]));
    step("a job on all is done");

    kill.send_replace(true);
    let (deaths, rest) = (usize::from(DEATHS), all - usize::from(DEATHS));
    heard.wait("notices of deaths", |heard| &heard.left, deaths * rest);
    heard.wait("settled deaths", |heard| &heard.settled, deaths * rest);
    assert_eq!(daemon.client().nodes().unwrap().len(), rest);
    step("some have died");
    assert!(most_memory(&daemon) < MOST_BYTES, "{} MiB", most_memory(&daemon) >> 20);
}
