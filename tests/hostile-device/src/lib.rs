//! A hostile or dying ConnectX-3 under the mlx4 driver: what a byte string makes the card say, and what the driver is asked to
//! do meanwhile.
//!
//! The card is the emulated one, and between it and the driver is a liar: registers, doorbells that can be
//! read (a virtual function's channel to its master), configuration space, mailboxes, entries of event and completion
//! queues, and all other memory that driver and card share say what the bytes decide, or the card is gone. The tests of this
//! crate call [`device`] with seeded random bytes, in every CI; the fuzz target `device` calls the same with what libFuzzer
//! makes up.
//!
//! What must hold:
//! - The driver does not panic, whatever it is told (nothing in it is unsafe: an access out of bounds is a panic).
//! - Each call ends within [`MOST_TIME`] of virtual time and [`MOST_ACCESSES`] accesses of registers.
//! - Each completion is of work that was posted to its queue pair, and of each at most one.
#![forbid(unsafe_code)]

mod input;
mod liar;
mod run;

pub use liar::{MOST_ACCESSES, MOST_TIME};
pub use run::{Report, device};
