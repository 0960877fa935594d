//! A manager with a lower epoch than nodes have seen: an appliance and a Linux node obey nothing of it.

use super::cluster::LIMIT;
use super::commands::Commands;
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cargo::{self, Profile};
use lab::cluster::{Cluster, Lab};
use lab::processes::Node;
use lab::{manager, tool};
use proto::channel::{Channel, ClusterKey, Handshake, HandshakeStep};
use proto::{Hello, Incarnation, NodeId, Resumed, ToNode};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The lease of the nodes in milliseconds. A node asks another manager after two thirds of it.
const LEASE: &str = "3000";
/// The memory of the Linux node, in MiB.
const MEMORY: u32 = 64;

pub(super) fn cases() -> Vec<Case> {
    let case = Case::new("cluster::obeys-no-manager-of-a-lower-epoch", |log| {
        former_epoch(log).map(|()| Outcome::Passed)
    });
    vec![case.runs(&["--bin", "lite-node"])]
}

/// The lives that a former manager says have ended.
type Lost = Arc<Mutex<Vec<(NodeId, Incarnation)>>>;

/// A manager of a former epoch: it knows every node, and tells each one that wants to resume that all others
/// have left.
struct FormerManager {
    port: u16,
    lost: Lost,
    /// The nodes that have asked and have hung up.
    asked: Receiver<NodeId>,
}

impl FormerManager {
    fn start(key: &Path) -> Result<Self> {
        let key = ClusterKey::from_hex(&std::fs::read(key)?).context("a cluster key")?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (port, lost) = (listener.local_addr()?.port(), Lost::default());
        let (asks, asked) = channel();
        let shared = lost.clone();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (key, lost, asks) = (key.clone(), shared.clone(), asks.clone());
                thread::spawn(move || answer(stream, &key, &lost, &asks));
            }
        });
        Ok(Self { port, lost, asked })
    }
}

/// Answers one node, until the node hangs up. Another peer gets no answer.
fn answer(mut stream: TcpStream, key: &ClusterKey, lost: &Lost, asks: &Sender<NodeId>) -> Option<()> {
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let (Channel { mut sealer, mut opener, .. }, mut bytes) = shaken(&mut stream, key)?;
    let hello = loop {
        let mut rest = &bytes[..];
        if let Some(hello) = opener.open(&mut rest).ok()? {
            break hello;
        }
        bytes = received(&mut stream)?;
    };
    let Ok(Hello::Resume(resume)) = proto::decode(&hello) else { return None };
    let lost = lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let others: Vec<_> = lost.into_iter().filter(|(node, _)| *node != resume.node).collect();
    let left = |&(node, incarnation)| ToNode::Left { node, incarnation, reason: "it is a lie".into() };
    let mut messages: Vec<_> = others.iter().map(left).collect();
    let epoch = resume.epoch.checked_sub(1)?;
    messages.push(ToNode::Resumed(Resumed { epoch, time: 0, unsettled: others }));
    messages.push(ToNode::Shutdown);
    for message in messages {
        let mut sealed = Vec::new();
        sealer.seal(&proto::encode(&message), &mut sealed).ok()?;
        stream.write_all(&sealed).ok()?;
    }
    while received(&mut stream).is_some() {}
    asks.send(resume.node).ok()
}

/// Does the handshake, and also returns the bytes behind it.
fn shaken(stream: &mut TcpStream, key: &ClusterKey) -> Option<(Channel, Vec<u8>)> {
    let (mut side, challenge) = Handshake::responder(&key.roles().ok()?, [[3; 32], [4; 32]]);
    stream.write_all(&challenge).ok()?;
    loop {
        let bytes = received(stream)?;
        let mut bytes = &bytes[..];
        match side.feed(&mut bytes).ok()? {
            HandshakeStep::Continue { reply, next } => {
                stream.write_all(&reply).ok()?;
                side = next;
            }
            HandshakeStep::Done { reply, channel } => {
                stream.write_all(&reply).ok()?;
                return Some((channel, bytes.to_vec()));
            }
        }
    }
}

/// Returns the next bytes; `None` at the end of the connection.
fn received(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
    bytes.truncate(count);
    Some(bytes)
}

/// Stops the manager until each node has asked the former one. Afterwards both nodes do a job together, and
/// have the same incarnations.
fn former_epoch(log: &Path) -> Result<()> {
    let options = ["--trust-hosts", "--lease-ms", LEASE];
    let program = manager::build(Profile::Dev)?;
    let mut cluster = Cluster::under(&program, &options, (1, 1), &Lab::get()?.kernel, log)?;
    let former = FormerManager::start(cluster.manager.key())?;
    let managers = |host: &str| -> Result<String> {
        Ok(format!("manager={host}:{},{host}:{}", cluster.manager.port()?, former.port))
    };
    let (of_appliance, of_process) = (managers("10.0.2.2")?, managers("127.0.0.1")?);
    cluster.boot(1, &of_appliance, None, log)?;
    cluster.joined(log)?;
    let socket = cluster.fabric().socket(1).to_owned();
    let node = Node {
        name: "linux0".into(),
        socket: &socket,
        memory_mb: MEMORY,
        cpus: 1,
        settings: &[of_process],
        consoles: log.parent().context("a directory of logs")?,
    };
    let mut linux = node.start(&cargo::built_for_tests("lite-node")?, &cluster.manager)?;
    let commands = Commands::by(&program, &cluster.manager, log);
    tool::run_ok(&mut commands.command(&["node", "ls", "--wait", "2", "--timeout", "120"]), log, LIMIT)?;
    let lives = || -> Result<Vec<(NodeId, Incarnation)>> {
        let list = commands.list(&["node", "ls"], "nodes")?;
        let nodes = list["nodes"].as_array().context("a list of nodes")?.iter();
        let life = |node: &serde_json::Value| {
            let id = u16::try_from(node["node"].as_u64()?).ok()?;
            Some((NodeId(id), Incarnation(node["incarnation"].as_u64()?)))
        };
        nodes.map(|node| life(node).with_context(|| format!("a member: {node}"))).collect()
    };
    let before = lives()?;
    ensure!(before.len() == 2, "the members are {before:?}");
    former.lost.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&before);
    let process = Pid::from_raw(i32::try_from(cluster.manager.process())?).context("a process")?;
    kill_process(process, Signal::STOP)?;
    let mut asked = BTreeSet::new();
    let asks = (|| {
        while asked.len() < before.len() {
            asked.insert(former.asked.recv_timeout(LIMIT).context("a node does not ask the former manager")?);
        }
        anyhow::Ok(())
    })();
    kill_process(process, Signal::CONT)?;
    asks.with_context(|| cluster.fates())?;
    linux.check()?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let output = log.with_extension("out");
    let mut job = commands.command(&["job", "submit", "--app", "wordcount", "--nodes", "2"]);
    job.arg("--input").arg(&input).arg("--output").arg(&output);
    tool::run_ok(&mut job, log, LIMIT).with_context(|| cluster.fates())?;
    compare(&expected, &output, log)?;
    let after = lives()?;
    ensure!(after == before, "the members were {before:?}, and are {after:?}");
    Ok(())
}
