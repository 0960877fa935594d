//! The manager: its core event by event, and the daemon as a process.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod core_jobs;
mod core_members;
mod cut;
mod daemon;
mod disk;
mod herd;
mod queues;
mod roles;
mod strangers;
mod support;
