//! Members that stand in for nodes: many in one process, each over a connection of its own.

use crate::daemon::credit;
use crate::support;
use proto::channel::{Channel, ClusterKey, Handshake, HandshakeStep, Opener, Role, Sealer};
use proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The longest time without any progress.
const SILENCE: Duration = Duration::from_secs(300);

/// The numbers of messages that all members together have received.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub welcomes: AtomicUsize,
    /// News of a member, in a welcome or alone.
    pub members: AtomicUsize,
    pub left: AtomicUsize,
    pub settled: AtomicUsize,
}

impl Heard {
    /// Waits until a count is `expected`.
    pub(crate) fn wait(&self, what: &str, count: impl Fn(&Self) -> &AtomicUsize, expected: usize) {
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
    /// The input of its job that it has received, in charges.
    taken: u64,
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
                    return Self { taken: 0, stream, sealer, opener, buffer, heard };
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

    /// Answers all messages and sends a heartbeat every `beat`, until the connection or this member ends.
    async fn live(mut self, beat: Duration, mut dies: watch::Receiver<bool>) {
        let (mut beats, mut seq) = (tokio::time::interval(beat), 0);
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
            self.answer_all(messages).await;
        }
    }

    async fn answer_all(&mut self, messages: Vec<ToNode>) {
        let answers: Vec<ToManager> = messages.into_iter().flat_map(|message| self.answer(message)).collect();
        self.say(&answers).await;
    }

    fn answer(&mut self, message: ToNode) -> Vec<ToManager> {
        let count = |counter: &AtomicUsize| _ = counter.fetch_add(1, Ordering::SeqCst);
        match message {
            ToNode::Joined(_) => count(&self.heard.members),
            ToNode::Left { node, incarnation, .. } => {
                count(&self.heard.left);
                return vec![ToManager::LeftSeen { node, incarnation }];
            }
            ToNode::Settled { .. } => count(&self.heard.settled),
            ToNode::JobStart(start) => {
                self.taken = 0;
                return vec![ToManager::JobAccepted { job: start.job }, credit(start.job, 0)];
            }
            ToNode::JobInput { job, bytes, .. } => {
                self.taken += ToNode::input_charge(bytes.len());
                return vec![credit(job, self.taken)];
            }
            ToNode::JobInputEnd { job } => {
                let report = JobReport { counts: vec![("ended".into(), 1)], ..JobReport::default() };
                return vec![ToManager::JobDone { job, report }];
            }
            ToNode::AskImage => {
                let image = RunningImage { kernel: [1; 32], version: "1".into() };
                return vec![ToManager::Image(image)];
            }
            ToNode::HeartbeatAck { .. } | ToNode::JobForget { .. } => {}
            other => panic!("{other:?}"),
        }
        Vec::new()
    }
}

/// A member to be: what it needs to join, and for how long it lives.
pub(crate) struct Candidate {
    pub address: String,
    pub key: ClusterKey,
    pub number: u16,
    pub heard: Arc<Heard>,
    /// The interval of its heartbeats.
    pub beat: Duration,
    /// Ends the member.
    pub dies: watch::Receiver<bool>,
}

impl Candidate {
    /// Joins as `appliance-NUMBER`, and lives until `dies` or the end of the connection.
    pub(crate) async fn join(self) {
        let Self { address, key, number, heard, beat, dies } = self;
        let mut member = Member::connect(&address, &key, heard).await;
        let mut wish = support::join(&format!("appliance-{number:04}"));
        wish.rnic.mac.0[4..].copy_from_slice(&number.to_be_bytes());
        wish.boot.stages = (0..20).map(|stage| (format!("stage number {stage:02}"), 1)).collect();
        member.say(&[Hello::Node(wish)]).await;
        let mut messages = member.hear().await.into_iter();
        let first = messages.next();
        let Some(ToNode::Welcome(welcome)) = first else { panic!("{first:?} instead of a welcome") };
        member.heard.welcomes.fetch_add(1, Ordering::SeqCst);
        member.heard.members.fetch_add(welcome.members.len(), Ordering::SeqCst);
        member.answer_all(messages.collect()).await;
        member.live(beat, dies).await;
    }
}
