//! Hostile input for the RoCE transport: a byte string decides the events, and invariants must hold for all
//! byte strings.
//!
//! Each entry point accepts any bytes and panics if an invariant is violated. The tests of this crate call
//! them with seeded random bytes in every CI run; the fuzz targets in `fuzz/` call them with libFuzzer's
//! input.
//!
//! | entry point | the bytes decide | invariants |
//! |---|---|---|
//! | [`parse()`] | a frame | no panic; a parsed frame emits to an equal one |
//! | [`two_transports`] | work, time, and the network's treatment of each frame | listed there |
//!
//! # Neighbours
//! [`roce`] and [`softroce`] are under test.
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
