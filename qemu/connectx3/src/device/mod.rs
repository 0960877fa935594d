//! The device: registers, commands, tables in the guest's memory, queues and events. Its inputs are register
//! accesses and frames; it reaches the rest of the machine only through [`Host`]. It needs no QEMU and has no
//! clock of its own.
//!
//! Layouts and behaviour follow the expectations of drivers (Linux `mlx4`, iPXE `hermon`, illumos `hermon`)
//! and observations on cards. Where a comment names one source, the others agree or are silent.

mod adapter;
mod bar0;
mod breakdown;
mod card;
mod clock;
mod command;
pub mod cost;
mod cq;
mod ctx;
mod eq;
mod ethernet;
mod failures;
mod flow;
mod hca;
mod hcr;
mod host;
mod icm;
mod infiniband;
pub(crate) mod layout;
mod mailbox;
mod master;
mod memory;
mod moderation;
mod observe;
pub(crate) mod opcode;
mod port;
mod ports;
mod profile;
mod qp;
mod queue_memory;
mod queues;
mod special;
mod srq;
mod statistics;
mod steering;
mod tables;
mod torn;
mod traffic;
mod uar;
mod vlan;

pub use bar0::BAR0_LEN;
pub use breakdown::Breakdown;
pub use card::Card;
pub use hcr::{Command, Status};
pub use host::{DmaError, Host};
pub use mailbox::Mailbox;
pub use observe::{Doorbell, Observation, Register};
pub use profile::{EqScheme, Function, LinkType, LinkTypes, PortProfile, Profile};
pub(crate) use qp::Transition;
use statistics::Counters;
