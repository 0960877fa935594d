//! Where the card's tables lie in ICM addresses, and how many entries they have: an appliance's profile.
//!
//! ICM addresses cost nothing; memory is lent only behind entries that are in use. So queue pairs have the numbers that
//! Linux gives them, and the other tables are as small as a card was seen to take (`reference` in docs/hardware.md).

use crate::capabilities::{Capabilities, EqScheme};
use crate::error::Error;
use crate::icm::pages::PAGE;

/// log2 of queue pair numbers, as Linux has it.
pub(crate) const LOG_QPS: u32 = 18;
/// log2 of the READs and atomics that a queue pair answers at once, as Linux has it.
pub(crate) const LOG_RDMARC: u32 = 4;
/// log2 of completion queues: what a card took (stormnic, observed).
pub(crate) const LOG_CQS: u32 = 8;
/// log2 of memory keys: what a card took (stormnic, observed).
pub(crate) const LOG_MPTS: u32 = 9;
/// log2 of pages that queues can have: 512 MiB.
const LOG_MTTS: u32 = 17;
/// Page entries that there are at most: 128 MiB of table, 32 TiB in pages of 2 MiB.
const MOST_MTTS: u64 = 1 << 24;
/// log2 of the event queues that INIT_HCA is told of, as Linux has it.
pub(crate) const LOG_EQS: u32 = 7;
/// log2 of the multicast table's entries, of those found by hash, and of their bytes.
pub(crate) const LOG_GROUPS: u32 = 8;
pub(crate) const LOG_GROUP_HASH: u32 = 7;
pub(crate) const LOG_GROUP_LEN: u32 = 10;
/// Entries of each of the four parts of the cMPT table: of queue pairs, shared receive queues, completion queues, and event
/// queues.
const CMPT_PART: u64 = 1 << 24;

/// The tables.
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

/// How many there are.
pub(crate) const TABLES: usize = 14;

/// A table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// ICM address of the first entry.
    pub(crate) base: u64,
    /// Bytes of what belongs to one object.
    pub(crate) entry: u64,
    /// Objects.
    pub(crate) count: u64,
    /// Objects whose entries the card has from the beginning: those that its firmware keeps.
    pub(crate) reserved: u64,
}

/// All tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    places: [Place; TABLES],
    /// Bytes of ICM addresses.
    pub(crate) total: u64,
    /// log2 of shared receive queues, all of them the firmware's.
    pub(crate) log_srqs: u32,
}

impl Layout {
    /// A table's place.
    pub(crate) const fn place(&self, table: TableId) -> Place {
        self.places[table as usize]
    }

    /// Lays the tables of a card out, with room for a key of `key_pages` page entries. Up to half of the usual page entries are
    /// such a key's; a larger one makes their table larger.
    pub(crate) fn new(card: &Capabilities, key_pages: u64) -> Result<Self, Error> {
        let most = Error::Exhausted("page entries");
        let doubled = key_pages.checked_mul(2).filter(|&pages| pages <= MOST_MTTS).ok_or(most)?;
        let log_mtts = LOG_MTTS.max(doubled.max(1).next_power_of_two().ilog2());
        let sizes = &card.sizes;
        let eqs = match card.eqs {
            // As many as Linux maps, whatever INIT_HCA is told.
            EqScheme::Legacy { reserved } => u64::from(reserved + 1).max(1 << LOG_EQS),
            EqScheme::System { count } => u64::from(count),
        };
        let log_srqs = card.reserved_srqs.next_power_of_two().ilog2();
        let [qps, srqs, cqs] = [LOG_QPS, log_srqs, LOG_CQS].map(|log| 1 << log);
        let [reserved_qps, reserved_srqs, reserved_cqs] =
            [card.reserved_qps, card.reserved_srqs, card.reserved_cqs].map(u64::from);
        let all = |entry, count| Place { base: 0, entry, count, reserved: count };
        let some = |entry, count, reserved| Place { base: 0, entry, count, reserved };
        let part = |reserved| some(sizes.cmpt, CMPT_PART, reserved);
        let mut places = [
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
        if places.iter().any(|place| place.reserved > place.count) {
            return Err(Error::Nonsense("its firmware keeps more objects than its tables hold"));
        }
        let total = pack(&mut places);
        if total > card.max_icm {
            return Err(Error::Lacks("address space for its tables"));
        }
        Ok(Self { places, total, log_srqs })
    }
}

/// Gives tables their addresses: each a multiple of its power of two, the four parts of the cMPT table in one, the largest
/// first. Gives the end.
fn pack(places: &mut [Place; TABLES]) -> u64 {
    const FIRST_PART: usize = TableId::CmptQp as usize;
    const PARTS: u64 = 4;
    let len = |place: &Place| (place.entry * place.count).next_power_of_two().max(PAGE);
    let mut order: [usize; FIRST_PART] = core::array::from_fn(|index| index);
    order.sort_unstable_by_key(|&index| core::cmp::Reverse(places.get(index).map(len)));
    let (tables, parts) = places.split_at_mut(FIRST_PART);
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
    use crate::capabilities::tests::pro;

    #[test]
    fn tables_are_aligned_and_do_not_overlap() {
        let layout = Layout::new(&pro(), 0).unwrap();
        let mut ranges = layout.places.map(|place| (place.base, place.entry * place.count));
        ranges.sort_unstable();
        for (base, len) in ranges {
            assert!(base.is_multiple_of(len.next_power_of_two()), "{base:#x} {len:#x}");
        }
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(ranges.iter().all(|(base, len)| base + len <= layout.total));
        // The parts of cMPT lie one behind the other, as the card counts them.
        let parts = [TableId::CmptQp, TableId::CmptSrq, TableId::CmptCq, TableId::CmptEq];
        assert_eq!(parts.map(|part| layout.place(part).base), [0, 1 << 30, 2 << 30, 3 << 30]);
    }

    #[test]
    fn a_key_of_many_pages_has_a_larger_table_beside_that_of_queues() {
        let entries = |pages| Layout::new(&pro(), pages).map(|layout| layout.place(TableId::Mtt).count);
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
