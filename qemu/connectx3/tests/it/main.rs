//! The emulated card, driven as a guest drives it.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod client;
mod clock;
mod datagrams;
mod ethernet;
mod events;
mod failures;
mod hermon;
mod hostile;
mod infiniband;
mod keys;
mod linux;
mod loopback;
mod loss;
mod protection;
mod rdma;
mod slave;
mod switch;
mod unreliable;
mod xrc;
