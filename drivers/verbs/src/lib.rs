//! The RNIC interface. LITE above and the drivers below (`softroce`, `mlx4`, `ibverbs`) meet only here.
//!
//! Names are those of the InfiniBand Architecture Specification, volume 1, chapters 10 and 11, and of
//! libibverbs. One key covers all memory of a node, so local addresses carry no key, and all remote addresses
//! of a peer carry the same one.
//!
//! # Neighbours
//! [`platform`] provides the memory that work requests name; `roce` is the transport of `softroce`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
mod completion;
mod number;
mod rnic;
mod work;

pub use address::{AddressVector, Gid, LinkKind, MacAddr, PathMtu, PortAddress};
pub use completion::{Completion, Status, WorkKind};
pub use number::{CqId, Psn, QKey, QpNum, RemoteKey, UdQp, WrId};
pub use rnic::{
    Attributes, Counter, CqOptions, MemoryKey, PortState, QpConnect, QpOptions, Rnic, UdOptions, VerbsError,
};
pub use work::{GRH_LEN, Payload, RecvWr, RemoteAddr, SendOp, SendWr, Sge, UdSendWr};
