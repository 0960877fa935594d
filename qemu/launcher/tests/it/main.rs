//! The launcher, and Linux guests.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod launcher;
mod linux;
