//! The model's knowledge of members and clients, and their messages.

use platform::IoAddr;
use proto::{
    AppManifest, BootReport, CutRule, FromClient, Incarnation, InputFile, JobId, JobRequest, Join, NodeId,
    PROTOCOL_VERSION, RnicOffer,
};
use std::collections::BTreeMap;
use std::time::Duration;
use verbs::{LinkKind, MacAddr, MemoryKey, PathMtu, RemoteKey};

/// A connection, from its start to its end.
#[derive(Debug)]
pub(crate) enum Peer {
    /// A peer that has not identified itself.
    New,
    /// A peer that has asked to join and has been granted it.
    Node(Box<Node>),
    /// A client.
    Client(Client),
}

/// A member.
#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    pub incarnation: Incarnation,
    pub name: String,
    /// The version of the protocol that the node speaks.
    pub version: u16,
    /// The time in which the manager had been able to hear when the node sent its last heartbeat or joined.
    pub beat: Duration,
    /// The other members of which the manager has told this node.
    pub others: BTreeMap<NodeId, Incarnation>,
    /// Departures that the node has not acknowledged.
    pub unseen: Vec<(NodeId, Incarnation)>,
    /// The job of which the node was told last.
    pub job: Option<Part>,
    /// True if the node no longer sends anything.
    pub mute: bool,
    /// True if it was told to leave.
    pub leaves: bool,
    /// The bytes of an image that it was sent, if it waits for one.
    pub image: Option<u64>,
}

/// A node's part of a job.
#[derive(Debug)]
pub(crate) struct Part {
    pub job: JobId,
    /// True for the node with rank 0.
    pub first: bool,
    pub accepted: bool,
    /// The largest credit that the node has granted, and the charges and bytes of the input it received.
    pub credit: u64,
    pub got: u64,
    pub got_bytes: u64,
    pub input_ended: bool,
    pub cancelled: bool,
    /// True after the node has reported the end of its part.
    pub over: bool,
    /// The bytes of output that the node has sent, and the part of them that was not acknowledged.
    pub output: usize,
    pub unacknowledged: usize,
}

/// A client and its submission.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub submission: Option<Submission>,
    /// True while it waits for nodes.
    pub waits: bool,
    /// True while the manager has asked for no further events.
    pub paused: bool,
    /// The number of bytes of output that the client has.
    pub taken: u64,
}

/// A submission in progress.
#[derive(Debug)]
pub(crate) struct Submission {
    pub job: Option<JobId>,
    /// True if the input goes to the spool.
    pub spools: bool,
    /// True if the client was told that the job waits.
    pub queued: bool,
    /// The length of the input in bytes.
    pub total: u64,
    /// The bytes of input that are left, and that were sent.
    pub left: u64,
    pub sent: u64,
}

impl Submission {
    /// Returns a submission with `total` bytes of input.
    pub(crate) const fn new(total: u64) -> Self {
        Self { job: None, spools: false, queued: false, total, left: total, sent: 0 }
    }
}

/// Text that must not reach a terminal.
pub(crate) const RUDE: &str = "\u{1b}[2J\n[   0.000] node 1 (a) is gone\u{202e}";

/// The application that all nodes have.
pub(crate) const APP: &str = "lines";

/// Returns a join with the name of a letter. Every third one asks to keep its id.
pub(crate) fn join(letter: u8) -> Join {
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
        boot_id: 0,
        boot: BootReport { stages: vec![("entry".into(), 10)] },
    }
}

/// Returns a submission on `nodes` nodes; 0 means all.
pub(crate) fn submit(nodes: u16, on: Vec<String>, lens: &[u64], limit_ms: Option<u64>) -> FromClient {
    let inputs = lens.iter().map(|&len| InputFile { name: "f".into(), len }).collect();
    let app = APP.into();
    FromClient::Submit(JobRequest { app, nodes, on, inputs, limit_ms, ..JobRequest::default() })
}
