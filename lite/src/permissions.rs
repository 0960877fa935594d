//! Rights on a region.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// Rights on a region; the bits are those of the original LITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct Permissions: u32 {
        /// Read.
        const READ = 1;
        /// Write and memset.
        const WRITE = 2;
        /// May be mapped by name; a region that grants it to nobody cannot be published.
        const SHARE = 4;
        /// Publish, grant and revoke, hand over, move, free. The master has it, and whoever it is granted to.
        const ADMIN = 8;
        /// Fetch-and-add, compare-and-swap.
        const ATOMIC = 16;
    }
}
