//! Orders to the machine of a node: power-off, reset, and the boot of another image in place; orders to its
//! power controller.

use serde::{Deserialize, Serialize};

/// A change of a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerAction {
    /// The machine is turned off.
    Off,
    /// The machine is reset.
    Reset,
}

/// Something that the power controller of a machine (BMC) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerVerb {
    /// The machine is turned on.
    On,
    /// The machine is turned off.
    Off,
    /// The machine is turned off, and then on.
    Cycle,
    /// The power of the machine is looked at.
    Status,
}

impl PowerVerb {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::On, Self::Off, Self::Cycle, Self::Status];

    /// Returns the word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Cycle => "cycle",
            Self::Status => "status",
        }
    }
}

/// The description of an image that a machine boots: an ELF file with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootImage {
    /// The length, in bytes, from 1 to [`MAX_LEN`](Self::MAX_LEN).
    pub len: u64,
    /// The SHA-256 of all bytes.
    pub sha256: [u8; 32],
}

impl BootImage {
    /// The maximum length of an image, in bytes.
    pub const MAX_LEN: u64 = 64 << 20;
    /// The maximum length of a piece, in bytes.
    pub const PIECE: usize = 48 << 10;
    /// The maximum number of bytes that a client has sent and the node has not taken yet.
    pub const WINDOW: u64 = 1 << 20;
}
