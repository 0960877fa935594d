//! Remote procedure calls: a request into the server's ring, a reply into the caller's slot, both by RDMA WRITE with
//! immediate. What is too long for ring or slot lies in memory that the caller lends, which the server reads and writes.
//!
//! # What it holds
//! A server holds for each connected peer a ring, the slots for the replies that it wants of that peer
//! ([`Config::peer_memory`](crate::Config::peer_memory) is both), and at most [`Config::backlog`](crate::Config::backlog)
//! bytes of requests that no task has taken yet. A peer that has more to say waits, first for the function's queue, then for
//! credit of the ring; it cannot overrun anything. Long requests and replies lie with the caller.

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
