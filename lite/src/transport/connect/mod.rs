//! Set-up and end of connections, by messages through the manager.

mod admission;
mod broker;
mod close;
mod connections;
mod setup;
pub(crate) mod wire;

pub(crate) use connections::Connections;
#[cfg(feature = "testing")]
pub(crate) use wire::{End, Envelope, Message, VERSION};
