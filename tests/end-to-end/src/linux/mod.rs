//! Linux machines beside appliances and without them: as nodes, as peers, and for the bindings to libibverbs.

pub(crate) mod ibverbs;
pub(crate) mod node;
pub(crate) mod peer;
