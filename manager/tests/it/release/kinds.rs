//! The types of messages and records, with their shapes.

use manager::backup::Backup;
use manager::core::{
    DatasetRecord, EndedRecord, JobRecord, KeptImage, MemberRecord, NameRecord, Record, Stage, Wanted,
    Withdrawn, WithdrawnRecord,
};
use proto::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_reflection::{ContainerFormat, Registry, Tracer, TracerConfig};
use std::sync::Arc;
use verbs::{LinkKind, PathMtu};

/// A type whose bytes leave the program as a message.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The shape of the type and of all types in it.
    pub(super) registry: Registry,
    /// Reads bytes and writes the value again.
    pub(super) again: fn(&[u8]) -> Option<Vec<u8>>,
    /// Returns the first version of the protocol that has the message, if the type tells it.
    pub(super) since: fn(&[u8]) -> Option<u16>,
}

impl Kind {
    /// Returns true if the peers agree on the version of the messages, and get no other ones. A client's new
    /// request is one that an older manager refuses, and only such a request has a new answer.
    pub(super) fn is_of_nodes(&self) -> bool {
        ["Hello", "ToManager", "ToNode"].contains(&self.name)
    }

    /// Returns the name of a message's variant.
    pub(super) fn variant(&self, bytes: &[u8]) -> &str {
        match &self.registry[self.name] {
            ContainerFormat::Enum(variants) => &variants[&u32::from(bytes[0])].name,
            _ => "-",
        }
    }
}

/// Returns the shape of a type and of all types in it. The enumerations in it must be given too: `registry`
/// fails if one is missing.
macro_rules! registry {
    ($name:ty; $($inner:ty),*) => {{
        let mut tracer = Tracer::new(TracerConfig::default());
        tracer.trace_simple_type::<$name>().unwrap();
        $(tracer.trace_simple_type::<$inner>().unwrap();)*
        tracer.registry().unwrap()
    }};
}

fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    decode::<T>(bytes).ok().map(|value| encode(&value))
}

macro_rules! message {
    ($name:ident; $($inner:ty),*; $since:expr) => {
        Kind {
            name: stringify!($name),
            registry: registry!($name; $($inner),*),
            again: again::<$name>,
            since: $since,
        }
    };
}

/// Returns all messages.
pub(super) fn messages() -> Vec<Kind> {
    vec![
        message!(Hello; LinkKind, PathMtu, CutRule; |_| None),
        message!(ToManager; JobStanding, Result<(), Reason>; |bytes| {
            decode::<ToManager>(bytes).ok().map(|message| message.since())
        }),
        message!(ToNode; LinkKind, PathMtu, NameError, PowerAction, Result<(NodeId, Vec<u8>), NameError>, RdmaPriority; |bytes| {
            decode::<ToNode>(bytes).ok().map(|message| message.since())
        }),
        message!(FromClient; PowerAction, PowerVerb, UserRole, RdmaPriority; |_| None),
        message!(
            ToClient;
            CutRule, NodeState, JobPhase, Refusal, NodeStanding, NodeStep, RolloutState, UserRole, JobEnd, JobState,
            Presence, RdmaPriority;
            |_| None
        ),
        message!(Backup; ; |_| None),
    ]
}

/// A type of records in the manager's store.
pub(super) struct RecordKind {
    pub(super) name: &'static str,
    pub(super) registry: Registry,
    /// Returns the record of the bytes of a value.
    pub(super) record: fn(&[u8]) -> Option<Record>,
}

macro_rules! record {
    ($name:ident; $($inner:ty),*; $record:expr) => {
        RecordKind { name: stringify!($name), registry: registry!($name; $($inner),*), record: $record }
    };
}

/// Returns all records that are structures.
pub(super) fn records() -> Vec<RecordKind> {
    vec![
        record!(MemberRecord; LinkKind, PathMtu, CutRule; |b| {
            Some(Record::Member(Box::new(decode::<MemberRecord>(b).ok()?)))
        }),
        record!(NameRecord; ; |b| Some(Record::Name(decode(b).ok()?))),
        record!(JobRecord; Wanted, Stage, RdmaPriority; |b| Some(Record::Job(Arc::new(JobRecord::decode(b)?)))),
        record!(DatasetRecord; ; |b| Some(Record::Dataset(decode(b).ok()?))),
        record!(EndedRecord; JobEnd, RdmaPriority; |b| Some(Record::Ended(Arc::new(EndedRecord::decode(b)?)))),
        record!(WithdrawnRecord; Withdrawn; |b| Some(Record::Withdrawn(decode(b).ok()?))),
        record!(ImageInfo; ; |b| {
            Some(Record::Image(KeptImage { info: decode(b).ok()?, bytes: Arc::new([7, 200]) }))
        }),
        record!(RolloutStatus; NodeStep, RolloutState; |b| Some(Record::Rollout(Box::new(decode(b).ok()?)))),
        record!(UserStatus; UserRole; |b| Some(Record::User(decode(b).ok()?))),
        record!(AuditEntry; ; |b| Some(Record::Audit(decode(b).ok()?))),
        record!(VouchingSecret; ; |b| Some(Record::Secret(decode(b).ok()?))),
    ]
}

pub(super) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn undigits(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
