//! The layout of the card's tables in the ICM address space, and their sizes, as an appliance uses them.
//!
//! ICM addresses cost nothing; memory is lent only for entries in use. The range of queue pair numbers is
//! therefore that of Linux, and the other tables are as small as a card was seen to accept.

use crate::bringup::capabilities::{Capabilities, EqScheme};
use crate::error::Error;
use crate::icm::pages::PAGE;

/// log2 of the number of queue pair numbers, as in Linux.
pub(crate) const LOG_QPS: u32 = 18;
/// log2 of the number of READs and atomics that a queue pair accepts at once, as in Linux.
pub(crate) const LOG_RDMARC: u32 = 4;
/// log2 of the number of completion queues that a card accepted (stormnic, observed).
pub(crate) const LOG_CQS: u32 = 8;
/// The maximum number of completion queues. The firmware's reserved ones reduce it.
pub(crate) const MAX_CQS: usize = 1 << LOG_CQS;
/// log2 of the number of memory keys that a card accepted (stormnic, observed).
pub(crate) const LOG_MPTS: u32 = 9;
/// log2 of the number of page entries for queues: 512 MiB.
const LOG_MTTS: u32 = 17;
/// The maximum number of page entries: 128 MiB of table, 32 TiB in pages of 2 MiB.
const MAX_MTTS: u64 = 1 << 24;
/// log2 of the number of event queues in INIT_HCA, as in Linux.
pub(crate) const LOG_EQS: u32 = 7;
/// log2 of the number of entries in the multicast table, of those found by hash, and of the entry size in
/// bytes.
pub(crate) const LOG_GROUPS: u32 = 8;
pub(crate) const LOG_GROUP_HASH: u32 = 7;
pub(crate) const LOG_GROUP_LEN: u32 = 10;
/// The number of entries in each of the four parts of the cMPT table: queue pairs, shared receive queues,
/// completion queues, event queues.
const CMPT_PART: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum TableId {
    Qpc,
    Auxc,
    Altc,
    Rdmarc,
    Srqc,
    Cqc,
    Eqc,
    Dmpt,
    Mtt,
    Groups,
    CmptQp,
    CmptSrq,
    CmptCq,
    CmptEq,
}

/// The number of tables.
pub(crate) const TABLES: usize = 14;

/// The layout of one table of the ICM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// The ICM address of the first entry.
    pub(crate) base: u64,
    /// The size of an object's entries, in bytes.
    pub(crate) entry: u64,
    /// The maximum number of objects in the table.
    pub(crate) count: u64,
    /// The number of objects whose entries have memory from the start, because the firmware uses them.
    pub(crate) reserved: u64,
}

/// The layout of all tables of the ICM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    tables: [Table; TABLES],
    /// The size of the ICM address space in use, in bytes.
    pub(crate) total: u64,
    /// log2 of the number of shared receive queues, all of which are the firmware's.
    pub(crate) log_srqs: u32,
}

impl Layout {
    /// Returns the layout of a table.
    pub(crate) const fn table(&self, table: TableId) -> Table {
        self.tables[table as usize]
    }

    /// Makes a layout with room for a key of `key_pages` page entries. Such a key may take half of the usual
    /// number of page entries; a larger key makes their table larger.
    pub(crate) fn new(card: &Capabilities, key_pages: u64) -> Result<Self, Error> {
        let most = Error::Exhausted("page entries");
        let doubled = key_pages.checked_mul(2).filter(|&pages| pages <= MAX_MTTS).ok_or(most)?;
        let log_mtts = LOG_MTTS.max(doubled.max(1).next_power_of_two().ilog2());
        let sizes = &card.sizes;
        let eqs = match card.eqs {
            // As many as Linux maps, whatever INIT_HCA says.
            EqScheme::Legacy { reserved } => u64::from(reserved + 1).max(1 << LOG_EQS),
            EqScheme::System { count } => u64::from(count),
        };
        let log_srqs = card.reserved_srqs.next_power_of_two().ilog2();
        let [qps, srqs, cqs] = [LOG_QPS, log_srqs, LOG_CQS].map(|log| 1 << log);
        let [reserved_qps, reserved_srqs, reserved_cqs] =
            [card.reserved_qps, card.reserved_srqs, card.reserved_cqs].map(u64::from);
        let all = |entry, count| Table { base: 0, entry, count, reserved: count };
        let some = |entry, count, reserved| Table { base: 0, entry, count, reserved };
        let part = |reserved| some(sizes.cmpt, CMPT_PART, reserved);
        let mut tables = [
            some(sizes.qpc, qps, reserved_qps),
            some(sizes.auxc, qps, reserved_qps),
            some(sizes.altc, qps, reserved_qps),
            some(sizes.rdmarc << LOG_RDMARC, qps, reserved_qps),
            some(sizes.srqc, srqs, reserved_srqs),
            some(sizes.cqc, cqs, reserved_cqs),
            all(sizes.eqc, eqs),
            some(sizes.dmpt, 1 << LOG_MPTS, card.reserved_mpts.into()),
            some(sizes.mtt, 1 << log_mtts, card.reserved_mtts.into()),
            all(1 << LOG_GROUP_LEN, 1 << LOG_GROUPS),
            part(reserved_qps),
            part(reserved_srqs),
            part(reserved_cqs),
            part(eqs),
        ];
        if tables.iter().any(|table| table.reserved > table.count) {
            return Err(Error::Nonsense("its firmware reserves more objects than its tables hold"));
        }
        let total = pack(&mut tables);
        if total > card.max_icm {
            return Err(Error::Lacks("address space for its tables"));
        }
        Ok(Self { tables, total, log_srqs })
    }
}

/// Assigns addresses to the tables, each aligned to its size rounded up to a power of two. The four parts of
/// the cMPT table come first, then the largest tables. Returns the end.
fn pack(tables: &mut [Table; TABLES]) -> u64 {
    const FIRST_PART: usize = TableId::CmptQp as usize;
    const PARTS: u64 = 4;
    let len = |table: &Table| (table.entry * table.count).next_power_of_two().max(PAGE);
    let mut order: [usize; FIRST_PART] = core::array::from_fn(|index| index);
    order.sort_unstable_by_key(|&index| core::cmp::Reverse(tables.get(index).map(len)));
    let (tables, parts) = tables.split_at_mut(FIRST_PART);
    let mut end = 0;
    for part in parts {
        part.base = end;
        end += len(part);
    }
    debug_assert!(end.is_multiple_of(PARTS));
    for index in order {
        if let Some(table) = tables.get_mut(index) {
            table.base = end;
            end += len(table);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bringup::capabilities::tests::pro;

    #[test]
    fn tables_are_aligned_and_do_not_overlap() {
        let layout = Layout::new(&pro(), 0).unwrap();
        let mut ranges = layout.tables.map(|table| (table.base, table.entry * table.count));
        ranges.sort_unstable();
        for (base, len) in ranges {
            assert!(base.is_multiple_of(len.next_power_of_two()), "{base:#x} {len:#x}");
        }
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(ranges.iter().all(|(base, len)| base + len <= layout.total));
        // The parts of cMPT are adjacent, in the order that the card expects.
        let parts = [TableId::CmptQp, TableId::CmptSrq, TableId::CmptCq, TableId::CmptEq];
        assert_eq!(parts.map(|part| layout.table(part).base), [0, 1 << 30, 2 << 30, 3 << 30]);
    }

    #[test]
    fn a_key_of_many_pages_has_a_larger_table_beside_that_of_queues() {
        let entries = |pages| Layout::new(&pro(), pages).map(|layout| layout.table(TableId::Mtt).count);
        assert_eq!(entries(0), Ok(1 << 17));
        assert_eq!(entries(1 << 16), Ok(1 << 17));
        // 1 TB in pages of 2 MiB.
        assert_eq!(entries(524_288), Ok(1 << 20));
        for pages in [1 << 24, u64::MAX] {
            assert_eq!(entries(pages), Err(Error::Exhausted("page entries")));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let crowded = Capabilities { reserved_cqs: 1 << 15, ..pro() };
        assert!(matches!(Layout::new(&crowded, 0), Err(Error::Nonsense(_))));
        let narrow = Capabilities { max_icm: 1 << 32, ..pro() };
        assert!(matches!(Layout::new(&narrow, 0), Err(Error::Lacks(_))));
    }
}
