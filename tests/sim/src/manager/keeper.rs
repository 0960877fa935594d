//! The manager's store at work: it saves all waiting records together, and retries after a failure, as the
//! daemon's thread does.

use super::disk::{Disk, File};
use manager::core::{Record, Saved};
use manager::daemon::{Keep, Store};
use platform::Instant;
use std::sync::Arc;
use std::time::Duration;

/// The pause after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(1);

/// A report of the store.
pub(super) enum Kept {
    Saved(Vec<Record>),
    Failed(String),
}

enum Phase {
    Idle,
    /// The disk is busy until this time.
    Writing {
        until: Instant,
        batch: Vec<Record>,
        result: Result<(), String>,
    },
    /// The last attempt has failed.
    Waiting {
        until: Instant,
    },
}

/// The store and the records that it must save.
pub(super) struct Keeper {
    store: Store<File>,
    disk: Arc<Disk>,
    unsaved: Vec<Record>,
    phase: Phase,
}

impl Keeper {
    /// Opens the store, and returns its content.
    pub(super) fn open(disk: &Arc<Disk>) -> Result<(Self, Saved), String> {
        let (store, saved) = Store::open_on(disk.file()).map_err(|error| error.to_string())?;
        Ok((Self { store, disk: disk.clone(), unsaved: Vec::new(), phase: Phase::Idle }, saved))
    }

    pub(super) fn save(&mut self, record: Record) {
        self.unsaved.push(record);
    }

    /// Continues the work, and returns the report that is due at `now`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Kept> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Writing { until, batch, result } if until <= now => {
                self.disk.settle();
                let Err(reason) = result else { return Some(Kept::Saved(batch)) };
                self.unsaved.splice(0..0, batch);
                self.phase = Phase::Waiting { until: now + RETRY };
                return Some(Kept::Failed(reason));
            }
            Phase::Waiting { until } if until <= now => {}
            Phase::Idle => {}
            goes_on => {
                self.phase = goes_on;
                return None;
            }
        }
        if !self.unsaved.is_empty() {
            let batch = std::mem::take(&mut self.unsaved);
            let result = self.store.keep(&batch).map_err(|trouble| trouble.to_string());
            self.phase = Phase::Writing { until: now + self.disk.taken(), batch, result };
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::Writing { until, .. } | Phase::Waiting { until } => Some(until),
        }
    }

    pub(super) fn is_writing(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. })
    }

    /// Returns the time for which the disk has been busy at `now` with the present save.
    pub(super) fn worked(&self, now: Instant) -> Duration {
        match self.phase {
            Phase::Writing { until, .. } => self.disk.taken().saturating_sub(until.saturating_since(now)),
            Phase::Idle | Phase::Waiting { .. } => Duration::ZERO,
        }
    }
}
