//! The tables of the release before 0.2, in which each kind of record had a table of its own. A manager that
//! finds them moves their contents to the one table of today.

use crate::core::{Change, DatasetRecord, JobRecord, MemberRecord, NameRecord, Record, Saved};
use proto::{Incarnation, NodeId};
use redb::{ReadTransaction, ReadableTable, TableDefinition, TableHandle, WriteTransaction};
use serde::de::DeserializeOwned;
use std::sync::Arc;

const NODES: TableDefinition<&str, u16> = TableDefinition::new("nodes");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
const MEMBERS: TableDefinition<u16, &[u8]> = TableDefinition::new("members");
const DEPARTURES: TableDefinition<u64, u16> = TableDefinition::new("departures");
const NAMES: TableDefinition<&str, &[u8]> = TableDefinition::new("names");
const JOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("jobs");
const DATASETS: TableDefinition<&str, &[u8]> = TableDefinition::new("datasets");
const SECRETS: TableDefinition<&str, &[u8]> = TableDefinition::new("secrets");
const NEXT_INCARNATION: &str = "next incarnation";
const NEXT_JOB: &str = "next job";
const EPOCH: &str = "epoch";
const CLOCK: &str = "clock";
const VOUCHING: &str = "vouching";

/// The names of all these tables.
const ALL: [&str; 8] = ["nodes", "counters", "members", "departures", "names", "jobs", "datasets", "secrets"];

/// Returns the entries of today for the contents of the former tables; none if there are no such tables.
pub(super) fn entries(read: &ReadTransaction) -> Result<Vec<Change>, redb::Error> {
    // The former manager has always made all tables at once.
    if !read.list_tables()?.any(|table| table.name() == "counters") {
        return Ok(Vec::new());
    }
    Ok(records(saved(read)?).iter().flat_map(Record::changes).collect())
}

/// Removes the former tables.
pub(super) fn remove(write: &WriteTransaction) -> Result<(), redb::Error> {
    let former: Vec<_> = write.list_tables()?.filter(|table| ALL.contains(&table.name())).collect();
    for table in former {
        write.delete_table(table)?;
    }
    Ok(())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    proto::decode(bytes).ok()
}

fn saved(read: &ReadTransaction) -> Result<Saved, redb::Error> {
    let mut saved = Saved::default();
    for entry in read.open_table(NODES)?.iter()? {
        let (name, node) = entry?;
        saved.nodes.push((name.value().into(), NodeId(node.value())));
    }
    let counters = read.open_table(COUNTERS)?;
    let counter = |name| Ok::<_, redb::Error>(counters.get(name)?.map(|value| value.value()));
    saved.next_incarnation = counter(NEXT_INCARNATION)?.unwrap_or(saved.next_incarnation);
    saved.next_job = counter(NEXT_JOB)?.unwrap_or(saved.next_job);
    saved.epoch = counter(EPOCH)?.unwrap_or(saved.epoch);
    saved.clock = counter(CLOCK)?.unwrap_or(saved.clock);
    saved.secret = read.open_table(SECRETS)?.get(VOUCHING)?.and_then(|secret| decode(secret.value()));
    for entry in read.open_table(MEMBERS)?.iter()? {
        saved.members.extend(decode::<MemberRecord>(entry?.1.value()));
    }
    for entry in read.open_table(DEPARTURES)?.iter()? {
        let (incarnation, node) = entry?;
        saved.departures.push((NodeId(node.value()), Incarnation(incarnation.value())));
    }
    for entry in read.open_table(NAMES)?.iter()? {
        saved.names.extend(decode::<NameRecord>(entry?.1.value()));
    }
    for entry in read.open_table(JOBS)?.iter()? {
        saved.jobs.extend(JobRecord::decode(entry?.1.value()));
    }
    for entry in read.open_table(DATASETS)?.iter()? {
        saved.datasets.extend(decode::<DatasetRecord>(entry?.1.value()));
    }
    Ok(saved)
}

/// Returns records that have the same effect as a state.
fn records(saved: Saved) -> Vec<Record> {
    let mut records = vec![
        Record::NextIncarnation(saved.next_incarnation),
        Record::NextJob(saved.next_job),
        Record::Epoch(saved.epoch),
        Record::Clock(saved.clock),
    ];
    records.extend(saved.secret.map(Record::Secret));
    records.extend(saved.nodes.into_iter().map(|(name, node)| Record::Node(name, node)));
    records.extend(saved.departures.into_iter().map(|(node, incarnation)| Record::Left(node, incarnation)));
    // A member may have the id of an incarnation that has ended.
    records.extend(saved.members.into_iter().map(|member| Record::Member(Box::new(member))));
    records.extend(saved.names.into_iter().map(Record::Name));
    records.extend(saved.jobs.into_iter().map(|job| Record::Job(Arc::new(job))));
    records.extend(saved.datasets.into_iter().map(Record::Dataset));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Store;
    use redb::ReadableDatabase;

    #[test]
    fn the_state_of_the_former_release_is_read_and_moved() {
        let directory = std::env::temp_dir().join(format!("ferrolite-former-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("manager.redb");
        let database = redb::Database::create(&file).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(NODES).unwrap().insert("a", 7).unwrap();
        let mut counters = write.open_table(COUNTERS).unwrap();
        for (name, value) in [(NEXT_INCARNATION, 50), (NEXT_JOB, 60), (EPOCH, 3), (CLOCK, 9)] {
            counters.insert(name, value).unwrap();
        }
        drop(counters);
        write.open_table(DEPARTURES).unwrap().insert(49, 7).unwrap();
        write.open_table(SECRETS).unwrap();
        write.open_table(MEMBERS).unwrap();
        write.open_table(NAMES).unwrap();
        write.open_table(JOBS).unwrap();
        write.open_table(DATASETS).unwrap();
        write.commit().unwrap();
        drop(database);
        for start in 0..2 {
            let (store, saved) = Store::open(&directory).unwrap();
            assert_eq!(saved.nodes, [("a".into(), NodeId(7))]);
            assert_eq!(saved.departures, [(NodeId(7), Incarnation(49))]);
            assert_eq!((saved.next_incarnation, saved.epoch), (50 + start * Saved::RESERVED, 3 + start));
            drop(store);
        }
        let database = redb::Database::create(&file).unwrap();
        assert_eq!(database.begin_read().unwrap().list_tables().unwrap().count(), 1);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
