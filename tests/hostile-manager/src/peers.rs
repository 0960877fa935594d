//! What the model knows of members and clients, and what they say.

use platform::{Instant, IoAddr};
use proto::{
    AppManifest, BootReport, CutRule, FromClient, Incarnation, InputFile, JobId, Join, NodeId,
    PROTOCOL_VERSION, RnicOffer,
};
use std::collections::BTreeMap;
use verbs::{LinkKind, MacAddr, MemoryKey, PathMtu, RemoteKey};

/// A connection, from its beginning to its end.
#[derive(Debug)]
pub enum Peer {
    /// It has not said who it is.
    New,
    /// It has asked to join, and has the answer.
    Node(Box<Node>),
    /// A client.
    Client(Client),
}

/// A member.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub life: Incarnation,
    pub name: String,
    /// When it last sent a heartbeat, or joined.
    pub beat: Instant,
    /// The other members, as far as it was told.
    pub others: BTreeMap<NodeId, Incarnation>,
    /// Deaths of which it has not said that it has seen them.
    pub unseen: Vec<(NodeId, Incarnation)>,
    /// Its last job.
    pub job: Option<Part>,
    /// It says nothing any more.
    pub mute: bool,
    /// It was told to leave.
    pub leaves: bool,
}

/// A node's part of a job.
#[derive(Debug)]
pub struct Part {
    pub job: JobId,
    /// The rank is 0.
    pub first: bool,
    pub accepted: bool,
    /// The largest credit that the node has given, and the charges of what it got.
    pub credit: u64,
    pub got: u64,
    pub got_bytes: u64,
    pub input_ended: bool,
    pub cancelled: bool,
    /// The node has said that its part is over.
    pub over: bool,
    /// Bytes of output that it gave, and that are not acknowledged.
    pub output: usize,
    pub unacknowledged: usize,
}

/// A client, and its submission.
#[derive(Debug, Default)]
pub struct Client {
    pub submission: Option<Submission>,
    /// Whether it waits for nodes.
    pub waits: bool,
    /// Whether the manager has asked to be told no more.
    pub paused: bool,
    /// Bytes of output that were handed to the network and not told to the core.
    pub unsent: usize,
}

/// What a client has under way.
#[derive(Debug)]
pub struct Submission {
    pub job: Option<JobId>,
    /// Bytes of input that are left, and that were sent.
    pub left: u64,
    pub sent: u64,
}

/// Text that no terminal should see.
pub const RUDE: &str = "\u{1b}[2J\n[   0.000] node 1 (a) is gone\u{202e}";

/// The application that all have.
pub const APP: &str = "lines";

/// A join by the name of a letter; each third one wants to keep its id.
pub fn join(letter: u8) -> Join {
    Join {
        version: PROTOCOL_VERSION,
        name: char::from(b'a' + letter % 26).to_string(),
        keep_id: letter.is_multiple_of(3),
        rnic: RnicOffer {
            driver: "softroce".into(),
            links: vec![LinkKind::RoceV2],
            mac: MacAddr([2, 0, 0, 0, 0, letter]),
            gid: None,
            lid: 0,
            mtu: PathMtu::B1024,
            max_rd_atomic: 16,
            key: MemoryKey { rkey: RemoteKey(7), base: IoAddr(0), len: 64 << 20 },
            physical: true,
        },
        memory: 64 << 20,
        memory_free: 48 << 20,
        cpus: 1,
        apps: vec![AppManifest {
            name: APP.into(),
            about: "for tests".into(),
            cut: CutRule::after(|b| b == b'\n'),
        }],
        boot: BootReport { stages: vec![("entry".into(), 10)] },
    }
}

/// A submission on so many nodes, 0 for all.
pub fn submit(nodes: u16, on: Vec<String>, lens: &[u64], limit_ms: Option<u64>) -> FromClient {
    let inputs = lens.iter().map(|&len| InputFile { name: "f".into(), len }).collect();
    FromClient::Submit { app: APP.into(), args: vec![], nodes, on, inputs, limit_ms }
}
