//! The result of a call: a number, and a text for people.

use lite::Error;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

/// The result of a call. All errors mean that the operation had no effect, except `FL_UNKNOWN`, and
/// `FL_NODE_DOWN` and `FL_LINK_DOWN` of a long write or a memset.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fl_status {
    /// The call has succeeded.
    FL_OK = 0,
    /// The deadline passed before the operation took effect.
    FL_DEADLINE = 1,
    /// The operation was issued and its outcome is not known: it may have happened. A write or an atomic
    /// may still happen until the transport gives it up, seconds later.
    FL_UNKNOWN = 2,
    /// The node has left the cluster or is declared dead.
    FL_NODE_DOWN = 3,
    /// No node has that number or name.
    FL_NO_SUCH_NODE = 4,
    /// No region or object is published under the requested name.
    FL_NO_SUCH_NAME = 5,
    /// The name or function number is in use already.
    FL_NAME_TAKEN = 6,
    /// The node serves no function of that number.
    FL_NO_SUCH_FUNCTION = 7,
    /// The region does not grant the required right, or the handle does not have it.
    FL_PERMISSION = 8,
    /// Offset and length reach beyond the region.
    FL_OUT_OF_BOUNDS = 9,
    /// The offset of an atomic is not a multiple of 8.
    FL_MISALIGNED = 10,
    /// The region has been freed.
    FL_FREED = 11,
    /// The nodes that were to have the memory have less free, or the process has too many handles.
    FL_NO_MEMORY = 12,
    /// A request or reply is longer than its receiver accepts.
    FL_TOO_LARGE = 13,
    /// The two nodes speak no link kind in common.
    FL_NO_SHARED_LINK = 14,
    /// This process is no longer a member of the cluster.
    FL_LINK_DOWN = 15,
    /// The other node refused.
    FL_REFUSED = 16,
    /// An argument is not valid: a null pointer, a text that is not UTF-8, an unknown word.
    FL_INVALID_ARGUMENT = 17,
    /// The process could not join the cluster.
    FL_NOT_JOINED = 18,
    /// An error in this library.
    FL_INTERNAL = 19,
    /// The handle was given back, by this thread or another.
    FL_CLOSED = 20,
}

/// The reason for which a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: fl_status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: fl_status, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    pub(crate) fn invalid(text: impl ToString) -> Self {
        Self::new(fl_status::FL_INVALID_ARGUMENT, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use fl_status::*;
        let status = match error {
            Error::Deadline => FL_DEADLINE,
            Error::Unknown => FL_UNKNOWN,
            Error::NodeDown(_) => FL_NODE_DOWN,
            Error::NoSuchNode => FL_NO_SUCH_NODE,
            Error::NoSuchName => FL_NO_SUCH_NAME,
            Error::NameTaken => FL_NAME_TAKEN,
            Error::NoSuchFunction => FL_NO_SUCH_FUNCTION,
            Error::Permission => FL_PERMISSION,
            Error::OutOfBounds => FL_OUT_OF_BOUNDS,
            Error::Misaligned => FL_MISALIGNED,
            Error::Freed => FL_FREED,
            Error::NoMemory { .. } => FL_NO_MEMORY,
            Error::TooLarge { .. } => FL_TOO_LARGE,
            Error::NoSharedLink(_) => FL_NO_SHARED_LINK,
            Error::LinkDown => FL_LINK_DOWN,
            Error::Refused(_) => FL_REFUSED,
        };
        Self::new(status, error)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of a failure for `fl_last_error`.
pub(crate) fn remember(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // The thread may be ending, and has no text then.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Returns the reason for which the last failed call of this thread failed: one line, never null. It stays
/// valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn fl_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the general meaning of a status: one line, never null, valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn fl_status_text(status: i32) -> *const c_char {
    const TEXTS: [&CStr; 21] = [
        c"done",
        c"deadline passed before the operation took effect",
        c"the operation may or may not have happened",
        c"the node is down",
        c"no such node",
        c"no such name",
        c"the name is taken",
        c"no such function",
        c"permission denied",
        c"out of the region's bounds",
        c"atomic offset is not a multiple of 8",
        c"the region has been freed",
        c"no memory",
        c"too large",
        c"no link kind in common",
        c"this process has lost its membership",
        c"refused",
        c"invalid argument",
        c"not joined",
        c"internal error",
        c"the handle was given back",
    ];
    let text = usize::try_from(status).ok().and_then(|n| TEXTS.get(n)).copied();
    text.unwrap_or(c"no status of this library").as_ptr()
}
