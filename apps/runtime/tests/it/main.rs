//! Tests of the job runtime on clusters in one process, under virtual time. The test plays the manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod collectives;
mod datasets;
mod leftovers;
mod limits;
