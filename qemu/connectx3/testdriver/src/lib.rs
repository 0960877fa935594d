//! A card plugged into plain memory, and a minimal driver that can bring it up and create queues. The tests
//! of the emulated ConnectX-3, the hostile guest and the tests of Ferrolite's driver use it.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::len_without_is_empty,
    reason = "a library for tests, which fail by panic; names say what registers and fields are"
)]

pub mod driver;
pub mod ethernet;
pub mod keys;
mod machine;
pub mod slave;
pub mod smp;

pub use machine::Machine;
