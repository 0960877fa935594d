//! The two rings and the call slots of a connection: the layer that knows where messages lie, and
//! not what they mean.

pub(crate) mod area;
pub(crate) mod lent;
pub(crate) mod outbox;
pub(crate) mod ring;
pub(crate) mod slots;
pub(crate) mod wire;

pub(crate) use area::{RpcArea, RpcMemory};
pub(crate) use slots::Channel;
#[cfg(feature = "testing")]
pub(crate) use wire::{Imm, RequestHeader};
