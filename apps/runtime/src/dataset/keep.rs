//! The output that a node keeps.

use super::name;
use crate::JobError;
use crate::error::During;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use lite::{Lite, Lmr, LocalMemory, Permissions};
use proto::{Dataset, JobId};
use spin::Mutex;

/// The length of the first piece, in bytes. Each further one is twice as long as the one before, up to
/// [`LONGEST`], so that little memory is left over and a part has few pieces.
const FIRST: u64 = 64 << 10;
/// The length of the longest piece that is allocated before its bytes are there.
const LONGEST: u64 = 64 << 20;
/// The longest time that publishing or freeing a piece may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A piece that is filled from its start.
struct Piece {
    memory: LocalMemory,
    len: u64,
}

#[derive(Default)]
struct Pieces {
    full: Vec<Piece>,
    open: Option<Piece>,
}

/// The output of a job that runs, on one node.
pub(crate) struct Keeping {
    /// LITE of the node: what is kept outlives the job.
    lite: Lite,
    pieces: Mutex<Pieces>,
}

/// The output of a job that is done, on one node.
pub(crate) struct Kept {
    lite: Lite,
    regions: Vec<(Lmr, String)>,
    /// The lengths of the pieces, in bytes.
    pub(crate) lens: Vec<u64>,
}

impl Keeping {
    pub(crate) fn new(lite: Lite) -> Self {
        Self { lite, pieces: Mutex::default() }
    }

    /// Appends bytes.
    pub(crate) async fn append(&self, mut bytes: &[u8]) -> Result<(), JobError> {
        while !bytes.is_empty() {
            let open = self.pieces.lock().open.take();
            let mut piece = match open {
                Some(piece) => piece,
                None => self.allocate(self.next_len()).await?,
            };
            let room = piece.memory.len() - piece.len;
            let (now, rest) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            piece.memory.write(piece.len, now).during("keeping output")?;
            piece.len += now.len() as u64;
            bytes = rest;
            let mut pieces = self.pieces.lock();
            if piece.len < piece.memory.len() {
                pieces.open = Some(piece);
            } else {
                pieces.full.push(piece);
            }
        }
        Ok(())
    }

    /// Returns the length of the next piece.
    fn next_len(&self) -> u64 {
        let pieces = self.pieces.lock().full.len();
        FIRST.checked_shl(pieces as u32).unwrap_or(LONGEST).clamp(FIRST, LONGEST)
    }

    async fn allocate(&self, len: u64) -> Result<Piece, JobError> {
        if self.pieces.lock().full.len() >= Dataset::MAX_PIECES {
            return Err(JobError::Refused("the output is too long to be kept on one node".into()));
        }
        match self.lite.local_memory(len).await {
            Ok(memory) => Ok(Piece { memory, len: 0 }),
            Err(lite::Error::NoMemory { asked, free }) => {
                Err(JobError::OutOfMemory { wanted: asked, has: free })
            }
            Err(error) => Err(error).during("keeping output"),
        }
    }

    /// Makes the pieces regions that other nodes may read. Nothing is kept after an error.
    pub(crate) async fn publish(&self, job: JobId) -> Result<Kept, JobError> {
        let pieces = core::mem::take(&mut *self.pieces.lock());
        let mut kept = Kept { lite: self.lite.with_deadline(TIMEOUT), regions: Vec::new(), lens: Vec::new() };
        for (number, piece) in pieces.full.into_iter().chain(pieces.open).enumerate() {
            if let Err(error) = kept.add(piece, name(job, self.lite.node_id(), number)).await {
                kept.free().await;
                return Err(error).during("keeping output");
            }
        }
        Ok(kept)
    }
}

impl Kept {
    async fn add(&mut self, piece: Piece, name: String) -> Result<(), lite::Error> {
        let region = self.lite.register_memory(piece.memory, Permissions::READ | Permissions::SHARE).await?;
        self.regions.push((region.clone(), name.clone()));
        region.publish(&name).await?;
        self.lens.push(piece.len);
        Ok(())
    }

    /// Frees the pieces and their names.
    pub(crate) async fn free(self) {
        for (region, name) in self.regions {
            match self.lite.unpublish(&name).await {
                Err(lite::Error::NoSuchName) | Ok(()) => {}
                Err(error) => log::debug!("freeing the name {name}: {error}"),
            }
            if let Err(error) = region.free().await {
                log::debug!("freeing {name}: {error}");
            }
        }
    }
}
