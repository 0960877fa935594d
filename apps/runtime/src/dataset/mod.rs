//! Datasets: output that stays in the memory of the nodes, as input of later jobs.
//!
//! Each node of the job that makes a dataset keeps its part of the output, in the order in which it writes
//! it, as pieces of its own memory. When the job is done the pieces are regions that other nodes may read and
//! that belong to no job; the manager knows their lengths. A job that reads a dataset reads it by one-sided
//! operations, each node its share, cut where the application's rule allows.

mod keep;
mod load;

pub(crate) use keep::{Keeping, Kept};
pub(crate) use load::load;

use alloc::format;
use alloc::string::String;
use proto::{JobId, NodeId};

/// Returns the name of a piece of the output that a node keeps of a job.
fn name(job: JobId, node: NodeId, piece: usize) -> String {
    format!("dataset/{}/{}/{piece}", job.0, node.0)
}
