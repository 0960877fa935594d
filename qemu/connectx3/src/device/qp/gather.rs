//! The message of a work request, gathered into one buffer.

use super::wqe::{Data, Segments};
use crate::device::memory::{Access, Domain, Keyed, Refused};
use verbs::Status;

/// The reason why a message cannot be gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Ungathered {
    /// The message exceeds this length in bytes.
    #[error("the message is longer than {0} bytes")]
    TooLong(usize),
    /// The access to the guest's memory is refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Ungathered {
    /// Returns the status of the work request's completion.
    #[must_use]
    pub(crate) const fn status(&self) -> Status {
        match self {
            Self::TooLong(_) => Status::LocalLengthError,
            Self::Refused(_) => Status::LocalProtectionError,
        }
    }
}

/// Returns the contents of data segments, of which at most `max` bytes may come from the guest's memory.
pub(crate) fn gather(
    segments: Segments<'_>,
    max: usize,
    who: Domain,
    keyed: Keyed<'_>,
) -> Result<Vec<u8>, Ungathered> {
    let mut message = Vec::new();
    for data in segments {
        match data {
            Data::Inline(bytes) => message.extend_from_slice(bytes),
            Data::Segment { lkey, va, len } => {
                let start = message.len();
                if start + len as usize > max {
                    return Err(Ungathered::TooLong(max));
                }
                keyed.check(lkey, who, va, u64::from(len), Access::LocalRead)?;
                message.resize(start + len as usize, 0);
                keyed.read(lkey, va, message.get_mut(start..).unwrap_or_default())?;
            }
        }
    }
    Ok(message)
}
