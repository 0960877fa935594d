//! The boundary to C: checks pointers and makes references of them, and turns panics and errors into
//! statuses. Handles are in `handle.rs`.

use crate::handle::{self, Handle};
use crate::status::{Failure, fl_status, remember};
use futures_lite::future::block_on;
use lite::Error;
use lite_node::Node;
use std::ffi::{CStr, c_char, c_void};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs the body of a function of the interface and returns its status.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> fl_status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return fl_status::FL_OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(fl_status::FL_INTERNAL, "the library has panicked"),
    };
    remember(&failure.text);
    failure.status
}

/// Blocks until an operation of a node ends, which has a deadline of its own.
pub(crate) fn wait<T>(node: &Node, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    block_on(operation).map_err(|error| match error {
        Error::Deadline if node.lite().is_suspended() => {
            Failure::new(fl_status::FL_DEADLINE, format_args!("{error}: the manager is silent"))
        }
        error => error.into(),
    })
}

pub(crate) fn milliseconds(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

/// Returns a reference to what `from`, which is no handle, points to; fails if it is null.
///
/// # Safety
/// `from` must be null or point to a `T` that does not change during the call.
pub(crate) unsafe fn given<'a, T>(from: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller guarantees it.
    unsafe { from.as_ref() }.ok_or_else(|| Failure::invalid(format_args!("{what} is null")))
}

/// The caller's pointer for a result, which is checked before the call has any effect.
pub(crate) struct OutParam<T>(*mut T);

impl<T> OutParam<T> {
    /// # Safety
    /// `to` must be null or be writable until the call whose argument it is returns.
    pub(crate) unsafe fn new(to: *mut T, what: &str) -> Result<Self, Failure> {
        if to.is_null() { Err(Failure::invalid(format_args!("{what} is null"))) } else { Ok(Self(to)) }
    }

    /// Returns `None` for a null pointer: the caller does not want the result.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    pub(crate) unsafe fn optional(to: *mut T) -> Option<Self> {
        (!to.is_null()).then_some(Self(to))
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, and writable as the caller of `new` or `optional` guarantees.
        unsafe { self.0.write(value) };
    }
}

impl<H: Handle> OutParam<*mut H> {
    /// Stores a new handle for the caller.
    pub(crate) fn give(self, held: H::Held) -> Result<(), Failure> {
        self.put(handle::make(held)?);
        Ok(())
    }
}

/// Returns a text; fails if it is null or not UTF-8.
///
/// # Safety
/// `text` must be null or end with a zero byte, and must not change during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format_args!("{what} is null")));
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format_args!("{what} is not UTF-8")))
}

/// Returns a text, or `None` if the pointer is null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional<'a>(from: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller guarantees it.
    if from.is_null() { Ok(None) } else { unsafe { text(from, what) }.map(Some) }
}

/// Returns a slice of `len` elements.
///
/// # Safety
/// `from` must be null or point to `len` elements that do not change during the call.
pub(crate) unsafe fn slice<'a, T>(from: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null()
        || len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX.cast_unsigned())
    {
        return Err(Failure::invalid(format_args!("{what} is null or impossibly long")));
    }
    // SAFETY: not null, and the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(from, len) })
}

/// Returns a buffer of `len` bytes, zeroed first because C does not require them to be initialised.
///
/// # Safety
/// `into` must be null or point to `len` bytes that nothing else uses during the call.
pub(crate) unsafe fn buffer<'a>(into: *mut c_void, len: usize, what: &str) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if into.is_null() || len > isize::MAX.cast_unsigned() {
        return Err(Failure::invalid(format_args!("{what} is null or impossibly long")));
    }
    let into = into.cast::<u8>();
    // SAFETY: not null, and the caller guarantees the rest; the first line initialises the bytes.
    Ok(unsafe {
        into.write_bytes(0, len);
        std::slice::from_raw_parts_mut(into, len)
    })
}
