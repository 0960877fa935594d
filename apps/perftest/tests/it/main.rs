//! Tests of perftest between two nodes in memory, and of its messages byte for byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod golden;
mod pair;
mod strangers;
mod support;
