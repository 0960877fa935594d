//! The directory of a log: the words that all nodes share, and the names of its objects.

use crate::LogError;
use crate::layout::{DIRECTORY_LEN, FIXED, FIXED_LEN, Fixed, HEAD, Position, TAIL, WRITER_LEN, WRITERS};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use lite::{Error, Lite, Lmr, Lock, NodeId, Permissions};

/// The rights on the regions of a log, which every node has.
pub(crate) const RIGHTS: Permissions = Permissions::READ
    .union(Permissions::WRITE)
    .union(Permissions::ATOMIC)
    .union(Permissions::ADMIN)
    .union(Permissions::SHARE);

/// The directory of a log, and this node's LITE.
pub(crate) struct Directory {
    pub(crate) lite: Lite,
    pub(crate) name: String,
    pub(crate) fixed: Fixed,
    pub(crate) region: Lmr,
}

/// The words that change with the segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) head: Position,
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) resolved: Position,
}

impl Directory {
    /// Maps the directory of a log.
    pub(crate) async fn open(lite: &Lite, name: &str) -> Result<Self, LogError> {
        let region = lite.map(&directory_name(name), RIGHTS).await?;
        if region.len() != DIRECTORY_LEN {
            return Err(LogError::NotALog);
        }
        let mut bytes = [0; FIXED_LEN];
        region.read(FIXED, &mut bytes).await?;
        let fixed = Fixed::decode(&bytes)?;
        Ok(Self { lite: lite.clone(), name: name.into(), fixed, region })
    }

    /// Returns the tail.
    pub(crate) async fn tail(&self) -> Result<Position, Error> {
        let mut word = [0; 8];
        self.region.read(TAIL, &mut word).await?;
        Ok(Position::from_slot(u64::from_ne_bytes(word)))
    }

    pub(crate) async fn bounds(&self) -> Result<Bounds, Error> {
        let mut bytes = [0; 32];
        self.region.read(HEAD, &mut bytes).await?;
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
        let mut next = || words.next().unwrap_or_default();
        let (head, first, end, resolved) = (next(), next(), next(), next());
        Ok(Bounds { head: Position::from_slot(head), first, end, resolved: Position::from_slot(resolved) })
    }

    /// Sets a word of the directory other than the tail. The caller holds the lock of that word.
    pub(crate) async fn set(&self, offset: u64, value: u64) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            match self.region.write(offset, &value.to_ne_bytes()).await {
                // The first write may still happen after the second one. It writes the same value, and nobody
                // else changes the word while the caller holds its lock.
                Err(Error::Unknown | Error::Deadline) if tries < 2 => tries += 1,
                other => return other,
            }
        }
    }

    /// Returns the packed contact of each writer, or 0 for an entry that is free.
    pub(crate) async fn writers(&self) -> Result<Vec<u64>, Error> {
        let mut bytes = vec![0; self.fixed.options.writers * WRITER_LEN];
        self.region.read(WRITERS, &mut bytes).await?;
        let words = bytes.chunks_exact(WRITER_LEN);
        Ok(words.map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect())
    }

    /// Sets the packed contact of a writer. The caller holds the lock of that writer's entry.
    pub(crate) async fn set_writer(&self, number: usize, contact: u64) -> Result<(), Error> {
        self.set(WRITERS + (number * WRITER_LEN) as u64, contact).await
    }

    /// Frees the region of that name. The caller holds the lock of segments. After `Ok` the region does not
    /// exist. After an error it may exist: LITE of this node repeats the free, but may end before the
    /// region's home has heard of that.
    pub(crate) async fn free(&self, name: &str) -> Result<(), LogError> {
        let mut tries = 0;
        loop {
            match self.free_once(name).await {
                // The connection has broken. The next attempt uses a new one, and looks for the region.
                Err(Error::Unknown) if tries < 2 => tries += 1,
                // An error says that the region does not exist any more: another node has freed it, or it
                // has ended with its home.
                Ok(()) | Err(Error::Freed | Error::NoSuchName | Error::NodeDown(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn free_once(&self, name: &str) -> Result<(), Error> {
        self.lite.map(name, RIGHTS).await?.free().await
    }

    /// Opens the lock under which segments are made and freed.
    pub(crate) async fn segment_lock(&self) -> Result<Lock, Error> {
        self.lite.open_lock(&segment_lock_name(&self.name)).await
    }

    /// Opens the lock under which holes are closed.
    pub(crate) async fn keeper_lock(&self) -> Result<Lock, Error> {
        self.lite.open_lock(&keeper_lock_name(&self.name)).await
    }

    /// Opens the lock of a writer's entry.
    pub(crate) async fn writer_lock(&self, number: usize) -> Result<Lock, Error> {
        self.lite.open_lock(&writer_lock_name(&self.name, number)).await
    }
}

/// Creates a lock, or opens the one of that name.
pub(crate) async fn any_lock(lite: &Lite, home: NodeId, name: &str) -> Result<Lock, Error> {
    match lite.create_lock(home, name).await {
        Err(Error::NameTaken) => lite.open_lock(name).await,
        other => other,
    }
}

pub(crate) fn directory_name(log: &str) -> String {
    format!("log/{log}")
}

pub(crate) fn segment_name(log: &str, segment: u64) -> String {
    format!("log/{log}/seg/{segment}")
}

pub(crate) fn segment_lock_name(log: &str) -> String {
    format!("log/{log}/segments")
}

pub(crate) fn keeper_lock_name(log: &str) -> String {
    format!("log/{log}/keeper")
}

pub(crate) fn writer_lock_name(log: &str, number: usize) -> String {
    format!("log/{log}/writer/{number}")
}
