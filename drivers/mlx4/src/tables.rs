//! Numbers of objects, and page entries of queues: from tables of its own for a physical function, from its master for a
//! virtual one.

use crate::capabilities::Capabilities;
use crate::command::Commands;
use crate::error::Error;
use crate::grants;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::LOG_CQS;
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::icm::{Icm, Object, PRESENT, PageRun};
use alloc::boxed::Box;
use platform::IoAddr;

/// Where they come from.
pub(crate) enum Tables<B> {
    /// Tables in memory lent to the card.
    Own(Box<Icm<B>>),
    /// The master's.
    Granted,
}

impl<B: Block> Tables<B> {
    /// Bytes of memory that the card has for tables.
    pub(crate) const fn bytes(&self) -> u64 {
        match self {
            Self::Own(icm) => icm.bytes(),
            Self::Granted => 0,
        }
    }

    /// Sees to it that there are entries for `count` objects from number `first` on.
    pub(crate) fn back(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        object: Object,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        match self {
            Self::Own(icm) => icm.back(hw, commands, object, first, count),
            Self::Granted => grants::back(hw, commands, object, first, count),
        }
    }

    /// The card's number for the completion queue of an index.
    pub(crate) fn take_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        card: &Capabilities,
        index: u32,
    ) -> Result<u32, Error> {
        match self {
            Self::Own(_) if index < (1 << LOG_CQS) - card.reserved_cqs => Ok(card.reserved_cqs + index),
            Self::Own(_) => Err(Error::Exhausted("completion queues")),
            Self::Granted => grants::completion_queue(hw, commands),
        }
    }

    /// Gives the number of a completion queue back, which the card does not have any more.
    pub(crate) fn give_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        number: u32,
    ) -> Result<(), Error> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Granted => grants::give_completion_queue(hw, commands, number),
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

    /// Makes `count` page entries, as `entry` gives them by their number from 0 on.
    pub(crate) fn map(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        count: u64,
        entry: &dyn Fn(u64) -> u64,
    ) -> Result<PageRun, Error> {
        match self {
            Self::Own(icm) => icm.map(hw, commands, count, entry),
            Self::Granted => grants::map(hw, commands, count, entry),
        }
    }

    /// Gives page entries back. The card no longer uses them.
    pub(crate) fn unmap_queue(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        run: PageRun,
    ) {
        match self {
            Self::Own(icm) => icm.unmap_queue(run),
            Self::Granted => grants::unmap_queue(hw, commands, run),
        }
    }
}
