//! Numbers in messages, little-endian.

use runtime::JobError;

/// Reads numbers from a message of the node of rank `rank`.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) rank: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rank: usize, bytes: &'a [u8]) -> Self {
        Self { bytes, rank }
    }

    pub(crate) fn malformed(&self) -> JobError {
        JobError::Malformed { rank: self.rank }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, JobError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(self.malformed())?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*word))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, JobError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(self.malformed())?;
        self.bytes = rest;
        Ok(u32::from_le_bytes(*word))
    }

    pub(crate) fn slice(&mut self, len: usize) -> Result<&'a [u8], JobError> {
        let (slice, rest) = self.bytes.split_at_checked(len).ok_or(self.malformed())?;
        self.bytes = rest;
        Ok(slice)
    }
}
