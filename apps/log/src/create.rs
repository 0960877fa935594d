//! [`Log`]: the handle of a log, its creation and its end.

use crate::directory::{
    Directory, RIGHTS, any_lock, directory_name, keeper_lock_name, segment_lock_name, writer_lock_name,
};
use crate::layout::{DIRECTORY_LEN, END, FIXED, Fixed, LogOptions, Position};
use crate::segments::{Forming, Segments, publish};
use crate::{LogError, Writer};
use alloc::sync::Arc;
use lite::{Error, Lite, Lock, NodeId};

/// A handle of a log. It reads; [`writer`](Self::writer) makes a handle that appends. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    pub(crate) segments: Arc<Segments>,
}

impl Log {
    /// Creates a log under a name. Its segments lie on `homes` in turn, and its directory and locks on the
    /// first of them. A segment ends when its home leaves or dies, and the whole log ends with its first
    /// home.
    ///
    /// # Errors
    /// `NameTaken` if a log of that name exists.
    pub async fn create(
        lite: &Lite,
        name: &str,
        homes: &[NodeId],
        options: LogOptions,
    ) -> Result<Self, LogError> {
        options.check()?;
        let mut key = [0; 8];
        lite.platform().fill_random(&mut key);
        let fixed = Fixed { key: u64::from_le_bytes(key), options, homes: homes.into() };
        let bytes = fixed.encode()?;
        let home = fixed.home_of(0);
        let lock = any_lock(lite, home, &segment_lock_name(name)).await?;
        let guard = lock.lock().await?;
        match lite.map(&directory_name(name), RIGHTS).await {
            Err(Error::NoSuchName) => {}
            Ok(_) => return Err(Error::NameTaken.into()),
            Err(error) => return Err(error.into()),
        }
        any_lock(lite, home, &keeper_lock_name(name)).await?;
        for number in 0..options.writers {
            any_lock(lite, home, &writer_lock_name(name, number)).await?;
        }
        let region = lite.alloc(home, DIRECTORY_LEN, RIGHTS).await?;
        region.write(FIXED, &bytes).await?;
        let forming = Forming::new(region, lite.platform().clone());
        let region = forming.region()?.clone();
        let segments =
            Arc::new(Segments::new(Directory { lite: lite.clone(), name: name.into(), fixed, region }));
        let first = segments.make(0, 0).await?;
        segments.directory.set(END, 1).await?;
        publish(lite, forming.region()?, home, &directory_name(name)).await?;
        segments.adopt(0, first.keep()?);
        forming.keep()?;
        drop(guard);
        Ok(Self { segments })
    }

    /// Opens the log of that name.
    ///
    /// # Errors
    /// `NoSuchName` if there is none.
    pub async fn open(lite: &Lite, name: &str) -> Result<Self, LogError> {
        let directory = Directory::open(lite, name).await?;
        Ok(Self { segments: Arc::new(Segments::new(directory)) })
    }

    /// Registers a writer. The number of writers at a time is limited for all nodes together, so one writer
    /// should serve all tasks of a node.
    ///
    /// # Errors
    /// [`TooManyWriters`](LogError::TooManyWriters).
    pub async fn writer(&self) -> Result<Writer, LogError> {
        Writer::new(&self.segments).await
    }

    /// Returns the options with which the log was created.
    #[must_use]
    pub fn options(&self) -> &LogOptions {
        &self.segments.directory.fixed.options
    }

    /// Returns the first position that is not reserved: all records that were appended before the call are
    /// below it. Costs one read of 8 bytes.
    pub async fn tail(&self) -> Result<Position, LogError> {
        Ok(self.segments.directory.tail().await?)
    }

    /// Returns the first position that is not truncated.
    pub async fn head(&self) -> Result<Position, LogError> {
        Ok(self.segments.directory.bounds().await?.head)
    }

    /// Truncates the log: no record below `before` can be relied on any more, and the memory of all segments
    /// below it is freed.
    ///
    /// # Errors
    /// [`BeyondTail`](LogError::BeyondTail) if `before` is beyond the tail.
    pub async fn truncate(&self, before: Position) -> Result<(), LogError> {
        self.segments.truncate(before).await
    }

    /// Fills the holes of writers that have died or given up. Returns the position below which all positions
    /// are resolved: that of the oldest commit in progress, or the tail. Scans do this by themselves.
    ///
    /// # Errors
    /// `Deadline` if a writer neither answers nor has ended.
    pub async fn close_holes(&self) -> Result<Position, LogError> {
        self.segments.close_holes().await
    }

    /// Ends the log and frees its memory. Other handles fail from now on.
    ///
    /// # Errors
    /// After an error, for example `Unknown`, the log may still exist. Any node may open and destroy it then.
    pub async fn destroy(self) -> Result<(), LogError> {
        let directory = &self.segments.directory;
        let (lite, name) = (&directory.lite, &directory.name);
        let lock = directory.segment_lock().await?;
        let guard = lock.lock().await?;
        let bounds = directory.bounds().await?;
        // A node may have published the segment `bounds.end` and died before it entered it in the directory.
        for number in bounds.first..=bounds.end {
            self.segments.free(number).await?;
        }
        end(lite.open_lock(&keeper_lock_name(name)).await).await?;
        for number in 0..directory.fixed.options.writers {
            end(lite.open_lock(&writer_lock_name(name, number)).await).await?;
        }
        directory.free(&directory_name(name)).await?;
        drop(guard);
        end(Ok(lock)).await
    }

    /// Returns the key of the frames' checks.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.segments.directory.fixed.key
    }
}

async fn end(lock: Result<Lock, Error>) -> Result<(), LogError> {
    let ended = match lock {
        Ok(lock) => lock.destroy().await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) | Err(Error::Freed | Error::NoSuchName) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
