//! The log of the daemon and of the PXE service. A thread of its own writes the lines, so that a
//! reader that stalls delays nothing else.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The number of lines that may wait to be written. Further lines are dropped and counted.
const WAITING: usize = 1024;

/// The number of lines about strangers in a [`WINDOW`]. Further lines are counted only.
const STRANGERS: u32 = 10;

/// The time for which lines about strangers are counted together.
const WINDOW: Duration = Duration::from_secs(1);

/// The interval of attempts to queue the end when the queue is full.
const FULL: Duration = Duration::from_millis(5);

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The seconds since the start, and the text.
    #[default]
    Text,
    /// An object with the time in milliseconds since 1970, and the text.
    Json,
}

/// Returns a line of the log before its daemon has started.
#[must_use]
pub fn log_line(format: LogFormat, text: &str) -> String {
    match format {
        LogFormat::Text => text.into(),
        LogFormat::Json => {
            let ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
            serde_json::json!({ "time_ms": u64::try_from(ms).unwrap_or(u64::MAX), "text": text }).to_string()
        }
    }
}

/// The writing end of the log. Clones write to the same log.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stamp: Stamp,
    lines: SyncSender<Entry>,
    /// The number of lines that were dropped since the last one that was written.
    dropped: Arc<AtomicU64>,
    strangers: Mutex<Budget>,
}

#[derive(Debug)]
enum Entry {
    Line(String),
    /// The log has ended.
    End,
}

/// The state of the thread that writes the log.
#[derive(Debug)]
pub(crate) struct Writer {
    log: Log,
    /// A channel that is disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Log {
    /// Starts the thread that writes to `into`.
    pub(crate) fn start(into: impl Write + Send + 'static, format: LogFormat) -> std::io::Result<Writer> {
        let (lines, entries) = mpsc::sync_channel(WAITING);
        let (alive, ended) = mpsc::channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let stamp = Stamp { start, format };
        let count = dropped.clone();
        thread::Builder::new().name("log".into()).spawn(move || {
            write_all(into, &entries, stamp, &count);
            drop(alive);
        })?;
        let strangers = Mutex::new(Budget { since: start, left: STRANGERS, suppressed: 0 });
        Ok(Writer { log: Self(Arc::new(Shared { stamp, lines, dropped, strangers })), ended })
    }

    /// Logs one line, with its time. Never waits.
    pub(crate) fn line(&self, line: &str) {
        let entry = Entry::Line(self.0.stamp.on(line));
        if self.0.lines.try_send(entry).is_err() {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs a line about a peer that has not proved a key. Only a few of these are written each second, with
    /// the number of the others.
    pub(crate) fn stranger(&self, line: &str) {
        let now = Instant::now();
        self.settle_at(now);
        if self.strangers().take() {
            self.line(line);
        }
    }

    /// Writes the number of lines about strangers that were dropped, once their window is over.
    pub(crate) fn settle(&self) {
        self.settle_at(Instant::now());
    }

    fn settle_at(&self, now: Instant) {
        let suppressed = self.strangers().renew(now);
        if suppressed > 0 {
            self.line(&format!("and {suppressed} more failed connections"));
        }
    }

    fn strangers(&self) -> std::sync::MutexGuard<'_, Budget> {
        self.0.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Returns the writing end of the log.
    pub(crate) fn log(&self) -> Log {
        self.log.clone()
    }

    /// Waits until all lines are written, for at most `timeout`.
    pub(crate) fn finish(self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.log.0.lines.try_send(Entry::End).is_err() {
            if Instant::now() >= end {
                return;
            }
            thread::sleep(FULL);
        }
        let _ = self.ended.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

/// The number of lines that may still be written in a window.
#[derive(Debug)]
struct Budget {
    since: Instant,
    left: u32,
    suppressed: u64,
}

impl Budget {
    /// Takes one line from the budget. Returns false if none is left.
    fn take(&mut self) -> bool {
        let may = self.left > 0;
        if may {
            self.left -= 1;
        } else {
            self.suppressed += 1;
        }
        may
    }

    /// Begins a new window if the present one is over, and returns the number of lines that were dropped in
    /// it.
    fn renew(&mut self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.since) < WINDOW {
            return 0;
        }
        self.since = now;
        self.left = STRANGERS;
        std::mem::take(&mut self.suppressed)
    }
}

/// Writes until the end. A line that cannot be written is lost, because there is no one to tell.
fn write_all(mut into: impl Write, entries: &Receiver<Entry>, stamp: Stamp, dropped: &AtomicU64) {
    let count_dropped = |into: &mut dyn Write| {
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ = writeln!(into, "{}", stamp.on(&format!("and {missing} more lines were dropped")));
        }
    };
    while let Ok(Entry::Line(line)) = entries.recv() {
        let _ = writeln!(into, "{line}");
        count_dropped(&mut into);
    }
    count_dropped(&mut into);
}

/// The times of lines.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    start: Instant,
    format: LogFormat,
}

impl Stamp {
    /// Returns a line with its time.
    fn on(self, line: &str) -> String {
        match self.format {
            LogFormat::Text => format!("[{:10.3}] {line}", self.start.elapsed().as_secs_f64()),
            LogFormat::Json => log_line(self.format, line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// A writer that accepts a line only when told to, and passes it on.
    struct Stalled {
        go: Receiver<()>,
        text: Vec<u8>,
        lines: Sender<String>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.text.is_empty() {
                let _ = self.go.recv();
            }
            self.text.extend_from_slice(bytes);
            if self.text.ends_with(b"\n") {
                let text = std::mem::take(&mut self.text);
                let _ = self.lines.send(String::from_utf8(text).unwrap());
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_and_no_time() {
        let ((go, wait), (lines, written)) = (channel(), channel());
        let writer = Log::start(Stalled { go: wait, text: Vec::new(), lines }, LogFormat::Text).unwrap();
        let log = writer.log();
        let all = 3 * WAITING as u64;
        for number in 0..all {
            log.line(&format!("line {number}"));
        }
        drop(go);
        writer.finish(Duration::from_secs(60));
        let (mut seen, mut missing) = (0, 0);
        for line in written.try_iter() {
            match line
                .split_once("and ")
                .and_then(|(_, rest)| rest.strip_suffix(" more lines were dropped\n"))
            {
                Some(count) => missing += count.parse::<u64>().unwrap(),
                None => seen += 1,
            }
        }
        assert!(missing > 0 && seen >= WAITING as u64, "{seen} lines and {missing} dropped");
        assert_eq!(seen + missing, all);
    }

    #[test]
    fn strangers_get_a_few_lines_each_second() {
        let start = Instant::now();
        let mut budget = Budget { since: start, left: STRANGERS, suppressed: 0 };
        let written = (0..1000).filter(|_| budget.take()).count();
        assert_eq!(written, STRANGERS as usize);
        assert_eq!(budget.renew(start + WINDOW / 2), 0);
        assert_eq!(budget.renew(start + WINDOW), 1000 - u64::from(STRANGERS));
        assert!(budget.take());
        assert_eq!(budget.renew(start + 2 * WINDOW), 0, "nothing was left out");
    }
}
