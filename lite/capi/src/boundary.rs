//! The boundary to C: pointers become references after a check, panics and errors become statuses. (Handles: `handle.rs`.)

use crate::handle::{self, Handle};
use crate::status::{Failure, fl_status, remember};
use std::ffi::{CStr, c_char, c_void};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs the body of a function of the interface.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> fl_status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return fl_status::FL_OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(fl_status::FL_INTERNAL, "the library has panicked"),
    };
    remember(&failure.text);
    failure.status
}

/// Waits for an operation of LITE, which has a deadline of its own.
pub(crate) fn wait<T>(operation: impl Future<Output = Result<T, lite::Error>>) -> Result<T, Failure> {
    Ok(futures_lite::future::block_on(operation)?)
}

pub(crate) fn milliseconds(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

/// What a pointer that is no handle points to.
///
/// # Safety
/// `from` is null or points to a `T` that stays as it is during the call.
pub(crate) unsafe fn given<'a, T>(from: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { from.as_ref() }.ok_or_else(|| Failure::invalid(format_args!("{what} is null")))
}

/// Where a result goes: checked before anything is done.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// # Safety
    /// `to` is null or may be written until the call that it is an argument of returns.
    pub(crate) unsafe fn new(to: *mut T, what: &str) -> Result<Self, Failure> {
        if to.is_null() { Err(Failure::invalid(format_args!("{what} is null"))) } else { Ok(Self(to)) }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, and writable by the promise of `new`.
        unsafe { self.0.write(value) };
    }
}

impl<H: Handle> Place<*mut H> {
    /// Gives the caller a handle.
    pub(crate) fn give(self, held: H::Held) -> Result<(), Failure> {
        self.put(handle::make(held)?);
        Ok(())
    }
}

/// A text.
///
/// # Safety
/// `text` is null or ends with a zero byte, and stays as it is during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format_args!("{what} is null")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format_args!("{what} is not UTF-8")))
}

/// A text that may be missing.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional<'a>(from: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    if from.is_null() { Ok(None) } else { unsafe { text(from, what) }.map(Some) }
}

/// Bytes, or whatever else has `len` elements.
///
/// # Safety
/// `from` is null or holds `len` elements, which stay as they are during the call.
pub(crate) unsafe fn slice<'a, T>(from: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null()
        || len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX.cast_unsigned())
    {
        return Err(Failure::invalid(format_args!("{what} is null or impossibly long")));
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, len) })
}

/// Bytes to be written; zeroed first, for in C they need not be initialised.
///
/// # Safety
/// `into` is null or has room for `len` bytes that nothing else uses during the call.
pub(crate) unsafe fn buffer<'a>(into: *mut c_void, len: usize, what: &str) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if into.is_null() || len > isize::MAX.cast_unsigned() {
        return Err(Failure::invalid(format_args!("{what} is null or impossibly long")));
    }
    let into = into.cast::<u8>();
    // SAFETY: not null, and the caller's promise; initialised by the first line.
    Ok(unsafe {
        into.write_bytes(0, len);
        std::slice::from_raw_parts_mut(into, len)
    })
}
