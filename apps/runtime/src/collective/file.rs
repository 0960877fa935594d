//! Input files that every node needs as a whole: each node sends its splits to all others.

use super::Collective;
use crate::{BoxFuture, JobError};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The length of a split's head, in bytes: its offset in the file and its length.
const HEAD: usize = 16;

impl Collective {
    /// Returns the whole content of an input file, by its index. The manager has cut the file and sent each
    /// split to one node; this takes the splits of all nodes together. All nodes must call this.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange), and [`JobError::OutOfMemory`].
    pub fn whole_file(&mut self, file: u32) -> BoxFuture<'_, Result<Vec<u8>, JobError>> {
        Box::pin(self.whole_file_of(file))
    }

    async fn whole_file_of(&mut self, file: u32) -> Result<Vec<u8>, JobError> {
        let mut own = Vec::new();
        for split in self.job.take_splits_of(file) {
            own.extend_from_slice(&split.offset.to_le_bytes());
            own.extend_from_slice(&(split.bytes.len() as u64).to_le_bytes());
            own.extend_from_slice(&split.bytes);
        }
        let len = self.job.start().inputs.get(file as usize).map_or(0, |input| input.len);
        let wanted = usize::try_from(len).unwrap_or(usize::MAX);
        let mut whole = Vec::new();
        whole.try_reserve_exact(wanted).map_err(|_| JobError::OutOfMemory { wanted: len, has: 0 })?;
        whole.resize(wanted, 0);
        let mut left = len;
        for (rank, splits) in self.all_gather(own).await?.iter().enumerate() {
            let malformed = || JobError::Malformed { rank };
            let mut rest = &splits[..];
            while let Some((head, behind)) = rest.split_at_checked(HEAD) {
                let (words, _) = head.as_chunks::<8>();
                let [offset, len] = words else { return Err(malformed()) };
                let [offset, len] = [offset, len].map(|word| u64::from_le_bytes(*word));
                let (bytes, next) = usize::try_from(len)
                    .ok()
                    .and_then(|len| behind.split_at_checked(len))
                    .ok_or_else(malformed)?;
                let into =
                    usize::try_from(offset).ok().and_then(|at| whole.get_mut(at..)?.get_mut(..bytes.len()));
                into.ok_or_else(malformed)?.copy_from_slice(bytes);
                left = left.checked_sub(len).ok_or_else(malformed)?;
                rest = next;
            }
        }
        if left == 0 { Ok(whole) } else { Err(JobError::Malformed { rank: self.job.rank() }) }
    }
}
