//! LITE on simulated clusters, and the simulation itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod calls;
mod cluster;
mod death;
mod drain;
mod explore;
mod limits;
mod manager;
mod regions;
mod rpc;
mod scale;
mod set_ups;
mod sometimes;
mod stripes;
mod trace;
