//! LITE for programs in C and whatever can call C: a node of the cluster inside a process.
//!
//! The functions here are those of `include/ferrolite.h`, which is made of this crate (`FERROLITE_WRITE_HEADER=1 cargo test -p
//! ferrolite --test it header`); `python/ferrolite.py` is a module over them. Every call blocks at most as long as its
//! `timeout_ms`, gives a status, and may be made by any thread; a handle may be closed while other threads use it (see
//! `handle.rs`). What a status means in a case is in the text of `fl_last_error`.
#![allow(non_camel_case_types, reason = "the names of the C interface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the rules are the same for all functions: see the header's introduction"
)]

mod boundary;
mod handle;
mod node;
mod region;
mod rpc;
mod status;

pub use node::*;
pub use region::*;
pub use rpc::*;
pub use status::*;
