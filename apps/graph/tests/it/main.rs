//! Tests of whole jobs on clusters in one process, under virtual time. The test plays the manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod cluster;
mod wire;
