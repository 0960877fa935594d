//! LITE for programs in C, and in languages that can call C: a node of the cluster inside a process.
//!
//! The functions are those of `include/ferrolite.h`, which cbindgen makes from this crate
//! (`FERROLITE_WRITE_HEADER=1 cargo test -p ferrolite --test it header`); `python/ferrolite.py` is a module
//! over them. Every call blocks for at most its `timeout_ms`, returns a status, and may be made by any
//! thread; a handle may be closed while other threads use it (see `handle.rs`). `fl_last_error` returns a
//! text for the last failure.
//!
//! # Neighbours
//! [`lite_node`] below joins the cluster, and [`lite`](mod@lite) is the API that these functions expose in
//! part.
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
