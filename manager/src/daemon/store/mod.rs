//! The state that the manager keeps across restarts, in a file of the embedded database redb.

mod former;

use super::keeper::{Keep, SaveError};
use crate::core::{Change, Entries, Record, Saved};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// All state, as entries ([`Change`]).
const ENTRIES: TableDefinition<&str, &[u8]> = TableDefinition::new("entries");

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
    /// There is no state to read.
    #[error("there is no state in {}: {source}", path.display())]
    NoState {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// There is a state, which may not be replaced.
    #[error("{} has a state: --force replaces it", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
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

/// Reads the state in a directory, and uses no number of it. There must be a state.
pub(crate) fn read_directory(directory: &Path) -> Result<Entries, StoreError> {
    let medium = file_in(directory);
    fs::metadata(&medium.0).map_err(|source| StoreError::NoState { path: medium.0.clone(), source })?;
    let database = open(&medium)?;
    read(&database).map_err(|error| failed(&medium, error))
}

/// Replaces the state in a directory, in one step. Refuses if there is a state and `force` is not set.
pub(crate) fn replace_directory(directory: &Path, entries: &Entries, force: bool) -> Result<(), StoreError> {
    let medium = make_directory(directory)?;
    let database = open(&medium)?;
    let replaced = || -> Result<bool, redb::Error> {
        if !force && !read(&database)?.is_empty() {
            return Ok(false);
        }
        let write = database.begin_write()?;
        former::remove(&write)?;
        write.delete_table(ENTRIES)?;
        let all = entries.iter().map(|(key, value)| Change { key: key.clone(), value: Some(value.clone()) });
        apply(&write, &all.collect::<Vec<_>>())?;
        write.commit()?;
        Ok(true)
    };
    if replaced().map_err(|error| failed(&medium, error))? {
        Ok(())
    } else {
        Err(StoreError::NotEmpty { path: directory.into() })
    }
}

fn file_in(directory: &Path) -> File {
    File(directory.join("manager.redb"))
}

fn make_directory(directory: &Path) -> Result<File, StoreError> {
    fs::create_dir_all(directory)
        .map_err(|source| StoreError::Directory { path: directory.into(), source })?;
    Ok(file_in(directory))
}

impl Store {
    /// Opens the state in a directory as [`open_on`](Self::open_on) does. Creates the directory if there is
    /// none.
    pub fn open(directory: &Path) -> Result<(Self, Saved), StoreError> {
        Self::open_on(make_directory(directory)?)
    }
}

impl<M: Medium> Store<M> {
    /// Opens the state on `medium` and reads it. The numbers that [`Saved`] allows are reserved on the disk
    /// when this returns.
    pub fn open_on(medium: M) -> Result<(Self, Saved), StoreError> {
        let database = open(&medium)?;
        let saved = Saved::of(&read(&database).map_err(|error| failed(&medium, error))?);
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

    fn entries(&mut self) -> Result<Entries, SaveError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.medium)?,
        };
        let entries = read(&database).map_err(|error| failed(&self.medium, error))?;
        self.database = Some(database);
        Ok(entries)
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

/// Reads all entries, after those of a former release have been moved.
fn read(database: &Database) -> Result<Entries, redb::Error> {
    let former = former::entries(&database.begin_read()?)?;
    let write = database.begin_write()?;
    // This creates the table.
    apply(&write, &former)?;
    former::remove(&write)?;
    write.commit()?;
    let read = database.begin_read()?;
    let mut entries = Entries::new();
    for entry in read.open_table(ENTRIES)?.iter()? {
        let (key, value) = entry?;
        entries.insert(key.value().into(), value.value().into());
    }
    Ok(entries)
}

fn apply(write: &WriteTransaction, changes: &[Change]) -> Result<(), redb::Error> {
    let mut entries = write.open_table(ENTRIES)?;
    for Change { key, value } in changes {
        match value {
            Some(value) => drop(entries.insert(key.as_str(), value.as_slice())?),
            None => drop(entries.remove(key.as_str())?),
        }
    }
    Ok(())
}

/// Writes records in one transaction, which is on the disk when this returns.
fn write(database: &Database, records: &[Record]) -> Result<(), redb::Error> {
    let changes: Vec<Change> = records.iter().flat_map(Record::changes).collect();
    let write = database.begin_write()?;
    apply(&write, &changes)?;
    Ok(write.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{NodeId, VouchingSecret};

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
            Record::Secret(VouchingSecret::from_bytes([7; 32])),
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
        let secret = Some(VouchingSecret::from_bytes([7; 32]));
        assert_eq!(
            saved,
            Saved { nodes, next_incarnation: 5000, next_job, epoch, clock, secret, ..Saved::default() }
        );
        fs::remove_dir_all(&directory).unwrap();
    }
}
