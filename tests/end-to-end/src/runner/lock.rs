//! The lock of a run: two runs in one clone would empty each other's logs and build each other's programs.

use anyhow::{Context, Result};
use lab::paths;
use std::fs::{File, TryLockError};
use std::path::Path;

/// The right to run tests in this clone. It ends with this value, or with the process.
pub struct RunLock {
    file: File,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // A process that is being started shares the open file until it executes its program, so closing
        // the file may not be enough. If this fails, the lock ends with that process.
        let _ = self.file.unlock();
    }
}

impl RunLock {
    /// Takes the lock, or returns `None` if another run has it.
    pub fn take() -> Result<Option<Self>> {
        Self::take_in(&paths::state()?)
    }

    fn take_in(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("test.lock");
        let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunLock::take_in(dir.path()).unwrap();
        assert!(first.is_some());
        assert!(RunLock::take_in(dir.path()).unwrap().is_none());
        drop(first);
        assert!(RunLock::take_in(dir.path()).unwrap().is_some());
    }
}
