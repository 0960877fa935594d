//! The job runtime of a node: accepts jobs from the manager, runs applications, and returns their output.
//!
//! An application implements [`App`]. [`serve()`] is the task that a node starts once it is a member: it
//! accepts jobs, collects their input, runs each job as a task with a [`JobContext`], and reports the result.
//! A job leaves nothing behind, however it ends: its tasks end at their next await, objects made through
//! [`JobContext::lite`] end as those of a [scope](lite::Scope) do, and its input is dropped. An application
//! that allocates memory of the platform directly must free it itself.
//!
//! # Neighbours
//! [`lite`] below provides memory and calls, [`proto`] the messages; applications such as `mapreduce`
//! are above.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod args;
mod check;
mod collective;
mod context;
mod dataset;
mod error;
mod host;
mod image;
mod input;
mod memory;
mod messages;
mod ordered;
mod output;
mod serve;
mod share;
mod task;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;

pub use args::{Arg, Args, Syntax};
pub use collective::{Collective, Reduce};
pub use context::{JobContext, Region};
pub use error::JobError;
pub use image::Machine;
pub use input::Split;
pub use output::Output;
pub use serve::{End, serve, serve_on};
pub use task::Join;

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use proto::{AppManifest, JobReport, JobStart};

/// A boxed future that can move between processors.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An application that is compiled into a node.
///
/// # Examples
///
/// An application that counts the bytes of its input and prints, on rank 0, its own part:
///
/// ```
/// use proto::{AppManifest, CutRule, JobReport};
/// use runtime::{App, BoxFuture, JobContext, JobError};
///
/// struct CountBytes;
///
/// impl App for CountBytes {
///     fn manifest(&self) -> AppManifest {
///         AppManifest {
///             name: "count-bytes".into(),
///             about: "counts the bytes of its input".into(),
///             cut: CutRule::Anywhere,
///         }
///     }
///
///     fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
///         Box::pin(async move {
///             let bytes: usize = job.take_splits().iter().map(|split| split.bytes.len()).sum();
///             if job.rank() == 0 {
///                 let mut output = job.output();
///                 output.write(format!("{bytes} bytes on rank 0\n").as_bytes()).await?;
///                 output.finish().await?;
///             }
///             job.barrier("counted").await?;
///             // The manager adds up the counts of all nodes.
///             Ok(JobReport { counts: vec![("bytes".into(), bytes as u64)], ..JobReport::default() })
///         })
///     }
/// }
///
/// // A node passes its applications to `runtime::serve`.
/// let apps: Vec<Box<dyn App>> = vec![Box::new(CountBytes)];
/// assert_eq!(apps[0].manifest().name, "count-bytes");
/// ```
pub trait App: Send + Sync {
    /// Returns the application's name and the rule by which its input may be cut.
    fn manifest(&self) -> AppManifest;

    /// Returns the bytes of memory that this node's part of a job needs. A job for which the node has less is
    /// refused. The default is the node's share of the input and half as much again, plus 2 MiB.
    fn memory_needed(&self, start: &JobStart) -> u64 {
        start.share.saturating_add(start.share / 2).saturating_add(2 << 20)
    }

    /// Checks a job before its input arrives, as far as possible.
    ///
    /// # Errors
    ///
    /// [`JobError::Refused`] with a reason for the user.
    fn check(&self, _start: &JobStart) -> Result<(), JobError> {
        Ok(())
    }

    /// Runs this node's part of a job, all of whose input is in memory. If the job is cancelled, the future
    /// is dropped at an await.
    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>>;
}
