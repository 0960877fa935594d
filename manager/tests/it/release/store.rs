//! Entries of the state and backups, as a manager of a release has stored them.

use super::kinds::{digits, records, undigits};
use super::{differs, sample};
use manager::backup::Backup;
use manager::core::{Change, Entries, Record, Saved};
use proto::{Incarnation, NodeId, encode};
use std::fmt::Write;
use std::sync::Arc;

/// Returns the lines of this build.
pub(super) fn written() -> String {
    let mut lines = String::new();
    let mut all = vec![
        Record::Node("a".into(), NodeId(300)),
        Record::NextIncarnation(5_000_000_001),
        Record::NextJob(5_000_000_002),
        Record::Epoch(5_000_000_003),
        Record::Clock(5_000_000_004),
        Record::Left(NodeId(300), Incarnation(5_000_000_005)),
    ];
    for kind in records() {
        let name = kind.name;
        for (container, shape) in &kind.registry {
            let shape = serde_json::to_string(shape).unwrap();
            writeln!(lines, "shape {name} {container} {shape}").unwrap();
        }
        let samples = sample::samples(&kind.registry, name);
        all.extend(samples.iter().map(|(_, bytes)| (kind.record)(bytes).unwrap()));
    }
    let changes: Vec<_> = all.iter().flat_map(Record::changes).collect();
    let set = changes.iter().filter_map(|Change { key, value }| Some((key, value.as_ref()?)));
    for (key, value) in set.clone() {
        writeln!(lines, "entry {key} {}", digits(value)).unwrap();
    }
    let entries: Entries = set.map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_is_whole(Saved::of(&entries));
    let first: Entries = entries.into_iter().take(3).collect();
    let mut backup = Backup::received(&encode(&first)).unwrap();
    backup.key = Some("key".into());
    writeln!(lines, "backup {}", digits(&backup.to_bytes())).unwrap();
    lines
}

/// Returns what is wrong with a line of a release for this build.
pub(super) fn complaint(words: &[&str]) -> Option<&'static str> {
    match *words {
        ["entry", key, value] => {
            let value = undigits(value);
            let saved = Saved::of(&Entries::from([(key.to_owned(), value.clone())]));
            let changes = records_of(saved);
            let change = changes.iter().flat_map(Record::changes).find(|change| change.key == key);
            // A record may have grown at its end.
            let kept = change.and_then(|change| change.value).is_some_and(|now| now.starts_with(&value));
            (!kept).then_some("it is lost or changed when the manager starts")
        }
        ["backup", bytes] => {
            let bytes = undigits(bytes);
            let Ok(backup) = Backup::from_bytes(&bytes) else { return Some("the backup is refused") };
            // The first line has the version of the protocol, and a hash is at the end.
            let content = |bytes: &[u8]| {
                let first = bytes.iter().position(|byte| *byte == b'\n').unwrap();
                bytes[first..bytes.len() - 32].to_vec()
            };
            (content(&backup.to_bytes()) != content(&bytes)).then_some("the backup is written in another way")
        }
        _ => Some("nobody knows this line"),
    }
}

/// Returns what is wrong with the shape of a record.
pub(super) fn shape_complaint(kind: &str, container: &str, shape: &str) -> Option<&'static str> {
    let records = records();
    let Some(kind) = records.iter().find(|record| record.name == kind) else { return Some("it is gone") };
    let Some(today) = kind.registry.get(container) else { return Some("it is gone") };
    let golden = serde_json::from_str(shape).unwrap();
    differs(&golden, today, container == kind.name).then_some("its form has changed")
}

/// Fails if a part of the state is missing. A new part makes this fail to compile.
fn assert_is_whole(saved: Saved) {
    let Saved {
        nodes,
        next_incarnation,
        next_job,
        epoch,
        clock,
        secret,
        members,
        departures,
        names,
        jobs,
        datasets,
        withdrawn,
        images,
        rollout,
        users,
        audit,
        history,
        spool: _,
    } = saved;
    for counter in [next_incarnation, next_job, epoch, clock] {
        assert!(counter > 5_000_000_000);
    }
    assert!(secret.is_some() && rollout.is_some());
    let lengths = [
        nodes.len(),
        members.len(),
        departures.len(),
        names.len(),
        jobs.len(),
        datasets.len(),
        withdrawn.len(),
        images.len(),
        users.len(),
        audit.len(),
        history.len(),
    ];
    assert!(!lengths.contains(&0), "{lengths:?}");
}

/// Returns records that have the same effect as a state.
fn records_of(saved: Saved) -> Vec<Record> {
    let mut records = vec![
        Record::NextIncarnation(saved.next_incarnation),
        Record::NextJob(saved.next_job),
        Record::Epoch(saved.epoch),
        Record::Clock(saved.clock),
    ];
    records.extend(saved.secret.map(Record::Secret));
    records.extend(saved.nodes.into_iter().map(|(name, node)| Record::Node(name, node)));
    records.extend(saved.departures.into_iter().map(|(node, incarnation)| Record::Left(node, incarnation)));
    records.extend(saved.members.into_iter().map(|member| Record::Member(Box::new(member))));
    records.extend(saved.names.into_iter().map(Record::Name));
    records.extend(saved.jobs.into_iter().map(|job| Record::Job(Arc::new(job))));
    records.extend(saved.datasets.into_iter().map(Record::Dataset));
    records.extend(saved.withdrawn.into_iter().map(Record::Withdrawn));
    records.extend(saved.images.into_iter().map(Record::Image));
    records.extend(saved.rollout.map(|status| Record::Rollout(Box::new(status))));
    records.extend(saved.users.into_iter().map(Record::User));
    records.extend(saved.audit.into_iter().map(Record::Audit));
    records.extend(saved.history.into_iter().map(|ended| Record::Ended(Arc::new(ended))));
    records
}
