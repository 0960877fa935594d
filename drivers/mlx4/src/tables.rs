//! Numbers of objects, and page entries of queues. A physical function has tables of its own; a virtual
//! function receives numbers and entries from its master.

use crate::capabilities::Capabilities;
use crate::command::Commands;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::LOG_CQS;
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::icm::{Icm, Object, PRESENT, PageRun};
use crate::vf_resources;
use alloc::boxed::Box;
use platform::IoAddr;

/// The source of numbers and page entries.
pub(crate) enum Tables<B> {
    /// Tables in memory lent to the card.
    Own(Box<Icm<B>>),
    /// The master of a virtual function.
    Granted,
}

impl<B: Block> Tables<B> {
    /// Returns the amount of memory lent to the card for tables, in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        match self {
            Self::Own(icm) => icm.bytes(),
            Self::Granted => 0,
        }
    }

    /// Ensures that there are table entries for `count` objects from number `first` on.
    pub(crate) fn ensure_icm(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        object: Object,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        match self {
            Self::Own(icm) => icm.ensure_icm(hw, commands, object, first, count),
            Self::Granted => vf_resources::ensure_icm(hw, commands, object, first, count),
        }
    }

    /// Allocates the card's number for the completion queue with an index.
    pub(crate) fn allocate_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        card: &Capabilities,
        index: u32,
    ) -> Result<u32, Error> {
        match self {
            Self::Own(_) if index < (1 << LOG_CQS) - card.reserved_cqs => Ok(card.reserved_cqs + index),
            Self::Own(_) => Err(Error::Exhausted("completion queues")),
            Self::Granted => vf_resources::allocate_cq(hw, commands),
        }
    }

    /// Frees the number of a completion queue that was destroyed on the card.
    pub(crate) fn free_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        number: u32,
    ) -> Result<(), Error> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Granted => vf_resources::free_cq(hw, commands, number),
        }
    }

    /// Makes page entries for a queue's `bytes` of memory from `addr` on.
    pub(crate) fn map_queue(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        addr: IoAddr,
        bytes: u64,
    ) -> Result<PageRun, Error> {
        let entry = |index: u64| addr.0.wrapping_add(index << LOG_PAGE) | PRESENT;
        self.map(hw, commands, bytes.div_ceil(PAGE), &entry)
    }

    /// Makes `count` page entries. `entry` returns each by its index from 0 on.
    pub(crate) fn map(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        count: u64,
        entry: &dyn Fn(u64) -> u64,
    ) -> Result<PageRun, Error> {
        match self {
            Self::Own(icm) => icm.map(hw, commands, count, entry),
            Self::Granted => vf_resources::map(hw, commands, count, entry),
        }
    }

    /// Frees page entries, which the card must no longer use.
    pub(crate) fn unmap(&mut self, hw: &impl Hardware<Block = B>, commands: &mut Commands<B>, run: PageRun) {
        match self {
            Self::Own(icm) => icm.unmap(run),
            Self::Granted => vf_resources::unmap(hw, commands, run),
        }
    }
}
