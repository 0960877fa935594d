//! Remote procedure calls: RDMA WRITE with immediate puts a request into the server's ring and a reply into
//! the caller's slot. A request or reply that is too long for ring or slot is in memory that the caller
//! lends, which the server reads or writes.
//!
//! # Memory
//! For each connected peer a server holds a ring, the slots for the peer's replies
//! ([`Config::peer_memory`](crate::Config::peer_memory) is the sum of both), and at most
//! [`Config::backlog`](crate::Config::backlog) bytes of requests that no task has received yet. A peer with
//! more requests waits, first for the function's queue, then for credit of the ring; it cannot overrun
//! anything. Long requests and replies stay in the caller's memory.

mod call;
mod client;
mod deliver;
mod internal;
mod local;
mod notify;
mod retry;
mod server;
mod service;
mod state;

pub use call::Call;
pub(crate) use call::Caller;
pub(crate) use client::{RawRequest, ReplyTarget, Whom};
pub(crate) use internal::{INTERNAL, InternalRequest, InternalService, answer};
pub(crate) use notify::{Ahead, Notified};
pub(crate) use retry::Rollback;
pub(crate) use server::Registration;
pub use server::{FunctionId, Mailbox, Message, RpcOptions, RpcServer};
#[cfg(feature = "testing")]
pub(crate) use service::Service;
pub(crate) use service::{KnownServices, Takes};
pub(crate) use state::Rpc;
