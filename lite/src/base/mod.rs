//! The lowest layer: time, waiting, memory for operations, identity, settings and counters.

pub(crate) mod bounce;
pub(crate) mod chunks;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod directory;
pub(crate) mod error;
pub(crate) mod lease;
pub(crate) mod local;
pub(crate) mod lock;
pub(crate) mod member;
pub(crate) mod names;
pub(crate) mod near;
pub(crate) mod own;
pub(crate) mod per_shard;
pub(crate) mod permissions;
pub(crate) mod qos;
pub(crate) mod scope;
pub(crate) mod settings;
pub(crate) mod standing;
pub(crate) mod ticket;
pub(crate) mod timer;
pub(crate) mod trace;
mod turns;
pub(crate) mod wait;
pub(crate) mod writers;
