//! The last lines of this process's log, which the node sends to the manager.

use log::{Log, Metadata, Record};
use parking_lot::Mutex;
use platform::LogRing;
use std::sync::OnceLock;
use std::time::Instant;

/// The bytes of the log that wait for the manager.
const BYTES: usize = 32 << 10;

/// The lines that wait; a process has one log.
static RECENT: Mutex<LogRing<BYTES>> = Mutex::new(LogRing::new());
/// The time from which the times of lines count.
static START: OnceLock<Instant> = OnceLock::new();

/// A logger that also keeps the lines for the manager.
struct Keeping<L>(L);

impl<L: Log> Log for Keeping<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.0.enabled(record.metadata()) {
            let since = START.get_or_init(Instant::now).elapsed();
            let us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            let text = format_args!("{}: {}", record.target(), record.args());
            RECENT.lock().push(record.level().as_str(), us, text);
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Makes `logger` the logger of this process, with messages up to `level`, and lets the manager have its
/// lines.
///
/// # Errors
/// The process has a logger already.
pub fn keep_log(logger: impl Log + 'static, level: log::LevelFilter) -> Result<(), log::SetLoggerError> {
    START.get_or_init(Instant::now);
    log::set_boxed_logger(Box::new(Keeping(logger)))?;
    log::set_max_level(level);
    Ok(())
}

/// Moves lines that the manager does not have; see [`LogRing::take`].
pub(crate) fn take(into: &mut [u8]) -> (usize, u64) {
    let mut recent = RECENT.lock();
    (recent.take(into), recent.dropped())
}

/// Returns the last lines that the manager does not have, at most `most` bytes.
pub(crate) fn take_last(most: usize) -> Vec<u8> {
    let mut lines = vec![0; most];
    let taken = RECENT.lock().take_last(&mut lines);
    lines.truncate(taken);
    lines
}
