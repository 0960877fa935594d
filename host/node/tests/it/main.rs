//! `lite-node` as processes on this host, with a fabric and a manager beside them, and without virtual
//! machines.
#![allow(clippy::unwrap_used, reason = "also the helpers of these tests may fail them")]

mod daemon;
mod proxy;
mod restart;
mod settings;
mod silence;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
