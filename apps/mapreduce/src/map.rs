//! The map phase: workers take pieces of the input from one queue. Each worker has its own table.

use crate::key::Seed;
use crate::table::{Entries, Table};
use crate::{Emitter, MapReduce, Split};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use platform::yield_now;
use proto::CutRule;
use runtime::{JobContext, JobError};
use spin::Mutex;

/// Bytes that a worker maps between two awaits, if records are short. This takes a few milliseconds at most.
const PIECE: usize = 128 << 10;

/// The input of a node, in pieces.
pub(crate) struct Queue {
    splits: Vec<SharedSplit>,
    /// The pieces of input: the index of a split, and a range of its bytes.
    pieces: Vec<(usize, Range<usize>)>,
    next: AtomicUsize,
    bytes: u64,
    mapped: AtomicU64,
    records: AtomicU64,
}

/// A split, kept until all of it has been mapped.
struct SharedSplit {
    split: Mutex<Option<Arc<runtime::Split>>>,
    pieces_left: AtomicUsize,
}

impl Queue {
    /// Returns the pieces of `splits`, which are cut further where the rule allows.
    pub(crate) fn new(splits: Vec<runtime::Split>, rule: &CutRule) -> Self {
        let mut queue = Self {
            splits: Vec::new(),
            pieces: Vec::new(),
            next: AtomicUsize::new(0),
            bytes: 0,
            mapped: AtomicU64::new(0),
            records: AtomicU64::new(0),
        };
        for split in splits {
            let before = queue.pieces.len();
            let mut start = 0;
            while start < split.bytes.len() {
                let end = cut(&split.bytes, start, rule);
                queue.pieces.push((queue.splits.len(), start..end));
                start = end;
            }
            let pieces_left = AtomicUsize::new(queue.pieces.len() - before);
            if before < queue.pieces.len() {
                queue.bytes += split.bytes.len() as u64;
                queue.splits.push(SharedSplit { split: Mutex::new(Some(Arc::new(split))), pieces_left });
            }
        }
        queue
    }

    /// Returns the number of pieces of input.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the bytes mapped so far.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Returns the number of values added so far.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Maps the next piece into `table`. Returns `false` when none is left.
    pub(crate) fn map_next<M: MapReduce>(&self, job: &M, table: &mut Table<M::Value>) -> bool {
        let Some((number, range)) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
            return false;
        };
        let Some(holder) = self.splits.get(*number) else { return false };
        let split = holder.split.lock().clone();
        if let Some(split) = &split {
            let bytes = split.bytes.get(range.clone()).unwrap_or_default();
            let mut emit = Emitter::new(job, table);
            job.map(Split { file: split.file, offset: split.offset + range.start as u64, bytes }, &mut emit);
            self.records.fetch_add(emit.records(), Ordering::Relaxed);
            self.mapped.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        drop(split);
        if holder.pieces_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // This was the split's last piece: its memory is needed for tables.
            drop(holder.split.lock().take());
        }
        true
    }
}

/// Returns the end of the piece that starts at `start`.
fn cut(bytes: &[u8], start: usize, rule: &CutRule) -> usize {
    let Some(rest) = bytes.get(start + PIECE - 1..) else { return bytes.len() };
    match rest.iter().position(|&byte| rule.allows(byte)) {
        Some(more) => start + PIECE + more,
        None => bytes.len(),
    }
}

/// Runs one worker until no piece is left. Returns the entries of its table.
pub(crate) async fn worker<M: MapReduce>(
    context: JobContext,
    job: Arc<M>,
    queue: Arc<Queue>,
) -> Result<Entries<M::Value>, JobError> {
    let mut table = Table::new(Seed::random(&**context.lite().platform()));
    while queue.map_next(&*job, &mut table) {
        if let Some(error) = table.failed() {
            return Err(error.into());
        }
        context.progress("map", queue.mapped(), queue.bytes).await?;
        yield_now().await;
    }
    Ok(table.into_entries()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn pieces(bytes: Vec<u8>, rule: &CutRule) -> Vec<Range<usize>> {
        let split = runtime::Split { file: 0, offset: 5, bytes };
        let queue = Queue::new(vec![split], rule);
        queue.pieces.into_iter().map(|(_, range)| range).collect()
    }

    #[test]
    fn pieces_end_where_the_rule_allows() {
        let lines = CutRule::after(|b| b == b'\n');
        let mut text = vec![b'x'; 3 * PIECE];
        assert_eq!(pieces(text.clone(), &lines), vec![0..3 * PIECE]);
        text[PIECE - 1] = b'\n';
        text[2 * PIECE + 7] = b'\n';
        text[2 * PIECE + 8] = b'\n';
        assert_eq!(
            pieces(text.clone(), &lines),
            vec![0..PIECE, PIECE..2 * PIECE + 8, 2 * PIECE + 8..3 * PIECE]
        );
        let anywhere = pieces(text, &CutRule::Anywhere);
        assert_eq!(anywhere, vec![0..PIECE, PIECE..2 * PIECE, 2 * PIECE..3 * PIECE]);
        assert_eq!(pieces(vec![], &lines), vec![]);
        assert_eq!(pieces(vec![1], &lines), vec![0..1]);
    }
}
