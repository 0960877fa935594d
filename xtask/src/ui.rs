//! What people see: steps with their time, and one-line errors.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// What takes longer than this is worth a line.
const NOTICED: Duration = Duration::from_secs(2);

/// Does something that takes a while: a spinner on a terminal, and a line with the time when done.
pub fn step<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let result = work();
    spinner.finish_and_clear();
    if result.is_ok() {
        eprintln!("  {what}: {:.1} s", started.elapsed().as_secs_f64());
    }
    result
}

/// Does something beside other things: a line with the time when done, if it took long enough to be noticed.
pub fn stage<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    let result = work()?;
    if started.elapsed() >= NOTICED {
        eprintln!("  {what}: {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(result)
}

/// An error and its causes in one line.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands before the first empty line, as one line: of clap's messages, the one that matters.
pub fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Bytes in words.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}
