//! The state as entries: keys with values, which every store can keep. A new kind of record has one line in
//! [`Record::changes`] and one in [`Saved::of`].

use super::{EndedRecord, JobRecord, KeptImage, Record, Saved};
use crate::access::digits;
use proto::{ImageInfo, Incarnation, JobId, NodeId, encode};
use serde::de::DeserializeOwned;
use serde_bytes::{ByteBuf, Bytes};
use std::collections::BTreeMap;

/// All entries of a store. A key is the name of a table, a slash, and the key in that table, which is padded
/// with zeros if it is a number.
pub type Entries = BTreeMap<String, Vec<u8>>;

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None` removes the entry.
    pub value: Option<Vec<u8>>,
}

const NEXT_INCARNATION: &str = "counter/next-incarnation";
const NEXT_JOB: &str = "counter/next-job";
const EPOCH: &str = "counter/epoch";
const CLOCK: &str = "counter/clock";
const VOUCHING: &str = "secret/vouching";
const ROLLOUT: &str = "rollout/last";

fn set(key: impl Into<String>, value: Vec<u8>) -> Vec<Change> {
    vec![Change { key: key.into(), value: Some(value) }]
}

fn unset(key: String) -> Vec<Change> {
    vec![Change { key, value: None }]
}

fn member(node: NodeId) -> String {
    format!("member/{:05}", node.0)
}

fn departure(incarnation: Incarnation) -> String {
    format!("departure/{:020}", incarnation.0)
}

fn ended_key(job: JobId) -> String {
    format!("ended/{:020}", job.0)
}

fn image_key(sha256: &[u8; 32]) -> String {
    format!("image/{}", digits(sha256))
}

fn audit(number: u64) -> String {
    format!("audit/{number:020}")
}

impl Record {
    /// Returns the changes that the record makes.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        match self {
            Self::Node(name, node) => set(format!("node/{name}"), encode(node)),
            Self::Forget(name) => unset(format!("node/{name}")),
            Self::NextIncarnation(next) => set(NEXT_INCARNATION, encode(next)),
            Self::NextJob(next) => set(NEXT_JOB, encode(next)),
            Self::Epoch(epoch) => set(EPOCH, encode(epoch)),
            Self::Clock(time) => set(CLOCK, encode(time)),
            Self::Secret(secret) => set(VOUCHING, encode(secret)),
            Self::Member(record) => set(member(record.node), encode(record)),
            Self::Left(node, incarnation) => {
                [unset(member(*node)), set(departure(*incarnation), encode(node))].concat()
            }
            Self::Settled(_, incarnation) => unset(departure(*incarnation)),
            Self::Name(name) => set(format!("name/{}", name.name), encode(name)),
            Self::Unname(name) => unset(format!("name/{name}")),
            Self::Job(job) => set(format!("job/{:020}", job.job.0), encode(&**job)),
            Self::JobGone(job) => unset(format!("job/{:020}", job.0)),
            Self::Dataset(dataset) => set(format!("dataset/{}", dataset.name), encode(dataset)),
            Self::DatasetGone(name) => unset(format!("dataset/{name}")),
            Self::Ended(ended) => set(ended_key(ended.job), encode(&**ended)),
            Self::EndedGone(job) => unset(ended_key(*job)),
            Self::Withdrawn(node) => set(format!("withdrawn/{}", node.name), encode(node)),
            Self::InService(name) => unset(format!("withdrawn/{name}")),
            Self::Image(KeptImage { info, bytes }) => {
                set(image_key(&info.sha256), encode(&(info, Bytes::new(bytes))))
            }
            Self::ImageGone(sha256) => unset(image_key(sha256)),
            Self::Rollout(status) => set(ROLLOUT, encode(&**status)),
            Self::User(user) => set(format!("user/{}", user.name), encode(user)),
            Self::UserGone(name) => unset(format!("user/{name}")),
            Self::Audit(entry) => set(audit(entry.number), encode(entry)),
            Self::AuditGone(number) => unset(audit(*number)),
        }
    }
}

impl Saved {
    /// Returns the state of entries. Entries that this version cannot read are ignored: the nodes and jobs of
    /// another version speak another version of the protocol as well.
    #[must_use]
    pub fn of(entries: &Entries) -> Self {
        let mut saved = Self::default();
        for (key, value) in entries {
            saved.read(key, value);
        }
        saved
    }

    fn read(&mut self, key: &str, value: &[u8]) -> Option<()> {
        let (table, rest) = key.split_once('/')?;
        match (table, key) {
            (_, NEXT_INCARNATION) => self.next_incarnation = decode(value)?,
            (_, NEXT_JOB) => self.next_job = decode(value)?,
            (_, EPOCH) => self.epoch = decode(value)?,
            (_, CLOCK) => self.clock = decode(value)?,
            (_, VOUCHING) => self.secret = Some(decode(value)?),
            ("node", _) => self.nodes.push((rest.into(), decode(value)?)),
            ("member", _) => self.members.push(decode(value)?),
            ("departure", _) => self.departures.push((decode(value)?, Incarnation(rest.parse().ok()?))),
            ("name", _) => self.names.push(decode(value)?),
            ("job", _) => self.jobs.push(JobRecord::decode(value)?),
            ("dataset", _) => self.datasets.push(decode(value)?),
            ("ended", _) => self.history.push(EndedRecord::decode(value)?),
            ("withdrawn", _) => self.withdrawn.push(decode(value)?),
            ("image", _) => {
                let (info, bytes) = decode::<(ImageInfo, ByteBuf)>(value)?;
                self.images.push(KeptImage { info, bytes: bytes.into_vec().into() });
            }
            (_, ROLLOUT) => self.rollout = Some(decode(value)?),
            ("user", _) => self.users.push(decode(value)?),
            ("audit", _) => self.audit.push(decode(value)?),
            _ => return None,
        }
        Some(())
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    proto::decode(bytes).ok()
}
