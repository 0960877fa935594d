//! Locks that sleep, and that a panic of another thread does not take away: what they guard is whole between statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
