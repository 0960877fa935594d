//! What the manager remembers over restarts, in a file of the embedded database redb.

use crate::core::{Record, Saved};
use proto::NodeId;
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs;
use std::path::{Path, PathBuf};

const NODES: TableDefinition<&str, u16> = TableDefinition::new("nodes");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
const NEXT_INCARNATION: &str = "next incarnation";
const NEXT_JOB: &str = "next job";

/// Why the state cannot be kept. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made.
    #[error("cannot make the state directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another manager has it.
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
        /// Why.
        source: Box<redb::Error>,
    },
}

/// The open database.
#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
}

impl Store {
    /// Opens the state in a directory, which is made if there is none, and reads it.
    pub fn open(directory: &Path) -> Result<(Self, Saved), StoreError> {
        fs::create_dir_all(directory)
            .map_err(|source| StoreError::Directory { path: directory.into(), source })?;
        let path = directory.join("manager.redb");
        let database = match Database::create(&path) {
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                return Err(StoreError::InUse { path: directory.into() });
            }
            other => {
                other.map_err(|e| StoreError::Database { path: path.clone(), source: Box::new(e.into()) })?
            }
        };
        let store = Self { database, path };
        let saved = store.read().map_err(|e| store.error(e))?;
        Ok((store, saved))
    }

    fn read(&self) -> Result<Saved, redb::Error> {
        // So that the tables are there.
        let write = self.database.begin_write()?;
        write.open_table(NODES)?;
        write.open_table(COUNTERS)?;
        write.commit()?;
        let read = self.database.begin_read()?;
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

    /// Remembers. Counters are on the disk when this returns. Which name has which id is not, until a counter is
    /// saved or the database closed: an id that goes to another name after a crash comes with a new incarnation.
    pub fn save(&self, record: &Record) -> Result<(), StoreError> {
        self.write(record).map_err(|e| self.error(e))
    }

    fn write(&self, record: &Record) -> Result<(), redb::Error> {
        let mut write = self.database.begin_write()?;
        if matches!(record, Record::Node(..) | Record::Forget(_)) {
            write.set_durability(Durability::None)?;
        }
        match record {
            Record::Node(name, node) => {
                write.open_table(NODES)?.insert(name.as_str(), node.0)?;
            }
            Record::Forget(name) => {
                write.open_table(NODES)?.remove(name.as_str())?;
            }
            Record::NextIncarnation(next) => {
                write.open_table(COUNTERS)?.insert(NEXT_INCARNATION, next)?;
            }
            Record::NextJob(next) => {
                write.open_table(COUNTERS)?.insert(NEXT_JOB, next)?;
            }
        }
        Ok(write.commit()?)
    }

    /// Puts everything on the disk.
    pub fn flush(&self) -> Result<(), StoreError> {
        let flushed = self.database.begin_write().map_err(redb::Error::from).and_then(|w| Ok(w.commit()?));
        flushed.map_err(|e| self.error(e))
    }

    fn error(&self, source: redb::Error) -> StoreError {
        StoreError::Database { path: self.path.clone(), source: Box::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_over_a_restart() {
        let directory = std::env::temp_dir().join(format!("ferrolite-store-{}", std::process::id()));
        let (store, saved) = Store::open(&directory).unwrap();
        assert_eq!(saved, Saved::default());
        for record in [
            Record::Node("a".into(), NodeId(1)),
            Record::Node("b".into(), NodeId(2)),
            Record::NextIncarnation(1025),
            Record::Forget("a".into()),
            Record::NextJob(7),
            Record::Node("c".into(), NodeId(1)),
        ] {
            store.save(&record).unwrap();
        }
        assert!(matches!(Store::open(&directory), Err(StoreError::InUse { .. })));
        store.flush().unwrap();
        drop(store);
        let (_, saved) = Store::open(&directory).unwrap();
        let nodes = vec![("b".into(), NodeId(2)), ("c".into(), NodeId(1))];
        assert_eq!(saved, Saved { nodes, next_incarnation: 1025, next_job: 7 });
        fs::remove_dir_all(&directory).unwrap();
    }
}
