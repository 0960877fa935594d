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

mod api;
mod call;
mod calls;
mod client;
mod deliver;
mod insist;
mod internal;
mod lent;
mod local;
mod many;
mod ring;
mod server;
mod service;
mod wire;

pub use call::Call;
pub(crate) use calls::{ConnRpc, OWN_SLOTS};
pub(crate) use insist::Undo;
pub(crate) use internal::{Answer, Ask, INTERNAL, answer};
pub(crate) use local::LocalReplies;
pub use server::{FunctionId, Mailbox, Message, RpcOptions, RpcServer};
pub(crate) use service::{Service, ServiceTable};
#[cfg(feature = "testing")]
pub(crate) use {
    client::{Request, Sink, Whom},
    service::Takes,
    wire::{Imm, RequestHeader},
};
