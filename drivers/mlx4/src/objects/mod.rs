//! The card's objects: queues, queue pairs, memory keys, ports and steering entries.

pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod frames;
pub(crate) mod mr;
pub(crate) mod packets;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod qp_context;
pub(crate) mod qpn;
pub(crate) mod steering;
