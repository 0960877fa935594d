//! Memory lent to the card for its tables (ICM): its size, the memory behind the entries in use, and page
//! entries (MTT), which the driver writes into that memory itself.

pub(crate) mod layout;
pub(crate) mod pages;

use crate::bringup::capabilities::Capabilities;
use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use alloc::collections::BTreeMap;
use core::sync::atomic::Ordering;
use layout::{Layout, TABLES, Table, TableId};
use pages::{LOG_PAGE, PAGE, lend};
use platform::runs::Runs;

/// The tables in which an object of each kind has entries.
const OF_QP: [TableId; 5] = [TableId::Qpc, TableId::Auxc, TableId::Altc, TableId::Rdmarc, TableId::CmptQp];
const OF_SRQ: [TableId; 2] = [TableId::Srqc, TableId::CmptSrq];
const OF_CQ: [TableId; 2] = [TableId::Cqc, TableId::CmptCq];
const OF_EQ: [TableId; 2] = [TableId::Eqc, TableId::CmptEq];
const OF_KEY: [TableId; 1] = [TableId::Dmpt];

/// The bit of a page entry that marks the page as present.
pub(crate) const PRESENT: u64 = 1;

/// A kind of object with entries in tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    Qp,
    Srq,
    Cq,
    Eq,
    Key,
}

impl Object {
    const fn tables(self) -> &'static [TableId] {
        match self {
            Self::Qp => &OF_QP,
            Self::Srq => &OF_SRQ,
            Self::Cq => &OF_CQ,
            Self::Eq => &OF_EQ,
            Self::Key => &OF_KEY,
        }
    }
}

/// The memory of one table, by the index of its first page in the table.
struct Lent<B>(BTreeMap<u64, B>);

/// The tables of objects that the card keeps in host memory (ICM), with the memory lent for each.
pub(crate) struct Icm<B> {
    pub(crate) layout: Layout,
    lent: [Lent<B>; TABLES],
    /// The allocator of page entries. One of its bytes stands for a byte of the mapped pages.
    page_entries: Runs,
    bytes: u64,
    _auxiliary: B,
}

/// The page entries of a queue's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRun {
    first: u64,
    bytes: u64,
}

impl PageRun {
    /// Makes the run of entries for `bytes` bytes, from the entry with index `first` on.
    pub(crate) const fn new(first: u64, bytes: u64) -> Self {
        Self { first, bytes }
    }

    /// Returns the index of the first entry.
    pub(crate) const fn first(self) -> u64 {
        self.first
    }

    /// Returns the number of page entries.
    pub(crate) const fn pages(self) -> u64 {
        self.bytes >> LOG_PAGE
    }

    /// Returns the byte offset of the first entry in the table, as contexts name it.
    pub(crate) const fn offset(self) -> u64 {
        self.first * 8
    }
}

impl<B> Icm<B> {
    /// Returns the amount of memory lent to the card for its tables, in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<B: Block> Icm<B> {
    /// Tells the card the size of its tables, and lends it the memory of the entries that it needs at once.
    /// `key_pages` is the number of page entries of a key.
    pub(crate) fn new(
        commands: &mut Commands<'_, impl Hardware<Block = B>>,
        card: &Capabilities,
        key_pages: u64,
    ) -> Result<Self, Error> {
        let layout = Layout::new(card, key_pages)?;
        let size = Command::new(Opcode::SetIcmSize).immediate(layout.total);
        let auxiliary_pages = commands.exec(size)?;
        // A card needs a few bytes for each page of its tables; a larger value must be wrong.
        if auxiliary_pages == 0 || auxiliary_pages > layout.total / PAGE {
            return Err(Error::Nonsense("its tables need more memory than their size"));
        }
        let auxiliary = commands
            .hw
            .allocate(auxiliary_pages * PAGE)
            .ok_or(Error::NoMemory("the tables of the card's tables"))?;
        lend(commands, Opcode::MapIcmAux, None, auxiliary.addr(), auxiliary_pages)?;
        let mut icm = Self {
            layout,
            lent: core::array::from_fn(|_| Lent(BTreeMap::new())),
            page_entries: Runs::new(layout.table(TableId::Mtt).count << LOG_PAGE),
            bytes: auxiliary_pages * PAGE,
            _auxiliary: auxiliary,
        };
        for object in [Object::Qp, Object::Srq, Object::Cq, Object::Eq, Object::Key] {
            for &table in object.tables() {
                icm.fill(commands, table, 0, icm.layout.table(table).reserved)?;
            }
        }
        icm.fill(commands, TableId::Groups, 0, layout.table(TableId::Groups).count)?;
        // The firmware uses its page entries permanently.
        let reserved = layout.table(TableId::Mtt).reserved.max(1);
        icm.fill(commands, TableId::Mtt, 0, reserved)?;
        icm.page_entries.take(reserved << LOG_PAGE).ok_or(Error::Exhausted("page entries"))?;
        Ok(icm)
    }

    /// Ensures that there is memory for the entries of `count` objects from number `first` on.
    pub(crate) fn ensure_icm(
        &mut self,
        commands: &mut Commands<'_, impl Hardware<Block = B>>,
        object: Object,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        object.tables().iter().try_for_each(|&table| self.fill(commands, table, first, count))
    }

    fn fill(
        &mut self,
        commands: &mut Commands<'_, impl Hardware<Block = B>>,
        table: TableId,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        let Table { base, entry, count: all, .. } = self.layout.table(table);
        if count == 0 || first >= all || count > all - first {
            return if count == 0 { Ok(()) } else { Err(Error::Exhausted("entries of a table")) };
        }
        let (mut page, end) = (first * entry / PAGE, ((first + count) * entry).div_ceil(PAGE));
        let Some(Lent(lent)) = self.lent.get_mut(table as usize) else { return Ok(()) };
        while page < end {
            let known = lent.range(..=page).next_back().map(|(at, block)| at + pages_of(block));
            if let Some(after) = known.filter(|&after| after > page) {
                page = after;
                continue;
            }
            let next = lent.range(page..end).next().map_or(end, |(&at, _)| at);
            let pages = next - page;
            let block = commands.hw.allocate(pages * PAGE).ok_or(Error::NoMemory("the card's tables"))?;
            lend(commands, Opcode::MapIcm, Some(base + page * PAGE), block.addr(), pages)?;
            lent.insert(page, block);
            self.bytes += pages * PAGE;
            page = next;
        }
        Ok(())
    }

    /// Writes `count` page entries. `entry` returns each by its index from 0 on.
    pub(crate) fn map(
        &mut self,
        commands: &mut Commands<'_, impl Hardware<Block = B>>,
        count: u64,
        entry: &dyn Fn(u64) -> u64,
    ) -> Result<PageRun, Error> {
        let bytes = count.checked_mul(PAGE).ok_or(Error::Exhausted("page entries"))?;
        let (start, bytes) = self.page_entries.take(bytes).ok_or(Error::Exhausted("page entries"))?;
        let run = PageRun { first: start >> LOG_PAGE, bytes };
        let written = self
            .fill(commands, TableId::Mtt, run.first, bytes >> LOG_PAGE)
            .and_then(|()| self.write_pages(run, entry));
        if written.is_err() {
            self.unmap(run);
        }
        written.map(|()| run)
    }

    fn write_pages(&self, run: PageRun, entry: &dyn Fn(u64) -> u64) -> Result<(), Error> {
        const IN_PAGE: u64 = PAGE / 8;
        let missing = Error::Exhausted("page entries");
        let Some(Lent(lent)) = self.lent.get(TableId::Mtt as usize) else { return Err(missing) };
        for index in 0..run.bytes >> LOG_PAGE {
            let page = run.first + index;
            let (at, block) = lent.range(..=page / IN_PAGE).next_back().ok_or(missing)?;
            let word = block.get((page - at * IN_PAGE) as usize).ok_or(missing)?;
            word.store(entry(index).to_be(), Ordering::Release);
        }
        Ok(())
    }

    /// Frees page entries, which the card must no longer use.
    pub(crate) fn unmap(&mut self, run: PageRun) {
        self.page_entries.give(run.first << LOG_PAGE, run.bytes);
    }
}

fn pages_of<B: Block>(block: &B) -> u64 {
    block.len() as u64 * 8 / PAGE
}
