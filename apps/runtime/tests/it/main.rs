//! The job runtime on clusters in one process, under virtual time; the test is the manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod leftovers;
