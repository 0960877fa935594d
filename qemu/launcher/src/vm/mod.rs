//! Virtual machines: their specification, their run, their exit.

mod exit;
mod run;
mod spec;

pub use exit::Exit;
pub use run::{Event, EventKind, SILENCE, Vm};
pub use spec::{Accel, FwCfg, Machine, Nic, VmSpec};
