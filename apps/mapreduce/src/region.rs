//! Bytes that a node offers to others: LITE memory, or in tests any memory.

use alloc::boxed::Box;
use alloc::vec::Vec;
use lite::Lmr;
use runtime::{BoxFuture, JobError};

/// Memory on some node that is written in place and read from afar.
pub(crate) trait Region: Clone + Send + Sync + 'static {
    /// Reads `len` bytes from `offset` on.
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'static, Result<Vec<u8>, JobError>>;

    /// Writes `data` at `offset`.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> BoxFuture<'a, Result<(), JobError>>;
}

impl Region for Lmr {
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'static, Result<Vec<u8>, JobError>> {
        let lmr = self.clone();
        Box::pin(async move {
            let mut bytes = Vec::new();
            bytes
                .try_reserve_exact(len)
                .map_err(|_| JobError::OutOfMemory { wanted: len as u64, has: 0 })?;
            bytes.resize(len, 0);
            Lmr::read(&lmr, offset, &mut bytes)
                .await
                .map_err(|error| JobError::Lite { during: "reading another node's results", error })?;
            Ok(bytes)
        })
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(async move {
            Lmr::write(self, offset, data)
                .await
                .map_err(|error| JobError::Lite { during: "storing results", error })
        })
    }
}
