//! Tests of word count: on nodes in one process, and against coreutils.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod cluster;
mod coreutils;
