//! The expectations of a case, and the report of a failure.

use alloc::format;
use alloc::string::String;
use core::fmt::{self, Debug};
use core::panic::Location;
use lite::Error;

/// The result of a case on a node.
pub type Outcome = Result<(), Failure>;

/// A failed expectation, and the line that found it.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    place: &'static Location<'static>,
    what: String,
}

impl Failure {
    /// Creates a failure at the caller's line.
    #[track_caller]
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self::at(Location::caller(), what.into())
    }

    /// Creates a failure at a given line.
    pub(crate) fn at(place: &'static Location<'static>, what: String) -> Self {
        Self { place, what }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.place.file().rsplit('/').next().unwrap_or_default();
        write!(f, "{file}:{}: {}", self.place.line(), self.what)
    }
}

impl Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("failed: {error}"))
    }
}

/// Fails unless `condition` holds.
#[track_caller]
pub(crate) fn ensure(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(Failure::new(what)) }
}

/// Fails unless both are equal.
#[track_caller]
pub(crate) fn same<T: PartialEq<U> + Debug, U: Debug>(got: T, want: U) -> Outcome {
    if got == want { Ok(()) } else { Err(Failure::new(format!("got {got:?}, not {want:?}"))) }
}

/// Fails unless both slices have the same bytes; reports the position of the first difference.
#[track_caller]
pub(crate) fn same_bytes(got: &[u8], want: &[u8]) -> Outcome {
    if got == want {
        return Ok(());
    }
    let what = match got.iter().zip(want).position(|(a, b)| a != b) {
        Some(at) => format!("byte {at} of {} is {:?}, not {:?}", got.len(), got.get(at), want.get(at)),
        None => format!("{} bytes, not {}", got.len(), want.len()),
    };
    Err(Failure::new(what))
}

/// Fails unless `result` is the error `want`.
#[track_caller]
pub(crate) fn fails<T>(result: Result<T, Error>, want: Error) -> Outcome {
    match result {
        Err(error) if error == want => Ok(()),
        Err(error) => Err(Failure::new(format!("`{error}`, not `{want}`"))),
        Ok(_) => Err(Failure::new(format!("it succeeds instead of `{want}`"))),
    }
}

/// Fails unless `result` is [`Error::Refused`], with any reason.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, Error>) -> Outcome {
    match result {
        Err(Error::Refused(_)) => Ok(()),
        Err(error) => Err(Failure::new(format!("`{error}`, not refused"))),
        Ok(_) => Err(Failure::new("it succeeds instead of being refused")),
    }
}
