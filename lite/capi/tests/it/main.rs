//! The library for C and Python: its header, and its examples as programs.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod examples;
mod header;
