//! Completion queues.

use super::memory::written;
use super::stage::{FLAG, PART};
use super::worker::{Worker, is_unsure, saw};
use crate::explore::check::{Act, Cell};
use lite::{CompletionQueue, Error, Op, OpKind};
use std::collections::BTreeMap;

/// The tag of the write in a completion queue; the other tags follow.
const WRITE: u64 = 1;
const READ: u64 = 2;
const ADD: u64 = 3;
const SWAP: u64 = 4;

impl Worker {
    /// Posts a write, a read and two atomics at once.
    pub(super) async fn queue(&mut self) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let cell = self.cell_region(n).await?;
        let timeout = self.timeout();
        let queue = self.lite.with_deadline(timeout).completion_queue(4);
        let half = PART / 2;
        let (len, got) =
            (1 + self.random.below(half as u64) as usize, 1 + self.random.below(half as u64) as usize);
        let data = self.random.bytes(len);
        let member = self.member();
        let writes = self.check.writes(member, n, self.number, 0, &data);
        let reads = self.check.reads(n, self.number);
        let add = self.check.word(member, Cell::Flag(n), Act::Add(0));
        let swap = self.check.word(member, Cell::Flag(n), Act::Swap(0, 1));
        let ops = [
            Op { tag: WRITE, lmr: &region, offset: self.offset(0), kind: OpKind::Write(&data) },
            Op { tag: READ, lmr: &region, offset: self.offset(half), kind: OpKind::Read(got) },
            Op { tag: ADD, lmr: &cell, offset: FLAG, kind: OpKind::FetchAdd(0) },
            Op { tag: SWAP, lmr: &cell, offset: FLAG, kind: OpKind::CompareSwap(0, 1) },
        ];
        let posted = self.run(format!("post 4 operations to region {n}"), timeout, queue.post(&ops)).await;
        let mut bytes = vec![0; half];
        let ends = match &posted {
            Some(Ok(count)) => self.take(&queue, *count, &mut bytes, timeout).await,
            _ => BTreeMap::new(),
        };
        // An operation that was not posted has no effect. If the number of posted ones is unknown, each may
        // have been posted.
        let end = |tag: u64| match (&posted, ends.get(&tag)) {
            (_, Some(result)) => Some(result.clone()),
            (Some(Ok(count)), None) if tag > *count as u64 => Some(Err(Error::Deadline)),
            _ => None,
        };
        self.check.wrote(n, self.number, writes, written(&end(WRITE)));
        let read = matches!(end(READ), Some(Ok(_)));
        self.check.read(n, self.number, reads, read.then_some((half, &bytes[..got])));
        self.check.word_ended(add, saw(&end(ADD)));
        self.check.word_ended(swap, saw(&end(SWAP)));
        self.excuse(ends.get(&ADD));
        (end(WRITE)?.is_ok() && end(SWAP)?.is_ok()).then_some(())
    }

    /// Receives the ends of `count` operations. A read's data goes to `bytes`.
    async fn take(
        &mut self,
        queue: &CompletionQueue,
        count: usize,
        bytes: &mut [u8],
        timeout: std::time::Duration,
    ) -> BTreeMap<u64, Result<u64, Error>> {
        let mut ends = BTreeMap::new();
        if self.random.one_in(3) {
            let fence = async {
                queue.fence().await;
                Ok(())
            };
            if self.run("wait for what was posted", timeout, fence).await.is_none() {
                return ends;
            }
        }
        let mut other = vec![0; bytes.len()];
        while !queue.is_empty() {
            // A read's data goes to a buffer that no other operation uses.
            let next = async { queue.next(&mut other).await.ok_or(Error::Unknown) };
            let Some(Ok(completed)) = self.attempt("take an end", timeout, next).await else { return ends };
            if completed.tag == READ {
                bytes.copy_from_slice(&other);
            }
            if ends.insert(completed.tag, completed.result).is_some() || completed.tag > count as u64 {
                self.violated("each operation ends once", format_args!("tag {}", completed.tag));
            }
        }
        if ends.len() != count {
            self.violated("each operation ends once", format_args!("{ends:?} of {count}"));
        }
        ends
    }

    /// Checks that, in a healthy cluster, nothing fails except because of a dead home.
    fn excuse(&self, end: Option<&Result<u64, Error>>) {
        if let Some(Err(error)) = end
            && self.calm
            && !is_unsure(error)
        {
            self.violated("a healthy cluster works", format_args!("an operation of a queue: {error}"));
        }
    }
}
