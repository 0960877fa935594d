//! Memory lent to the card for its tables (ICM): its size, what is behind which entries, and page entries (MTT), which the
//! driver writes into that memory itself.

pub(crate) mod layout;
pub(crate) mod pages;

use crate::capabilities::Capabilities;
use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use alloc::collections::BTreeMap;
use core::sync::atomic::Ordering;
use layout::{Layout, Place, TABLES, TableId};
use pages::{LOG_PAGE, PAGE, lend};
use platform::runs::Runs;

/// The tables that an object of each kind has entries in.
const OF_QP: [TableId; 5] = [TableId::Qpc, TableId::Auxc, TableId::Altc, TableId::Rdmarc, TableId::CmptQp];
const OF_SRQ: [TableId; 2] = [TableId::Srqc, TableId::CmptSrq];
const OF_CQ: [TableId; 2] = [TableId::Cqc, TableId::CmptCq];
const OF_EQ: [TableId; 2] = [TableId::Eqc, TableId::CmptEq];
const OF_KEY: [TableId; 1] = [TableId::Dmpt];

/// The bit of a page entry that says that there is a page.
pub(crate) const PRESENT: u64 = 1;

/// What has entries in tables.
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

/// One table's memory: by the number of its first page in the table.
struct Lent<B>(BTreeMap<u64, B>);

/// All tables.
pub(crate) struct Icm<B> {
    pub(crate) layout: Layout,
    lent: [Lent<B>; TABLES],
    /// Which page entries are in use: a byte stands for a byte of what their pages hold.
    page_entries: Runs,
    bytes: u64,
    _auxiliary: B,
}

/// Page entries of a queue's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRun {
    first: u64,
    bytes: u64,
}

impl PageRun {
    /// Those of `bytes` bytes, the first of them by its index.
    pub(crate) const fn new(first: u64, bytes: u64) -> Self {
        Self { first, bytes }
    }

    /// The index of the first entry.
    pub(crate) const fn first(self) -> u64 {
        self.first
    }

    /// How many there are.
    pub(crate) const fn pages(self) -> u64 {
        self.bytes >> LOG_PAGE
    }

    /// Byte offset in the table of the first entry, as contexts name it.
    pub(crate) const fn offset(self) -> u64 {
        self.first * 8
    }
}

impl<B: Block> Icm<B> {
    /// Tells the card the size of its tables, and gives it the memory of those entries that it needs at once. A key is to have
    /// `key_pages` page entries.
    pub(crate) fn new(
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        card: &Capabilities,
        key_pages: u64,
    ) -> Result<Self, Error> {
        let layout = Layout::new(card, key_pages)?;
        let size = Command::new(Opcode::SetIcmSize).immediate(layout.total);
        let auxiliary_pages = commands.run(hw, size)?;
        // Some bytes for each page of tables is what a card asks for; more would be a mistake.
        if auxiliary_pages == 0 || auxiliary_pages > layout.total / PAGE {
            return Err(Error::Nonsense("its tables need memory beyond their size"));
        }
        let auxiliary =
            hw.allocate(auxiliary_pages * PAGE).ok_or(Error::NoMemory("the tables of the card's tables"))?;
        lend(hw, commands, Opcode::MapIcmAux, None, auxiliary.addr(), auxiliary_pages)?;
        let mut icm = Self {
            layout,
            lent: core::array::from_fn(|_| Lent(BTreeMap::new())),
            page_entries: Runs::new(layout.place(TableId::Mtt).count << LOG_PAGE),
            bytes: auxiliary_pages * PAGE,
            _auxiliary: auxiliary,
        };
        for object in [Object::Qp, Object::Srq, Object::Cq, Object::Eq, Object::Key] {
            for &table in object.tables() {
                icm.fill(hw, commands, table, 0, icm.layout.place(table).reserved)?;
            }
        }
        icm.fill(hw, commands, TableId::Groups, 0, layout.place(TableId::Groups).count)?;
        // The firmware's page entries are in use for ever.
        let reserved = layout.place(TableId::Mtt).reserved.max(1);
        icm.fill(hw, commands, TableId::Mtt, 0, reserved)?;
        icm.page_entries.take(reserved << LOG_PAGE).ok_or(Error::Exhausted("page entries"))?;
        Ok(icm)
    }

    /// Bytes of memory that the card has for its tables.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sees to it that there is memory behind the entries of `count` objects from number `first` on.
    pub(crate) fn back(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        object: Object,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        object.tables().iter().try_for_each(|&table| self.fill(hw, commands, table, first, count))
    }

    fn fill(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        table: TableId,
        first: u64,
        count: u64,
    ) -> Result<(), Error> {
        let Place { base, entry, count: all, .. } = self.layout.place(table);
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
            let block = hw.allocate(pages * PAGE).ok_or(Error::NoMemory("the card's tables"))?;
            lend(hw, commands, Opcode::MapIcm, Some(base + page * PAGE), block.addr(), pages)?;
            lent.insert(page, block);
            self.bytes += pages * PAGE;
            page = next;
        }
        Ok(())
    }

    /// Writes `count` page entries, as `entry` gives them by their number from 0 on.
    pub(crate) fn map(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        count: u64,
        entry: &dyn Fn(u64) -> u64,
    ) -> Result<PageRun, Error> {
        let bytes = count.checked_mul(PAGE).ok_or(Error::Exhausted("page entries"))?;
        let (start, bytes) = self.page_entries.take(bytes).ok_or(Error::Exhausted("page entries"))?;
        let run = PageRun { first: start >> LOG_PAGE, bytes };
        let written = self
            .fill(hw, commands, TableId::Mtt, run.first, bytes >> LOG_PAGE)
            .and_then(|()| self.write_pages(run, entry));
        if written.is_err() {
            self.unmap_queue(run);
        }
        written.map(|()| run)
    }

    fn write_pages(&self, run: PageRun, entry: &dyn Fn(u64) -> u64) -> Result<(), Error> {
        const IN_PAGE: u64 = PAGE / 8;
        let missing = Error::Exhausted("page entries");
        let Some(Lent(lent)) = self.lent.get(TableId::Mtt as usize) else { return Err(missing) };
        for index in 0..run.bytes >> LOG_PAGE {
            let place = run.first + index;
            let (at, block) = lent.range(..=place / IN_PAGE).next_back().ok_or(missing)?;
            let word = block.get((place - at * IN_PAGE) as usize).ok_or(missing)?;
            word.store(entry(index).to_be(), Ordering::Release);
        }
        Ok(())
    }

    /// Gives page entries back. The card no longer uses them.
    pub(crate) fn unmap_queue(&mut self, run: PageRun) {
        self.page_entries.give(run.first << LOG_PAGE, run.bytes);
    }
}

fn pages_of<B: Block>(block: &B) -> u64 {
    block.len() as u64 * 8 / PAGE
}
