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
use runtime::{App, BoxFuture, JobContext, JobError, Reduce};

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

/// The arguments of a job.
struct Args {
    /// The length of the shortest line that counts, in bytes.
    least: usize,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut parsed = Self { least: 0 };
        for arg in args {
            match arg.split_once('=') {
                Some(("least", value)) => {
                    parsed.least = value.parse().map_err(|_| format!("{arg}: want a number of bytes"))?;
                }
                _ => return Err(format!("unknown argument {arg:?}; there is: least=BYTES")),
            }
        }
        Ok(parsed)
    }
}

impl App for Template {
    fn manifest(&self) -> AppManifest {
        AppManifest {
            name: "template".to_string(),
            about: "counts the lines of a text: [least=BYTES]".to_string(),
            cut: CutRule::after(|byte| byte == b'\n'),
        }
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        Args::parse(&start.args).map(drop).map_err(JobError::Refused)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// Runs the part of this node.
async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let args = Args::parse(&job.start().args).map_err(JobError::Refused)?;
    let (mut lines, mut longest) = (0, 0);
    for split in job.take_splits() {
        let counted = split.bytes.split_inclusive(|&byte| byte == b'\n').map(length);
        for bytes in counted.filter(|&bytes| bytes >= args.least) {
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
