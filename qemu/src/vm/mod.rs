//! Virtual machines: what they are made of, how they run, how they ended.

mod exit;
mod run;
mod spec;

pub use exit::Exit;
pub use run::{Event, EventKind, SILENCE, Vm};
pub use spec::{Accel, FwCfg, Machine, Nic, VmSpec, fabric_mac, management_mac};
