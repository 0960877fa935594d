//! The state that the manager keeps across restarts, in a file of the embedded database redb.

use super::keeper::{Keep, SaveError};
use crate::core::{Record, Saved};
use proto::NodeId;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

const NODES: TableDefinition<&str, u16> = TableDefinition::new("nodes");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
const NEXT_INCARNATION: &str = "next incarnation";
const NEXT_JOB: &str = "next job";

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
        Database::create(&self.0)
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

fn read(database: &Database) -> Result<Saved, redb::Error> {
    // This transaction creates the tables.
    let write = database.begin_write()?;
    write.open_table(NODES)?;
    write.open_table(COUNTERS)?;
    write.commit()?;
    let read = database.begin_read()?;
    let mut saved = Saved::default();
    for entry in read.open_table(NODES)?.iter()? {
        let (name, node) = entry?;
        saved.nodes.push((name.value().into(), NodeId(node.value())));
    }
    let counters = read.open_table(COUNTERS)?;
    if let Some(next) = counters.get(NEXT_INCARNATION)? {
        saved.next_incarnation = next.value();
    }
    if let Some(next) = counters.get(NEXT_JOB)? {
        saved.next_job = next.value();
    }
    Ok(saved)
}

/// Writes records in one transaction, which is on the disk when this returns.
fn write(database: &Database, records: &[Record]) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut nodes = write.open_table(NODES)?;
        let mut counters = write.open_table(COUNTERS)?;
        for record in records {
            match record {
                Record::Node(name, node) => drop(nodes.insert(name.as_str(), node.0)?),
                Record::Forget(name) => drop(nodes.remove(name.as_str())?),
                Record::NextIncarnation(next) => drop(counters.insert(NEXT_INCARNATION, next)?),
                Record::NextJob(next) => drop(counters.insert(NEXT_JOB, next)?),
            }
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
        assert_eq!(saved, Saved { nodes, next_incarnation: 5000, next_job });
        fs::remove_dir_all(&directory).unwrap();
    }
}
