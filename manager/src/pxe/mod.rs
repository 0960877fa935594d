//! The PXE service: nodes without a disk load their image from it, and get the key of a node for a token.
//!
//! It answers as a proxy beside the network's DHCP server, which stays in charge of addresses. Machines that
//! are not in the inventory (`cluster.toml`) get no answer.
//!
//! ```text
//! DHCP, ports 67 and 4011 -> the name of a boot program, by the machine's firmware
//! TFTP and HTTP           -> pxelinux or a script for iPXE, with a token; the image
//! enrolment, over Noise   -> the key of a node, for the token
//! ```

mod dhcp;
mod enrol;
mod files;
mod http;
mod inventory;
mod neighbours;
mod server;
mod tftp;
mod tokens;

pub use inventory::InventoryError;
pub use server::{Options, PxeError, Service};

/// The TCP port of HTTP. Scripts for iPXE name it.
const HTTP_PORT: u16 = 18580;
/// The TCP port of enrolments. Command lines of nodes name it.
const ENROL_PORT: u16 = 18501;
