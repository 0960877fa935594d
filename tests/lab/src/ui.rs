//! Output for the user: steps with their durations, and one-line errors.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Stages that take longer than this are printed.
const NOTICED: Duration = Duration::from_secs(2);

/// Runs a step that takes a while: shows a spinner on a terminal, and prints a line with the duration at the
/// end.
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

/// Runs a stage beside others. Prints a line with the duration at the end, if it took longer than 2 s.
pub fn stage<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    let result = work()?;
    if started.elapsed() >= NOTICED {
        eprintln!("  {what}: {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(result)
}

/// Returns an error and its causes in one line.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text before the first empty line as one line. In a message of clap this is the essential part.
pub fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats a number of bytes.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}
