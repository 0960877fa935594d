//! Locks, and words that only their holders use.

use super::stage::{GUARDED, PATIENT};
use super::worker::{Worker, is_unsure, saw};
use crate::explore::check::{Act, Cell, Check, End, Hold, Mode};
use lite::testing::Host;
use lite::{Lmr, Lock, LockGuard};
use std::sync::Arc;
use std::time::Duration;

/// A lock that a task holds. It is released when this is dropped.
struct Held {
    check: Arc<Check>,
    host: Arc<Host>,
    lock: usize,
    hold: Option<u64>,
    guard: Option<LockGuard>,
    /// The time limit of the release.
    timeout: Duration,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A dead machine does not release anything.
        if let Some(hold) = self.hold.filter(|_| !self.host.is_dead()) {
            self.check.released(self.lock, hold);
        }
    }
}

impl Held {
    fn is_lost(&self) -> bool {
        self.guard.as_ref().is_none_or(LockGuard::is_lost)
    }
}

impl Worker {
    async fn open_lock(&mut self, n: usize) -> Option<Lock> {
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("lock-{n}");
        let open = async { lite.open_lock(&name).await };
        self.run(format!("open {name}"), PATIENT, open).await?.ok()
    }

    /// Claims a lock. If it only tries, another task may hold the lock.
    async fn take_lock(&mut self, n: usize, lock: &Lock, mode: Mode, wait: bool) -> Option<Held> {
        let timeout = self.timeout();
        let lock = lock.with_deadline(timeout);
        let member = self.member();
        let floor = self.check.claims(n, member, mode);
        let what = format!("lock {n} {mode:?}{}", if wait { "" } else { ", if it is free" });
        let guard = match mode {
            Mode::Shared => Some(self.run(what, timeout, lock.lock_shared()).await?.ok()?),
            Mode::Exclusive if wait => Some(self.run(what, timeout, lock.lock()).await?.ok()?),
            Mode::Exclusive => self.run(what, timeout, lock.try_lock()).await?.ok()?,
        };
        let guard = guard?;
        let (token, after_death) = (guard.fencing_token().to_u128(), guard.after_death());
        let line =
            format_args!("{} has lock {n} {mode:?}, token {token:#x}, {after_death}", self.name).to_string();
        self.check.log(self.now(), line);
        let hold = self.check.granted(n, Hold { member, mode, token, after_death }, floor);
        let (check, host) = (self.check.clone(), self.host.clone());
        Some(Held { check, host, lock: n, hold, guard: Some(guard), timeout })
    }

    async fn read_guarded(&mut self, n: usize, cell: &Lmr) -> Option<u64> {
        let mut got = [0; 8];
        let op = self.check.word(self.member(), Cell::Guarded(n), Act::Read);
        let timeout = self.timeout();
        let read = cell.with_deadline(timeout);
        let result = self.run(format!("read cell {n}"), timeout, read.read(GUARDED, &mut got)).await;
        let result = result.map(|result| result.map(|()| u64::from_le_bytes(got)));
        self.check.word_ended(op, saw(&result));
        result?.ok()
    }

    async fn write_guarded(&mut self, n: usize, cell: &Lmr) -> Option<()> {
        let value = self.fresh();
        let op = self.check.word(self.member(), Cell::Guarded(n), Act::Write(value));
        let timeout = self.timeout();
        let write = cell.with_deadline(timeout);
        let what = format!("write {value:#x} to cell {n}");
        let result = self.run(what, timeout, write.write(GUARDED, &value.to_le_bytes())).await;
        let end = match &result {
            Some(Ok(())) => End::Done,
            Some(Err(error)) if !is_unsure(error) => End::Never,
            None | Some(Err(_)) => End::Unknown,
        };
        self.check.word_ended(op, end);
        result?.ok()
    }

    /// Holds a lock exclusively, and reads and writes under it.
    pub(super) async fn exclusive(&mut self, wait: bool) -> Option<()> {
        let n = self.shared();
        let lock = self.open_lock(n).await?;
        let cell = self.cell_region(n).await?;
        let mut held = self.take_lock(n, &lock, Mode::Exclusive, wait).await?;
        let read = self.read_guarded(n, &cell).await;
        if self.random.one_in(2) {
            // Some holds are long, so that holders die.
            let longest = if self.random.one_in(8) { 300_000 } else { 3000 };
            let pause = Duration::from_micros(self.random.below(longest));
            self.lite.sleep(pause).await;
        }
        let mut done = read.map(drop);
        // There are several writes, so that an early one may arrive late.
        for _ in 0..=self.random.below(2) {
            done = done.and(self.write_guarded(n, &cell).await);
        }
        if self.random.one_in(2) {
            drop(held);
            return done;
        }
        if let (Some(guard), Some(hold)) = (held.guard.take(), held.hold.take()) {
            self.check.released(n, hold);
            // The home may be out of reach: then the lock is released later.
            let _ = self.run(format!("unlock {n}"), held.timeout, guard.unlock()).await;
        }
        done
    }

    pub(super) async fn hold_shared(&mut self) -> Option<()> {
        let n = self.shared();
        let lock = self.open_lock(n).await?;
        let cell = self.cell_region(n).await?;
        let held = self.take_lock(n, &lock, Mode::Shared, true).await?;
        let first = self.read_guarded(n, &cell).await?;
        let pause = Duration::from_micros(self.random.below(2000));
        self.lite.sleep(pause).await;
        let second = self.read_guarded(n, &cell).await?;
        // A node that has lost its membership holds nothing any more.
        if first != second && !held.is_lost() && self.lite.is_member() {
            let seen = format_args!("lock {n}: {first:#x} became {second:#x} while held shared");
            self.violated("a lock has one holder", seen);
        }
        Some(())
    }
}
