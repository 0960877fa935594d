//! The job runtime of a node: takes jobs from the manager, runs applications, and gives their output back.
//!
//! An application implements [`App`]. [`serve()`] is the task that a node starts once it is a member: it accepts jobs,
//! gathers their input, runs each as a task with a [`JobContext`], and reports. However a job ends, it leaves nothing behind: its
//! tasks end at their next await, what it made through [`JobContext::lite`] ends as a [scope](lite::Scope) does, its input is
//! dropped. Memory of the platform that an application takes itself is its own to give back.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod context;
mod error;
mod host;
mod input;
mod memory;
mod output;
mod serve;
mod task;

pub use context::{JobContext, Region};
pub use error::JobError;
pub use input::Split;
pub use output::Output;
pub use serve::{End, serve};
pub use task::Join;

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use proto::{AppManifest, JobReport, JobStart};

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An application that a node has compiled in.
pub trait App: Send + Sync {
    /// What it is called and how its input may be cut.
    fn manifest(&self) -> AppManifest;

    /// Bytes of memory that this node's part of a job takes; a job for which the node has less is refused. Unless the
    /// application knows better: its share of the input and half as much again.
    fn memory_needed(&self, start: &JobStart) -> u64 {
        start.share.saturating_add(start.share / 2).saturating_add(2 << 20)
    }

    /// Checks what can be checked of a job before its input comes; the reason is for people.
    fn check(&self, _start: &JobStart) -> Result<(), JobError> {
        Ok(())
    }

    /// Runs this node's part of a job whose input is there. Dropped at an await if the job is cancelled.
    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>>;
}
