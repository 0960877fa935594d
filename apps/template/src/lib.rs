//! Counts the lines of a text, and finds the length of the longest, on all nodes at once.
//!
//! The output is `lines<TAB>COUNT` and `longest<TAB>BYTES`. `docs/writing-apps.md` explains each part of this
//! file.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Reduce, Syntax};

/// The room for a message of each node, in bytes.
const ROOM: usize = 4096;

/// The application.
#[derive(Debug)]
pub struct Template;

/// Returns the applications of this crate.
#[must_use]
pub fn apps() -> Vec<Box<dyn App>> {
    vec![Box::new(Template)]
}

/// The name and the arguments.
const SYNTAX: Syntax = Syntax {
    name: "template",
    about: "counts the lines of a text",
    args: &[Arg::optional("least", "BYTES")],
};

/// Returns the length of the shortest line that counts, in bytes.
fn least(args: &[String]) -> Result<usize, JobError> {
    let read = SYNTAX.read(args).and_then(|args| args.number("least", 0..=usize::MAX));
    Ok(read.map_err(JobError::Refused)?.unwrap_or(0))
}

impl App for Template {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::after(|byte| byte == b'\n'))
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        least(&start.args).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// Runs the part of this node.
async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let least = least(&job.start().args)?;
    let (mut lines, mut longest) = (0, 0);
    for split in job.take_splits() {
        let counted = split.bytes.split_inclusive(|&byte| byte == b'\n').map(length);
        for bytes in counted.filter(|&bytes| bytes >= least) {
            lines += 1;
            longest = longest.max(bytes as u64);
        }
    }
    let mut group = job.collective(&vec![ROOM; job.nodes().len()]).await?;
    let sums = group.all_reduce(&[lines], Reduce::Sum).await?;
    let maxima = group.all_reduce(&[longest], Reduce::Max).await?;
    group.close().await?;
    let result = if job.rank() == 0 { format_result(&sums, &maxima) } else { String::new() };
    job.output_in_order(result.into_bytes()).await?;
    Ok(JobReport { counts: vec![("lines".to_string(), lines)], ..JobReport::default() })
}

/// Returns the length of a line without its end.
fn length(line: &[u8]) -> usize {
    line.strip_suffix(b"\n").unwrap_or(line).len()
}

fn format_result(sums: &[u64], maxima: &[u64]) -> String {
    let first = |values: &[u64]| values.first().copied().unwrap_or_default();
    format!("lines\t{}\nlongest\t{}\n", first(sums), first(maxima))
}
