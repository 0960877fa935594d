//! The transport and its wire formats: captures of Linux, property tests, and each error.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod captures;
mod common;
mod icrc;
mod infiniband;
mod replay;
mod responder;
mod responder_duplicates;
mod responder_errors;
mod uc;
mod ud;
mod xrc;
