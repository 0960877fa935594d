//! Remote procedure calls: a request into the server's ring, a reply into the caller's slot, both by RDMA WRITE with
//! immediate. What is too long for ring or slot lies in a buffer of the caller, which the server reads and writes.

mod calls;
mod client;
mod deliver;
mod internal;
mod ring;
mod server;
mod undo;
mod wire;

pub(crate) use calls::ConnRpc;
pub(crate) use internal::{Answer, Ask, INTERNAL, answer};
pub use server::{Call, FunctionId, RpcOptions, RpcServer};
pub(crate) use server::{Service, ServiceTable};
pub(crate) use undo::Undo;
