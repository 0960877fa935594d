//! Virtual functions: the channel to the master, which is the driver of the physical function, and the
//! capabilities and resources that a function receives from it.

pub(crate) mod capabilities;
pub(crate) mod channel;
pub(crate) mod resources;
