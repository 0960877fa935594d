//! A card whose tables exist, as the functions that create its objects receive it: the machine, the command
//! interface, and the tables. A physical function has tables of its own; a virtual function receives numbers
//! and page entries from its master.

use crate::bringup::capabilities::Capabilities;
use crate::command::{CommandState, Commands};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::icm::layout::LOG_CQS;
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::icm::{Icm, Object, PRESENT, PageRun};
use crate::vf::resources;
use alloc::boxed::Box;
use platform::IoAddr;

/// The source of numbers and page entries.
pub(crate) enum Tables<B> {
    /// Tables in memory lent to the card.
    Own(Box<Icm<B>>),
    /// The master of a virtual function.
    Granted,
}

impl<B> Tables<B> {
    /// Returns the amount of memory lent to the card for tables, in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        match self {
            Self::Own(icm) => icm.bytes(),
            Self::Granted => 0,
        }
    }
}

/// A card with its tables.
pub(crate) struct Device<'a, H: Hardware> {
    pub(crate) commands: Commands<'a, H>,
    tables: &'a mut Tables<H::Block>,
}

impl<'a, H: Hardware> Device<'a, H> {
    /// Makes the device from its state and the machine.
    pub(crate) const fn new(
        hw: &'a H,
        commands: &'a mut CommandState<H::Block>,
        tables: &'a mut Tables<H::Block>,
    ) -> Self {
        Self { commands: Commands::new(hw, commands), tables }
    }

    /// Returns the hardware access.
    pub(crate) const fn hw(&self) -> &'a H {
        self.commands.hw
    }

    /// Ensures that there are table entries for `count` objects from number `first` on.
    pub(crate) fn ensure_icm(&mut self, object: Object, first: u64, count: u64) -> Result<(), Error> {
        match self.tables {
            Tables::Own(icm) => icm.ensure_icm(&mut self.commands, object, first, count),
            Tables::Granted => resources::ensure_icm(&mut self.commands, object, first, count),
        }
    }

    /// Allocates the card's number for the completion queue with an index.
    pub(crate) fn allocate_cqn(&mut self, card: &Capabilities, index: u32) -> Result<u32, Error> {
        match self.tables {
            Tables::Own(_) if index < (1 << LOG_CQS) - card.reserved_cqs => Ok(card.reserved_cqs + index),
            Tables::Own(_) => Err(Error::Exhausted("completion queues")),
            Tables::Granted => resources::allocate_cq(&mut self.commands),
        }
    }

    /// Frees the number of a completion queue that was destroyed on the card.
    pub(crate) fn free_cqn(&mut self, number: u32) -> Result<(), Error> {
        match self.tables {
            Tables::Own(_) => Ok(()),
            Tables::Granted => resources::free_cq(&mut self.commands, number),
        }
    }

    /// Makes page entries for a queue's `bytes` of memory from `addr` on.
    pub(crate) fn map_queue(&mut self, addr: IoAddr, bytes: u64) -> Result<PageRun, Error> {
        let entry = |index: u64| addr.0.wrapping_add(index << LOG_PAGE) | PRESENT;
        self.map(bytes.div_ceil(PAGE), &entry)
    }

    /// Makes `count` page entries. `entry` returns each by its index from 0 on.
    pub(crate) fn map(&mut self, count: u64, entry: &dyn Fn(u64) -> u64) -> Result<PageRun, Error> {
        match self.tables {
            Tables::Own(icm) => icm.map(&mut self.commands, count, entry),
            Tables::Granted => resources::map(&mut self.commands, count, entry),
        }
    }

    /// Frees page entries, which the card must no longer use.
    pub(crate) fn unmap(&mut self, run: PageRun) {
        match self.tables {
            Tables::Own(icm) => icm.unmap(run),
            Tables::Granted => resources::unmap(&mut self.commands, run),
        }
    }
}
