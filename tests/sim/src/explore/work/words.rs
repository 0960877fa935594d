//! Words that all tasks change concurrently.

use super::stage::{FLAG, PATIENT, RW, TALLIES};
use super::worker::{Worker, saw};
use crate::explore::check::{Act, Cell, End};
use lite::{Counter, Lmr, Permissions};

impl Worker {
    async fn counter(&mut self, kind: &str, n: usize) -> Option<Counter> {
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("{kind}-{n}");
        let open = async { lite.open_counter(&name).await };
        self.run(format!("open {name}"), PATIENT, open).await?.ok()
    }

    pub(super) async fn add(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let counter = self.counter("counter", n).await?.with_deadline(timeout);
        let more = 1 + self.random.below(3);
        let op = self.check.word(self.member(), Cell::Counter(n), Act::Add(more));
        let result = self.run(format!("add {more} to counter {n}"), timeout, counter.add(more)).await;
        self.check.word_ended(op, saw(&result));
        result?.ok().map(drop)
    }

    /// Adds to a word that no other task changes: an addition that happens twice shows in the next one.
    pub(super) async fn tally(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let cell = self.cell_region(n).await?.with_deadline(timeout);
        let (tally, at) = ((n, self.number), TALLIES + 8 * self.number as u64);
        let addend = self.check.adds(tally)?;
        let what = format!("add {addend:#x} to its tally {n}");
        let result = self.run(what, timeout, cell.fetch_add(at, addend)).await;
        match saw(&result) {
            End::Saw(before) => self.check.added(tally, addend, before),
            End::Never => self.check.never_added(tally, addend),
            End::Done | End::Taken | End::Unknown | End::Asked => {}
        }
        result?.ok().map(drop)
    }

    pub(super) async fn swap(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let cell = self.counter("swap", n).await?.with_deadline(timeout);
        let op = self.check.word(self.member(), Cell::Swapped(n), Act::Read);
        let seen = self.run(format!("get swap {n}"), timeout, cell.get()).await;
        self.check.word_ended(op, saw(&seen));
        let (seen, mine) = (seen?.ok()?, self.fresh());
        let op = self.check.word(self.member(), Cell::Swapped(n), Act::Swap(seen, mine));
        let swap = cell.compare_swap(seen, mine);
        let before = self.run(format!("swap {n} from {seen:#x}"), timeout, swap).await;
        self.check.word_ended(op, saw(&before));
        before?.ok().map(drop)
    }

    /// Returns the region with the word that lock `n` guards, and with flag `n`.
    pub(super) async fn cell_region(&mut self, n: usize) -> Option<Lmr> {
        if self.cells[n].is_none() {
            let lite = self.lite.with_deadline(PATIENT);
            let name = format!("cell-{n}");
            let map = async { lite.map(&name, RW | Permissions::ATOMIC).await };
            self.cells[n] = Some(self.run(format!("map {name}"), PATIENT, map).await?.ok()?);
        }
        self.cells[n].clone()
    }

    /// Sets a flag. The task that sets it first may clear it.
    pub(super) async fn flag(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let cell = self.cell_region(n).await?.with_deadline(timeout);
        let op = self.check.word(self.member(), Cell::Flag(n), Act::Swap(0, 1));
        let set = self.run(format!("set flag {n}"), timeout, cell.test_and_set(FLAG)).await;
        let set = set.map(|set| set.map(u64::from));
        self.check.word_ended(op, saw(&set));
        if set?.ok()? == 0 && self.random.one_in(2) {
            let op = self.check.word(self.member(), Cell::Flag(n), Act::Swap(1, 0));
            let clear = cell.compare_swap(FLAG, 1, 0);
            let before = self.run(format!("clear flag {n}"), timeout, clear).await;
            self.check.word_ended(op, saw(&before));
        }
        let op = self.check.word(self.member(), Cell::Flag(n), Act::Read);
        let now = self.run(format!("read flag {n}"), timeout, cell.fetch_add(FLAG, 0)).await;
        self.check.word_ended(op, saw(&now));
        now?.ok().map(drop)
    }
}
