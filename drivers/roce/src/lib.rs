//! Wire formats of RoCE version 1 and 2 and of InfiniBand, and the InfiniBand transport over them, without
//! any I/O.
//!
//! [`wire`] parses and emits frames. [`transport`] implements the services of queue pairs as state machines:
//! packets and the time go in, packets come out. The users that move frames (`softroce`, the emulated
//! ConnectX-3) own the queue pairs and drive them.
//!
//! # Neighbours
//! [`verbs`] defines the work requests and completions, and `softroce` makes an RNIC of this crate.
#![no_std]
#![deny(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod transport;
pub mod wire;
