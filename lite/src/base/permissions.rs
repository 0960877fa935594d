//! The rights on a region.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// The rights on a region; the bits are those of the original LITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct Permissions: u32 {
        /// The right to read the region.
        const READ = 1;
        /// The right to write and to memset.
        const WRITE = 2;
        /// The right to map the region by its name. A region that grants it to no node cannot be published.
        const SHARE = 4;
        /// The right to publish, grant, revoke, hand over, move and free. The master has it, and each node
        /// that it is granted to.
        const ADMIN = 8;
        /// The right to fetch-and-add and compare-and-swap.
        const ATOMIC = 16;
    }
}
