//! A slave's resources, each with its state and its users. A slave's commands may name only these (Linux
//! `mlx4/resource_tracker.c`).

use super::numbers;
use super::pool::Pool;
use crate::device::hcr::Status;
use std::collections::BTreeMap;

/// The result of a check. Linux's master uses error numbers, which are converted to a status on the way back
/// to the slave.
pub(super) type Result<T = ()> = core::result::Result<T, Status>;
/// The error EPERM of Linux's master, as the card's status.
pub(super) const NOT_PERMITTED: Status = Status::BadOpcode;
/// The error EINVAL of Linux's master, as the card's status.
pub(super) const INVALID: Status = Status::BadParameter;
/// The error EBUSY of Linux's master, as the card's status.
pub(super) const BUSY: Status = Status::ResourceBusy;
/// The status for ENOENT, EEXIST and EDQUOT, for which the command interface has no status.
pub(super) const NO_SUCH: Status = Status::Internal;

/// The resources of one kind.
#[derive(Debug)]
pub(super) struct Table<T> {
    pool: Pool,
    records: BTreeMap<u32, T>,
}

impl<T> Table<T> {
    fn new(first: u32, end: u32) -> Self {
        let all = end - first;
        // A quarter is reserved for the physical function.
        Self { pool: Pool::new(first, end, all / 4 * 3), records: BTreeMap::new() }
    }

    /// Returns the slave's quota.
    #[must_use]
    pub(super) const fn quota(&self) -> u32 {
        self.pool.quota()
    }

    /// Allocates consecutive numbers. `make` creates the record of each.
    pub(super) fn add(&mut self, count: u32, align: u32, make: impl Fn() -> T) -> Result<u32> {
        let first = self.pool.take(count, align)?;
        self.records.extend((first..first + count).map(|number| (number, make())));
        Ok(first)
    }

    /// Frees numbers. Fails if `may_go` fails for one of them, because it is in use.
    pub(super) fn remove(&mut self, first: u32, count: u32, may_go: impl Fn(&T) -> Result) -> Result {
        let end = first.checked_add(count).ok_or(NO_SUCH)?;
        if self.records.range(first..end).count() != count as usize {
            return Err(NO_SUCH);
        }
        self.records.range(first..end).try_for_each(|(_, record)| may_go(record))?;
        for number in first..end {
            self.records.remove(&number);
        }
        if count > 0 {
            self.pool.give_back(first, count);
        }
        Ok(())
    }

    /// Returns a record.
    pub(super) fn get(&self, number: u32) -> Result<&T> {
        self.records.get(&number).ok_or(NO_SUCH)
    }

    /// Returns a record for modification.
    pub(super) fn get_mut(&mut self, number: u32) -> Result<&mut T> {
        self.records.get_mut(&number).ok_or(NO_SUCH)
    }
}

/// A range of MTT entries. Its length is a power of two.
#[derive(Debug)]
pub(super) struct MttRange {
    /// log2 of the number of entries.
    pub order: u8,
    /// The number of hardware-owned objects whose pages the entries describe.
    pub users: u32,
}

impl Table<MttRange> {
    /// Allocates a range, aligned to its length.
    pub(super) fn add_range(&mut self, order: u8) -> Result<u32> {
        let first = self.pool.take(1 << order, 1 << order)?;
        self.records.insert(first, MttRange { order, users: 0 });
        Ok(first)
    }

    /// Frees a range.
    pub(super) fn remove_range(&mut self, first: u32) {
        if let Some(range) = self.records.remove(&first) {
            self.pool.give_back(first, 1 << range.order);
        }
    }
}

/// A completion queue or shared receive queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The first MTT entry, while the card owns the queue.
    pub mtt: Option<u32>,
    /// The number of queue pairs that use the queue.
    pub users: u32,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mpt {
    /// The index is reserved for the slave, and its table entry is not allocated.
    Reserved,
    /// The index is reserved and its table entry is allocated.
    Mapped,
    /// The card owns the entry.
    Hardware {
        /// The first MTT entry, unless the region's addresses are bus addresses.
        mtt: Option<u32>,
    },
}

/// The resources that a queue pair uses while the card owns it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpUses {
    /// The first MTT entry.
    pub mtt: u32,
    /// The completion queues of receives and of sends.
    pub cqs: [u32; 2],
    /// The shared receive queue.
    pub srq: Option<u32>,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) enum QpState {
    /// The number is reserved for the slave, and its context is not allocated.
    Reserved,
    /// The number is reserved and its context is allocated.
    Mapped,
    /// The card owns the queue pair.
    Hardware(QpUses),
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    /// The queue pair's state.
    pub state: QpState,
    /// The number of groups of which the queue pair is a member.
    pub groups: u32,
    /// The queue pair's port, counted from 0.
    pub port: usize,
}

impl Qp {
    const fn new(state: QpState) -> Self {
        Self { state, groups: 0, port: 0 }
    }

    /// Fails unless the card owns the queue pair.
    pub(super) const fn expect_hardware(&self) -> Result {
        if matches!(self.state, QpState::Hardware(_)) { Ok(()) } else { Err(BUSY) }
    }
}

/// All resources of a slave, except addresses of ports.
#[derive(Debug)]
pub(super) struct Tracker {
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Completion queues.
    pub cqs: Table<Queue>,
    /// Shared receive queues.
    pub srqs: Table<Queue>,
    /// Memory regions.
    pub mpts: Table<Mpt>,
    /// Ranges of MTT entries.
    pub mtts: Table<MttRange>,
    /// Counters.
    pub counters: Table<()>,
    /// XRC domains.
    pub xrcds: Table<()>,
    /// The first MTT entry of each event queue, by number.
    pub eqs: BTreeMap<u32, u32>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self {
            qps: Table::new(numbers::FIRST_QPN, 1 << numbers::LOG_QPS),
            cqs: Table::new(numbers::RESERVED_CQS, 1 << numbers::LOG_CQS),
            srqs: Table::new(numbers::RESERVED_SRQS, 1 << numbers::LOG_SRQS),
            mpts: Table::new(numbers::RESERVED_MPTS, 1 << numbers::LOG_MPTS),
            mtts: Table::new(numbers::RESERVED_MTTS, 1 << numbers::LOG_MTTS),
            counters: Table::new(0, numbers::SINK_COUNTER),
            xrcds: Table::new(1, 1 << numbers::LOG_XRCDS),
            eqs: BTreeMap::new(),
        }
    }
}

impl Tracker {
    /// Checks that a buffer's MTT entries begin at the start of a range and fit into it.
    pub(super) fn check_mtt(&self, first: u32, entries: u64) -> Result {
        let range = self.mtts.get(first)?;
        if entries > 1 << range.order { Err(NOT_PERMITTED) } else { Ok(()) }
    }

    /// Checks that `entries` entries from `first` on are in one range.
    pub(super) fn check_mtt_part(&self, first: u32, entries: u32) -> Result {
        let (&start, range) = self.mtts.records.range(..=first).next_back().ok_or(INVALID)?;
        let end = u64::from(start) + (1 << range.order);
        if u64::from(first) + u64::from(entries) > end { Err(INVALID) } else { Ok(()) }
    }

    /// Adds or removes a user of a range. The range must have been checked.
    pub(super) fn use_mtt(&mut self, first: u32, used: bool) {
        if let Ok(range) = self.mtts.get_mut(first) {
            range.users = if used { range.users + 1 } else { range.users.saturating_sub(1) };
        }
    }

    /// Records that the card now owns a queue pair that uses `uses`. The caller must have checked `uses`.
    pub(super) fn qp_to_hardware(&mut self, qpn: u32, uses: QpUses) {
        self.count_uses(uses, true);
        if let Ok(qp) = self.qps.get_mut(qpn) {
            qp.state = QpState::Hardware(uses);
        }
    }

    /// Records that the card no longer owns a queue pair.
    pub(super) fn qp_to_mapped(&mut self, qpn: u32) {
        let Ok(qp) = self.qps.get_mut(qpn) else { return };
        let before = std::mem::replace(&mut qp.state, QpState::Mapped);
        if let QpState::Hardware(uses) = before {
            self.count_uses(uses, false);
        }
    }

    fn count_uses(&mut self, uses: QpUses, used: bool) {
        self.use_mtt(uses.mtt, used);
        let count = |queue: Result<&mut Queue>| {
            if let Ok(queue) = queue {
                queue.users = if used { queue.users + 1 } else { queue.users.saturating_sub(1) };
            }
        };
        uses.cqs.into_iter().for_each(|cqn| count(self.cqs.get_mut(cqn)));
        if let Some(srqn) = uses.srq {
            count(self.srqs.get_mut(srqn));
        }
    }

    /// Creates the record of one of the slave's special queue pairs, whose numbers are not from the pool.
    pub(super) fn map_proxy(&mut self, qpn: u32) -> Result {
        if self.qps.records.contains_key(&qpn) {
            return Err(NO_SUCH);
        }
        self.qps.records.insert(qpn, Qp::new(QpState::Mapped));
        Ok(())
    }

    /// Removes the record of a special queue pair.
    pub(super) fn unmap_proxy(&mut self, qpn: u32) {
        self.qps.records.remove(&qpn);
    }

    /// Allocates consecutive queue pair numbers.
    pub(super) fn reserve_qps(&mut self, count: u32, align: u32) -> Result<u32> {
        self.qps.add(count, align, || Qp::new(QpState::Reserved))
    }
}
