//! Management of an InfiniBand subnet: datagrams, and the agent that answers them.

pub(crate) mod agent;
pub(crate) mod mad;
