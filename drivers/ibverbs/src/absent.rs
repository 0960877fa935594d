//! The driver's interface in a build without it: opening fails.

use crate::{OpenError, Opened, Options};
use platform::Instant;
use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, MemoryKey, QpConnect, QpNum, QpOptions, RecvWr, Rnic,
    SendWr, VerbsError,
};

/// Fails with [`OpenError::NotBuilt`].
pub fn open(_options: &Options) -> Result<Opened, OpenError> {
    Err(OpenError::NotBuilt)
}

/// The RNIC, which cannot exist without the feature `libibverbs`.
#[derive(Debug)]
pub struct IbvRnic(Infallible);

impl IbvRnic {
    /// Returns the device's name.
    #[must_use]
    pub fn device(&self) -> &str {
        match self.0 {}
    }

    /// Returns the descriptors to wait on.
    #[must_use]
    pub fn event_fds(&self) -> [BorrowedFd<'_>; 2] {
        match self.0 {}
    }
}

impl Rnic for IbvRnic {
    fn attributes(&self) -> Attributes {
        match self.0 {}
    }
    fn memory_key(&self) -> MemoryKey {
        match self.0 {}
    }
    fn create_cq(&self, _: CqOptions) -> Result<CqId, VerbsError> {
        match self.0 {}
    }
    fn destroy_cq(&self, _: CqId) -> Result<(), VerbsError> {
        match self.0 {}
    }
    fn create_qp(&self, _: QpOptions) -> Result<QpNum, VerbsError> {
        match self.0 {}
    }
    fn connect_qp(&self, _: QpNum, _: &QpConnect) -> Result<(), VerbsError> {
        match self.0 {}
    }
    fn destroy_qp(&self, _: QpNum) -> Result<(), VerbsError> {
        match self.0 {}
    }
    fn post_send(&self, _: QpNum, _: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        match self.0 {}
    }
    fn post_recv(&self, _: QpNum, _: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        match self.0 {}
    }
    fn poll_cq(&self, _: CqId, _: &mut [Completion]) -> usize {
        match self.0 {}
    }
    fn progress(&self, _: Instant, _: usize) -> bool {
        match self.0 {}
    }
    fn next_deadline(&self) -> Option<Instant> {
        match self.0 {}
    }
    fn arm(&self) -> bool {
        match self.0 {}
    }
    fn counters(&self, _: &mut dyn FnMut(Counter)) {
        match self.0 {}
    }
}
