//! Connections and one-sided operations on them.

pub(crate) mod conn;
pub(crate) mod connect;
pub(crate) mod op;
pub(crate) mod transfer;
