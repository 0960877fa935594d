//! Set-up and end of connections: by datagrams with vouchers of the manager, and by messages through it.

mod admission;
mod broker;
mod carrier;
mod close;
mod connections;
mod datagram;
pub(crate) mod endpoint;
mod setup;
pub(crate) mod vouching;
pub(crate) mod wire;

pub(crate) use carrier::Arrivals;
#[cfg(feature = "testing")]
pub(crate) use carrier::Letter;
pub(crate) use connections::Connections;
#[cfg(feature = "testing")]
pub(crate) use wire::{End, Envelope, Message, Request, RpcAreas, SetUp, VERSION};
