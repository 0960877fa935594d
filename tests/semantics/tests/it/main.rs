//! The cases on the simulated cluster, and the list of cases itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod docs;
mod session;
mod simulated;
mod support;
