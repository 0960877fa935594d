//! Wire formats of RoCE version 1 and 2 and of InfiniBand, and the InfiniBand transport over them, without any I/O.
//!
//! [`wire`] takes frames apart and puts them together. [`transport`] is the services of queue pairs as state machines:
//! packets and the time go in, packets come out. Who has frames to move (`softroce`, the emulated ConnectX-3) owns
//! queue pairs and asks them.
#![no_std]
#![deny(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod transport;
pub mod wire;
