//! A hostile or dying ConnectX-3 under the mlx4 driver: a byte string decides the card's data and the calls
//! of the driver.
//!
//! The card is the emulated one, with a liar between it and the driver. The bytes decide the contents of
//! registers, of readable doorbells (a virtual function's channel to its master), of the configuration space,
//! of mailboxes, of entries of event and completion queues, and of all other memory shared by driver and
//! card; or the card leaves the bus. The tests of this crate call [`device`] with seeded random bytes in
//! every CI run; the fuzz target `device` calls it with libFuzzer's input.
//!
//! Invariants:
//! - The driver does not panic, whatever it reads. (It contains no unsafe code, so an access out of bounds is
//!   a panic.)
//! - Each call ends within [`MAX_TIME`] of virtual time and [`MAX_ACCESSES`] accesses of registers.
//! - Each completion is of work that was posted to its queue pair, and there is at most one for each.
//!
//! # Neighbours
//! [`mlx4`] is the driver under test; `hostile-card` is the reverse, a hostile guest.
#![forbid(unsafe_code)]

mod input;
mod liar;
mod run;

pub use liar::{MAX_ACCESSES, MAX_TIME};
pub use run::{Report, device};
