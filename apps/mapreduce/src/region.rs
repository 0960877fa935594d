//! Memory that a node shares with others: LITE memory, or plain memory in tests.

use alloc::boxed::Box;
use alloc::vec::Vec;
use lite::Lmr;
use runtime::{BoxFuture, JobError};

/// Memory on some node that its owner writes and other nodes read.
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
            bytes.try_reserve_exact(len).map_err(|_| JobError::OutOfMemory { wanted: len as u64, has: 0 })?;
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

/// A region in one block of memory, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct InMemory(pub(crate) alloc::sync::Arc<spin::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Region for InMemory {
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'static, Result<Vec<u8>, JobError>> {
        let bytes = self.0.clone();
        Box::pin(async move {
            // As with a real read, the bytes arrive later.
            platform::yield_now().await;
            let bytes = bytes.lock();
            let found = bytes.get(offset as usize..).and_then(|rest| rest.get(..len));
            found.map(<[u8]>::to_vec).ok_or(JobError::Malformed { rank: usize::MAX })
        })
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(async move {
            let mut bytes = self.0.lock();
            assert_eq!(bytes.len() as u64, offset, "runs are written front to back");
            bytes.extend_from_slice(data);
            Ok(())
        })
    }
}
