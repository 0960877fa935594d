//! An RNIC whose link takes time: the RNIC below does the work at once, but the completions come when the
//! link would have carried the bytes. Queue pairs take turns, one work request each, as in a card.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;
use spin::Mutex;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, MemoryKey, QpConnect, QpNum, QpOptions, RecvWr, Rnic,
    SendWr, VerbsError, WorkKind,
};

/// The time that one work request takes in addition to the time for its bytes.
const EACH: Duration = Duration::from_nanos(500);

#[derive(Default)]
struct State {
    /// The work that the link has still to carry, by queue pair.
    waiting: BTreeMap<u32, VecDeque<Finished>>,
    /// The queue pair that had the last turn.
    turn: u32,
    /// The work that the link carries, and the time at which it ends.
    carried: Option<(Instant, Finished)>,
    /// The completions that have come, by completion queue.
    ended: BTreeMap<u16, VecDeque<Completion>>,
}

/// A completion and its queue.
type Finished = (CqId, Completion);

impl State {
    /// Returns the next work request after the last turn.
    fn next(&mut self) -> Option<Finished> {
        let after = self.waiting.range(self.turn + 1..).find(|(_, q)| !q.is_empty()).map(|(n, _)| *n);
        let first = || self.waiting.iter().find(|(_, q)| !q.is_empty()).map(|(n, _)| *n);
        let turn = after.or_else(first)?;
        self.turn = turn;
        self.waiting.get_mut(&turn)?.pop_front()
    }
}

/// The RNIC.
pub struct PacedRnic {
    below: Arc<dyn Rnic>,
    bytes_per_second: u64,
    state: Mutex<State>,
}

impl PacedRnic {
    /// Returns an RNIC over `below` whose link carries `bytes_per_second`.
    #[must_use]
    pub fn new(below: Arc<dyn Rnic>, bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self { below, bytes_per_second, state: Mutex::default() })
    }

    fn time(&self, completion: &Completion) -> Duration {
        EACH + Duration::from_nanos(u64::from(completion.byte_len) * 1_000_000_000 / self.bytes_per_second)
    }
}

impl Rnic for PacedRnic {
    fn attributes(&self) -> Attributes {
        self.below.attributes()
    }

    fn memory_key(&self) -> MemoryKey {
        self.below.memory_key()
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.below.create_cq(options)
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.below.destroy_cq(cq)
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        self.below.create_qp(options)
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        self.below.connect_qp(qp, connect)
    }

    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError> {
        self.below.destroy_qp(qp)
    }

    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.below.post_send(qp, work)
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.below.post_recv(qp, work)
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut state = self.state.lock();
        let mut batch = [Completion::BLANK; 16];
        loop {
            let n = self.below.poll_cq(cq, &mut batch);
            for completion in &batch[..n] {
                if let WorkKind::Recv | WorkKind::RecvWriteImm = completion.kind {
                    state.ended.entry(cq.0).or_default().push_back(*completion);
                } else {
                    state.waiting.entry(completion.qp.get()).or_default().push_back((cq, *completion));
                }
            }
            if n < batch.len() {
                break;
            }
        }
        let ended = state.ended.entry(cq.0).or_default();
        let n = ended.len().min(out.len());
        for (entry, completion) in out.iter_mut().zip(ended.drain(..n)) {
            *entry = completion;
        }
        n
    }

    fn progress(&self, now: Instant, budget: usize) -> bool {
        let mut any = self.below.progress(now, budget);
        let mut state = self.state.lock();
        let mut free = now;
        loop {
            match state.carried {
                Some((until, (cq, completion))) if until <= now => {
                    state.ended.entry(cq.0).or_default().push_back(completion);
                    state.carried = None;
                    free = until;
                    any = true;
                }
                Some(_) => return any,
                None => {}
            }
            let Some(next) = state.next() else { return any };
            state.carried = Some((free + self.time(&next.1), next));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        let waits = state.waiting.values().any(|q| !q.is_empty());
        let carried = state.carried.map(|(until, _)| until);
        carried.or(waits.then_some(Instant::ZERO))
    }

    fn arm(&self) -> bool {
        self.state.lock().ended.values().any(|ended| !ended.is_empty()) || self.below.arm()
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        self.below.counters(each);
    }
}
