//! The software RNIC through its verbs: services, faults, hostile peers, goodput, allocations.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod allocations;
mod behaviour;
mod bottleneck;
mod common;
mod faults;
mod goodput;
mod hostile;
mod huge;
mod recovery;
mod services;
mod verbs;
