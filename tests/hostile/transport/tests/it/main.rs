//! Property tests over hostile input.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod parse;
mod transports;
