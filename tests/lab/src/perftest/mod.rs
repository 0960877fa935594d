//! The eight programs of perftest between appliances and a Linux guest on one fabric, cell by cell.
//!
//! A cell is one run of one program. It passes if both sides end successfully, the received bytes are the
//! sent ones (by digests of both sides' buffers; Linux's are in a file that its perftest maps), and Linux
//! counts no bad packet on a clean fabric.

pub mod cell;
pub mod judge;
pub mod lab;
pub mod linux;
pub mod plan;
