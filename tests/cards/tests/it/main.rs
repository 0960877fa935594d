//! The driver on the emulated card in the same process, and its parts.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;
mod failures;
mod frames;
mod infiniband;
mod linux;
mod lite;
mod mixed;
mod partitions;
mod recovery;
mod remote;
mod resources;
mod second_port;
mod semantics;
mod slave;
mod verbs;
mod vlan;
