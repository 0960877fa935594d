//! The description of a machine by its firmware: ACPI's tables and the memory map, read from bytes. This
//! crate is logic only.
//!
//! | module | source | result |
//! |---|---|---|
//! | [`ranges`] | the loader's memory map | sorted runs of RAM; the page for the processors' start |
//! | [`madt`] | MADT | the ids of processors |
//! | [`numa`] | SRAT, SLIT | memory and processors of each NUMA node, nearest nodes first |
//! | [`fadt`] | FADT, DSDT | timers, and the registers for power |
//! | [`power`] | FADT | the steps that turn a machine off, or reset it, in order |
//! | [`spcr`] | SPCR | the serial port of the console |
//!
//! The tables may contain any bytes. A malformed structure ends a list.
//!
//! # Neighbours
//! The kernel finds the tables in memory, checks their checksums, and carries out the steps.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod bytes;
pub mod fadt;
pub mod madt;
pub mod numa;
pub mod power;
pub mod ranges;
pub mod spcr;

pub use bytes::{Bytes, Register};
