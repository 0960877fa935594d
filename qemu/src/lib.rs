//! Virtual machines for appliances: the launcher, the accelerator probe, and the L2 fabric between them.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod fabric;
