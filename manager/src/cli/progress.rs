//! Progress of a job: bars on a terminal, a few plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use manager::client::Update;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

/// The display of a job's progress, on standard error.
pub(super) struct Progress {
    /// The bar, if standard error is a terminal.
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    /// The number of quarters of the input that have been reported.
    quarter: u64,
    /// The phase that each node reported last.
    phases: BTreeMap<u16, String>,
}

impl Progress {
    /// Makes a display for an input of `total` bytes.
    pub(super) fn new(total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg:24} {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, lines: Mutex::default() }
    }

    /// Shows an update of the job's progress.
    pub(super) fn show(&self, update: Update<'_>) {
        match &self.bar {
            Some(bar) => Self::show_on_bar(bar, update),
            None => self.print(update),
        }
    }

    fn show_on_bar(bar: &ProgressBar, update: Update<'_>) {
        match update {
            Update::Queued { job, reason } => bar.set_message(format!("job {} waits: {reason}", job.0)),
            Update::Accepted { job, nodes } => {
                bar.set_message(format!("job {}, {} nodes", job.0, nodes.len()));
            }
            Update::Input { sent, .. } => bar.set_position(sent),
            Update::Node { node, phase, done, total } => {
                bar.set_message(format!("{node} {phase} {done}/{total}"));
            }
            Update::Output { written } => bar.set_message(format!("output {written} bytes")),
        }
    }

    fn print(&self, update: Update<'_>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        match update {
            Update::Queued { job, reason } => eprintln!("job {} waits: {reason}", job.0),
            Update::Accepted { job, nodes } => eprintln!("job {} runs on {} nodes", job.0, nodes.len()),
            Update::Input { sent, total } => {
                let quarter = u64::try_from(u128::from(sent) * 4 / u128::from(total.max(1))).unwrap_or(4);
                if quarter > lines.quarter {
                    lines.quarter = quarter;
                    eprintln!("input: {sent} of {total} bytes sent");
                }
            }
            Update::Node { node, phase, .. } => {
                if lines.phases.get(&node.0).map(String::as_str) != Some(phase) {
                    lines.phases.insert(node.0, phase.into());
                    eprintln!("{node}: {phase}");
                }
            }
            Update::Output { .. } => {}
        }
    }

    /// Removes the progress bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
