//! The library for C and Python: its header, its examples as programs, and its handles under threads that
//! close them.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../../../node/tests/it/proxy.rs"]
mod proxy;
#[path = "../../../node/tests/support/mod.rs"]
mod support;

mod examples;
mod handles;
mod header;
mod programs;
mod silence;
