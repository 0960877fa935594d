//! The state that the manager keeps across restarts, in a file of the embedded database redb.

use super::keeper::{Keep, SaveError};
use crate::core::{DatasetRecord, EndedRecord, JobRecord, MemberRecord, NameRecord, Record, Saved};
use proto::{Incarnation, NodeId};
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NODES: TableDefinition<&str, u16> = TableDefinition::new("nodes");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
/// The members by id, the ended incarnations that are not settled (with their nodes), the names, the jobs by
/// their present numbers, the datasets, and the jobs that have ended by their first numbers. The values are encoded records.
const MEMBERS: TableDefinition<u16, &[u8]> = TableDefinition::new("members");
const DEPARTURES: TableDefinition<u64, u16> = TableDefinition::new("departures");
const NAMES: TableDefinition<&str, &[u8]> = TableDefinition::new("names");
const JOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("jobs");
const DATASETS: TableDefinition<&str, &[u8]> = TableDefinition::new("datasets");
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
const SECRETS: TableDefinition<&str, &[u8]> = TableDefinition::new("secrets");
const NEXT_INCARNATION: &str = "next incarnation";
const NEXT_JOB: &str = "next job";
const EPOCH: &str = "epoch";
const CLOCK: &str = "clock";
const VOUCHING: &str = "vouching";

/// The reason why the state cannot be kept. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made.
    #[error("cannot make the state directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another manager uses the directory.
    #[error("the state directory {} is in use by another manager", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("cannot use the state in {}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The error of the database.
        source: Box<redb::Error>,
    },
}

/// The medium of the database.
pub trait Medium: Debug + Send + 'static {
    /// Returns the path, for people.
    fn path(&self) -> &Path;

    /// Opens the database. Creates it if there is none.
    ///
    /// # Errors
    /// Fails if the database cannot be opened or created.
    fn database(&self) -> Result<Database, DatabaseError>;
}

/// A file of the operating system.
#[derive(Debug)]
pub struct File(PathBuf);

impl Medium for File {
    fn path(&self) -> &Path {
        &self.0
    }

    fn database(&self) -> Result<Database, DatabaseError> {
        // The file holds the secret of the memberships.
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Database::builder().create_file(options.open(&self.0).map_err(redb::StorageError::from)?)
    }
}

/// The database of the manager's state.
#[derive(Debug)]
pub struct Store<M = File> {
    /// The open database; `None` after a failure of the disk, because redb accepts nothing more until the
    /// file is opened again.
    database: Option<Database>,
    medium: M,
}

impl Store {
    /// Opens the state in a directory as [`open_on`](Self::open_on) does. Creates the directory if there is
    /// none.
    pub fn open(directory: &Path) -> Result<(Self, Saved), StoreError> {
        fs::create_dir_all(directory)
            .map_err(|source| StoreError::Directory { path: directory.into(), source })?;
        Self::open_on(File(directory.join("manager.redb")))
    }
}

impl<M: Medium> Store<M> {
    /// Opens the state on `medium` and reads it. The numbers that [`Saved`] allows are reserved on the disk
    /// when this returns.
    pub fn open_on(medium: M) -> Result<(Self, Saved), StoreError> {
        let database = open(&medium)?;
        let saved = read(&database).map_err(|error| failed(&medium, error))?;
        write(&database, &saved.reservation()).map_err(|error| failed(&medium, error))?;
        Ok((Self { database: Some(database), medium }, saved))
    }
}

impl<M: Medium> Keep for Store<M> {
    fn keep(&mut self, records: &[Record]) -> Result<(), SaveError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.medium)?,
        };
        write(&database, records).map_err(|error| failed(&self.medium, error))?;
        self.database = Some(database);
        Ok(())
    }
}

fn failed(medium: &impl Medium, error: redb::Error) -> StoreError {
    StoreError::Database { path: medium.path().into(), source: Box::new(error) }
}

fn open(medium: &impl Medium) -> Result<Database, StoreError> {
    medium.database().map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => {
            StoreError::InUse { path: medium.path().parent().unwrap_or(medium.path()).into() }
        }
        other => failed(medium, other.into()),
    })
}

/// Returns the records of a table that this version can read. A state of another version has none: its nodes
/// speak another version of the protocol as well.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    proto::decode(bytes).ok()
}

fn read(database: &Database) -> Result<Saved, redb::Error> {
    // This transaction creates the tables.
    let write = database.begin_write()?;
    Tables::open(&write)?;
    write.commit()?;
    let read = database.begin_read()?;
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
    for entry in read.open_table(HISTORY)?.iter()? {
        saved.history.extend(decode::<EndedRecord>(entry?.1.value()));
    }
    Ok(saved)
}

/// All tables of a transaction.
struct Tables<'a> {
    nodes: Table<'a, &'static str, u16>,
    counters: Table<'a, &'static str, u64>,
    secrets: Table<'a, &'static str, &'static [u8]>,
    members: Table<'a, u16, &'static [u8]>,
    departures: Table<'a, u64, u16>,
    names: Table<'a, &'static str, &'static [u8]>,
    jobs: Table<'a, u64, &'static [u8]>,
    datasets: Table<'a, &'static str, &'static [u8]>,
    history: Table<'a, u64, &'static [u8]>,
}

impl<'a> Tables<'a> {
    fn open(write: &'a WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            nodes: write.open_table(NODES)?,
            counters: write.open_table(COUNTERS)?,
            secrets: write.open_table(SECRETS)?,
            members: write.open_table(MEMBERS)?,
            departures: write.open_table(DEPARTURES)?,
            names: write.open_table(NAMES)?,
            jobs: write.open_table(JOBS)?,
            datasets: write.open_table(DATASETS)?,
            history: write.open_table(HISTORY)?,
        })
    }

    fn apply(&mut self, record: &Record) -> Result<(), redb::Error> {
        match record {
            Record::Node(name, node) => drop(self.nodes.insert(name.as_str(), node.0)?),
            Record::Forget(name) => drop(self.nodes.remove(name.as_str())?),
            Record::NextIncarnation(next) => drop(self.counters.insert(NEXT_INCARNATION, next)?),
            Record::NextJob(next) => drop(self.counters.insert(NEXT_JOB, next)?),
            Record::Epoch(epoch) => drop(self.counters.insert(EPOCH, epoch)?),
            Record::Clock(time) => drop(self.counters.insert(CLOCK, time)?),
            Record::Secret(secret) => drop(self.secrets.insert(VOUCHING, &*proto::encode(secret))?),
            Record::Member(member) => drop(self.members.insert(member.node.0, &*proto::encode(member))?),
            Record::Left(node, incarnation) => {
                self.members.remove(node.0)?;
                self.departures.insert(incarnation.0, node.0)?;
            }
            Record::Settled(_, incarnation) => drop(self.departures.remove(incarnation.0)?),
            Record::Name(name) => drop(self.names.insert(name.name.as_str(), &*proto::encode(name))?),
            Record::Unname(name) => drop(self.names.remove(name.as_str())?),
            Record::Job(job) => drop(self.jobs.insert(job.job.0, &*proto::encode(&**job))?),
            Record::JobGone(job) => drop(self.jobs.remove(job.0)?),
            Record::Dataset(dataset) => {
                self.datasets.insert(dataset.name.as_str(), &*proto::encode(dataset))?;
            }
            Record::DatasetGone(name) => drop(self.datasets.remove(name.as_str())?),
            Record::Ended(job) => drop(self.history.insert(job.job.0, &*proto::encode(&**job))?),
            Record::EndedGone(job) => drop(self.history.remove(job.0)?),
        }
        Ok(())
    }
}

/// Writes records in one transaction, which is on the disk when this returns.
fn write(database: &Database, records: &[Record]) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut tables = Tables::open(&write)?;
        for record in records {
            tables.apply(record)?;
        }
    }
    Ok(write.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_over_a_restart() {
        let directory = std::env::temp_dir().join(format!("ferrolite-store-{}", std::process::id()));
        let (mut store, saved) = Store::open(&directory).unwrap();
        assert_eq!(saved, Saved::default());
        let records = [
            Record::Node("a".into(), NodeId(1)),
            Record::Node("b".into(), NodeId(2)),
            Record::NextIncarnation(5000),
            Record::Forget("a".into()),
            Record::Node("c".into(), NodeId(1)),
        ];
        store.keep(&records).unwrap();
        assert!(matches!(Store::open(&directory), Err(StoreError::InUse { .. })));
        drop(store);
        let (_, saved) = Store::open(&directory).unwrap();
        let nodes = vec![("b".into(), NodeId(2)), ("c".into(), NodeId(1))];
        // The job numbers of the first manager were reserved and may have been used.
        let next_job = 1 + Saved::RESERVED;
        let (epoch, clock) = (1, u64::try_from(Saved::CLOCK.as_nanos()).unwrap());
        assert_eq!(
            saved,
            Saved { nodes, next_incarnation: 5000, next_job, epoch, clock, ..Saved::default() }
        );
        fs::remove_dir_all(&directory).unwrap();
    }
}
