//! Moves of a region's memory while nodes use the region, at its owner.
//!
//! A move takes the new memory first, and frees the old memory last. In between it moves one window of the
//! region after another: it makes all mappings hold their operations back, copies the bytes of the window,
//! replaces its pieces, and makes all mappings load the new pieces. Windows are so short that operations
//! wait for about [`PAUSE`], or twice the time of the messages where these take longer; between two windows
//! operations go on for as long as they have waited.
//!
//! The owner decides for each window in one step whether it is in the new or in the old memory. A move that
//! fails moves the windows back. If that fails too, because a node with windows has died, the region keeps
//! all its memory, old and new, and the bytes on the dead node are lost, as those of any region. A region of
//! one window is therefore in the old or in the new memory as a whole, whichever node dies. If the owner
//! itself dies, the region ends.

use super::exclusion::Changing;
use super::layout::{GRAIN, Layout};
use super::mapped::Mapping;
use super::memory::Share as MemoryShare;
use super::owner::RegionOwner;
use super::pages::MOST_PIECES;
use super::request::Request;
use crate::base::qos::Share;
use crate::base::wait::in_window;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::transfer::{Data, Effects};
use crate::{Error, Permissions};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, Range};
use core::time::Duration;

/// The time for which operations shall wait for one window of a move.
const PAUSE: Duration = Duration::from_millis(50);
/// The length of the longest window, in bytes.
const LONGEST: u64 = 64 << 20;
/// The number of bytes of one step of a copy.
const COPY_STEP: u64 = 256 << 10;
/// The number of steps that are done at once.
const COPY_STEPS: usize = 4;
/// The length to which windows grow in any case, in bytes: what a copy has in flight. A copy of less takes
/// as long where latency counts.
const SHORTEST: u64 = COPY_STEP * COPY_STEPS as u64;
/// The time that a copy of [`COPY_STEP`] bytes may take.
const COPY_DEADLINE: Duration = Duration::from_secs(10);

/// The bytes of a region that change their place in one step.
enum Window {
    /// All bytes.
    Whole,
    /// A range of a column.
    Part(usize, Range<u64>),
}

/// The windows that a move has yet to do.
struct Windows {
    /// The ranges of columns, the first last; `None`: the layouts have different columns, or there are no
    /// bytes.
    ranges: Option<Vec<(usize, Range<u64>)>>,
    whole_is_done: bool,
}

impl Windows {
    fn new(old: &Layout, new: &Layout) -> Self {
        let few = old.pieces().count() + new.pieces().count() < MOST_PIECES;
        let ranges = (few && old.has_columns_of(new)).then(|| old.differences(new));
        let ranges = ranges.filter(|ranges| !ranges.is_empty()).map(|mut ranges| {
            ranges.reverse();
            ranges
        });
        Self { ranges, whole_is_done: false }
    }

    /// Takes the next window, of at most `len` bytes if that is possible.
    fn take(&mut self, len: u64) -> Option<Window> {
        let Some(ranges) = &mut self.ranges else {
            return (!core::mem::replace(&mut self.whole_is_done, true)).then_some(Window::Whole);
        };
        let (column, range) = ranges.pop()?;
        let middle = range.start.saturating_add(len);
        if middle < range.end {
            ranges.push((column, middle..range.end));
        }
        Some(Window::Part(column, range.start..middle.min(range.end)))
    }
}

/// The length of windows, by the time that the copy of the last one took.
struct Pace(u64);

impl Pace {
    /// Adapts the length after a window. Operations have waited for its `copy`, and for `messages` to the
    /// nodes that map the region. Where the messages alone take long, as on a slow link, the copy may take as
    /// long as they do; shorter windows would only add messages.
    fn adapt(&mut self, copy: Duration, messages: Duration) {
        let most = PAUSE.saturating_sub(messages).max(messages);
        if self.0 < SHORTEST || copy < most / 2 {
            self.0 = (self.0 * 2).min(LONGEST);
        } else if copy > most {
            self.0 = (self.0 / 2).next_multiple_of(GRAIN).max(SHORTEST);
        }
    }
}

/// The owner of regions as it moves them, hands them over and takes them over. It extends [`RegionOwner`].
#[derive(Clone)]
pub(crate) struct Mover(Arc<RegionOwner>);

impl Deref for Mover {
    type Target = Arc<RegionOwner>;

    fn deref(&self) -> &Arc<RegionOwner> {
        &self.0
    }
}

impl Mover {
    pub(crate) fn of(owner: &Arc<RegionOwner>) -> Self {
        Self(owner.clone())
    }

    /// Moves a region to another layout of the same length, as the comment of the module says. `memory` is
    /// the memory that the other layout has in addition to the region's. `unused` tells which of the region's
    /// former shares the other layout does not use; they are freed after the move.
    pub(super) async fn relocate(
        &self,
        change: Changing<'_>,
        to: Arc<Layout>,
        memory: Vec<MemoryShare>,
        unused: impl Fn(&MemoryShare) -> bool,
    ) -> Result<(), Error> {
        let region = change.region;
        let (from, former) = {
            let mut table = self.regions.table.lock();
            match table.live(region).filter(|r| r.layout.len() == to.len()) {
                Some(r) => {
                    let former = r.memory.len();
                    r.memory.extend(memory);
                    (r.layout.clone(), former)
                }
                None => {
                    drop(table);
                    self.give_memory(memory);
                    return Err(Error::Freed);
                }
            }
        };
        let mut done = Vec::new();
        let result = self.move_windows(region, &to, Windows::new(&from, &to), &mut done).await;
        let is_back = match &result {
            Ok(()) => false,
            // The region is being freed, with all its memory, or its owner is no member any more.
            Err(Error::Freed | Error::LinkDown) => return result,
            Err(_) => {
                sometimes!("a move failed and the region stayed");
                let back = Windows { ranges: Some(done), whole_is_done: false };
                if self.move_windows(region, &from, back, &mut Vec::new()).await.is_err() {
                    sometimes!("a move failed in the middle, and its region keeps all memory");
                    return result;
                }
                true
            }
        };
        let unused = {
            let mut table = self.regions.table.lock();
            let Some(r) = table.any(region) else { return result };
            let new = r.memory.split_off(former);
            if is_back {
                new
            } else {
                let (unused, kept) = core::mem::take(&mut r.memory).into_iter().partition(unused);
                r.memory = kept;
                r.memory.extend(new);
                unused
            }
        };
        // No operation on the unused memory is in flight, and none begins.
        self.give_memory(unused);
        result
    }

    /// Moves windows of a region to another layout. `done` receives those of which parts have been moved.
    async fn move_windows(
        &self,
        region: u64,
        to: &Arc<Layout>,
        mut windows: Windows,
        done: &mut Vec<(usize, Range<u64>)>,
    ) -> Result<(), Error> {
        let mut pace = Pace(self.config.move_window.next_multiple_of(GRAIN));
        while let Some(window) = windows.take(pace.0) {
            let begun = self.platform.now();
            let copy = self.move_window(region, to, &window).await?;
            let now = self.platform.now();
            let took = now - begun;
            pace.adapt(copy, took.saturating_sub(copy));
            if let Window::Part(column, range) = window {
                done.push((column, range));
                if done.len() > 1 {
                    sometimes!("a region was moved in several windows");
                }
                self.timers.until(now + took).await;
            }
        }
        Ok(())
    }

    /// Moves one window of a region, while all its mappings hold their operations back. Returns the time that
    /// the copy took.
    async fn move_window(&self, region: u64, to: &Arc<Layout>, window: &Window) -> Result<Duration, Error> {
        let (old, gate, generation) = {
            let mut table = self.regions.table.lock();
            let r = table.live(region).ok_or(Error::Freed)?;
            r.moving = true;
            (r.layout.clone(), r.gate.clone(), r.generation + 1)
        };
        let plan = match window {
            Window::Whole => Some((old.clone(), to.clone(), to.clone())),
            Window::Part(column, range) => (|| {
                let (source, target) = (old.part(*column, range)?, to.part(*column, range)?);
                Some((source.into(), target.into(), old.with_part_of(to, *column, range)?.into()))
            })(),
        };
        gate.pause();
        let holders = self.regions.holders(region);
        let told = planted(Bug::MoveTellsNobody)
            || self.tell_holders(holders, |mappings| Request::Pause { mappings, generation }).await;
        gate.drained().await;
        let begun = self.platform.now();
        let copied = match &plan {
            Some((source, target, _)) if told => self.copy(source, target).await,
            None => Err(Error::OutOfBounds),
            _ => Err(Error::LinkDown),
        };
        let copied = if planted(Bug::HalfMoved) { Ok(()) } else { copied };
        let copied = copied.map(|()| self.platform.now() - begun);
        // From here on the window is either in the new memory or stays in the old memory.
        if let Some(r) = self.regions.table.lock().any(region) {
            r.generation = generation;
            r.moving = false;
            if let (Ok(_), Some((_, _, mixed))) = (&copied, plan) {
                r.layout = mixed;
            }
        }
        gate.reopen();
        self.regions.changed.wake_all();
        let holders = self.regions.holders(region);
        if !self.tell_holders(holders, |mappings| Request::Resume { mappings, generation }).await {
            return Err(Error::LinkDown);
        }
        copied
    }

    /// Copies all bytes from one layout to another of the same length. No operation of the copy is in
    /// flight after the return.
    async fn copy(&self, from: &Arc<Layout>, to: &Arc<Layout>) -> Result<(), Error> {
        let me = (self.me, self.incarnation);
        let open = |layout: &Layout| {
            let stamp = self.stamp()?;
            Ok::<_, Error>(Mapping::new(me, 0, Permissions::all(), 1, layout.clone(), stamp))
        };
        let (source, target) = (open(from)?, open(to)?);
        let (len, effects, mut done) = (from.len(), Effects::default(), 0);
        let next = || {
            let (at, step) = (done, COPY_STEP.min(len - done));
            done += step;
            (step > 0).then_some(self.copy_step((&source, &target), at, step, &effects))
        };
        let result = in_window(COPY_STEPS, next).await;
        // An attempt that was given up may still be on the wire.
        for mapping in [source, target] {
            mapping.close();
            self.drained(&mapping).await;
        }
        result
    }

    /// Copies `len` bytes at `at` from one mapping to another.
    async fn copy_step(
        &self,
        (source, target): (&Arc<Mapping>, &Arc<Mapping>),
        at: u64,
        len: u64,
        effects: &Effects,
    ) -> Result<(), Error> {
        let mut bytes = alloc::vec![0; len as usize];
        let deadline = self.platform.now() + COPY_DEADLINE;
        let copied = async {
            self.access(source, at, Data::Read(&mut bytes), Share::All, effects).await?;
            self.access(target, at, Data::Write(&bytes), Share::All, effects).await
        };
        self.limit(deadline, &effects.posted, copied).await?;
        platform::yield_now().await;
        Ok(())
    }
}
