//! Hostile input for the RoCE transport: what a byte string makes happen, and what must hold whatever it says.
//!
//! Each entry takes any bytes and panics if something does not hold. The tests of this crate call them with seeded random
//! bytes, in every CI; the fuzz targets in `fuzz/` call the same with what libFuzzer makes up.
//!
//! | entry | bytes are | what must hold |
//! |---|---|---|
//! | [`parse()`] | a frame | no panic; what parses emits to the same |
//! | [`two_transports`] | work, time, and what a network does to each frame | see there |
#![forbid(unsafe_code)]

mod forge;
mod input;
mod model;
mod node;
mod parse;
mod transports;
mod wire;

pub use parse::parse;
pub use transports::{Report, two_transports};
