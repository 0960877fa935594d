//! Bandwidth tests: as many operations at a time as the depth of the queues allows.

use crate::atomics::Fetched;
use crate::buffer::Slots;
use crate::error::Error;
use crate::options::Verb;
use crate::session::{BATCH, Session, Wait};
use alloc::vec;
use alloc::vec::Vec;
use platform::Instant;

/// No peak is computed for more operations than this, as in perftest.
const PEAK_MAX: u64 = 20_000;

/// The operations after which the RNIC is driven while more are posted. A card begins with the first
/// operation; an RNIC in software begins when it is driven.
const DRIVEN: u32 = 16;

/// The directions in which this side takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// True if this side posts operations.
    pub sends: bool,
    /// True if this side receives SENDs. The first receives are posted already.
    pub receives: bool,
}

/// The start and the end of a run with one message size.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The time of the beginning.
    pub start: Instant,
    /// The time of the end.
    pub end: Instant,
    /// The time at which each operation was posted, in order; empty if no peak is computed.
    pub posted: Vec<Instant>,
    /// Numbers of completed operations, each with the time at which it was reached.
    pub completed: Vec<(u64, Instant)>,
}

/// Sends and receives all messages of one size.
pub(crate) async fn bandwidth(
    session: &Session<'_>,
    slots: &Slots,
    flow: Flow,
    fetched: &mut Fetched,
) -> Result<Sent, Error> {
    let mut progress = Progress::new(session, slots, flow);
    // In a bidirectional test of SENDs the server waits for the client's first.
    let mut begun = session.client || !flow.receives;
    let mut wait = Wait::new(session.host);
    while !progress.is_done() {
        if flow.sends && begun {
            progress.post()?;
        }
        let arrived = if flow.receives { progress.receive()? } else { 0 };
        begun |= arrived > 0;
        let completed = if flow.sends { progress.complete(fetched)? } else { 0 };
        if arrived + completed > 0 {
            wait.progressed();
        }
        wait.pause().await?;
    }
    progress.times.end = session.host.now();
    Ok(progress.times)
}

/// The progress of a bandwidth test with messages of one size.
struct Progress<'a> {
    session: &'a Session<'a>,
    slots: &'a Slots,
    flow: Flow,
    /// Operations in all, on all queue pairs.
    total: u64,
    /// The most operations in flight on a queue pair.
    depth: u32,
    /// The number of operations per signaled operation.
    moderation: u32,
    /// Operations posted, by queue pair.
    sent: Vec<u32>,
    /// Operations completed, by queue pair.
    done: Vec<u32>,
    /// Receives posted, by queue pair.
    receives: Vec<u32>,
    total_done: u64,
    total_received: u64,
    /// True if the times of operations are recorded.
    peak: bool,
    times: Sent,
}

impl<'a> Progress<'a> {
    fn new(session: &'a Session<'a>, slots: &'a Slots, flow: Flow) -> Self {
        let options = session.options;
        let total = u64::from(options.iterations) * u64::from(options.queue_pairs);
        let atomic = options.program.verb == Verb::Atomic;
        let queue_pairs = options.queue_pairs as usize;
        let peak = options.peak && flow.sends && total <= PEAK_MAX;
        let room = if peak { total as usize } else { 0 };
        Self {
            session,
            slots,
            flow,
            total,
            // Each atomic in flight needs a slot of its own for its result.
            depth: if atomic { options.tx_depth.min(slots.count) } else { options.tx_depth },
            moderation: if atomic { 1 } else { options.moderation },
            sent: vec![0; queue_pairs],
            done: vec![0; queue_pairs],
            receives: vec![options.rx_depth; queue_pairs],
            total_done: 0,
            total_received: 0,
            peak,
            times: Sent {
                start: session.host.now(),
                end: session.host.now(),
                posted: Vec::with_capacity(room),
                completed: Vec::with_capacity(room),
            },
        }
    }

    fn is_done(&self) -> bool {
        !(self.flow.sends && self.total_done < self.total
            || self.flow.receives && self.total_received < self.total)
    }

    /// Posts operations on each queue pair until it has `depth` in flight.
    fn post(&mut self) -> Result<(), Error> {
        let n = self.session.options.iterations;
        for (index, (sent, done)) in self.sent.iter_mut().zip(&self.done).enumerate() {
            while *sent < n && *sent - *done < self.depth {
                let last = *sent + 1 == n;
                let signaled = last || (*sent + 1).is_multiple_of(self.moderation);
                if self.peak {
                    self.times.posted.push(self.session.host.now());
                }
                self.session.post(index as u32, *sent, self.slots, signaled)?;
                *sent += 1;
                if sent.is_multiple_of(DRIVEN) {
                    self.session.host.drive();
                }
            }
        }
        Ok(())
    }

    /// Handles messages that have arrived and posts receives for later ones. Returns the number of messages.
    fn receive(&mut self) -> Result<usize, Error> {
        let (session, slots, receives) = (self.session, self.slots, &mut self.receives);
        let arrived = session.received::<BATCH>(slots.size, |queue_pair, _| {
            let Some(posted) = receives.get_mut(queue_pair as usize) else { return Ok(()) };
            if *posted < session.options.iterations {
                session.post_receive(queue_pair, *posted, slots)?;
                *posted += 1;
            }
            Ok(())
        })?;
        self.total_received += arrived as u64;
        Ok(arrived)
    }

    /// Handles completions of operations, and checks those of atomics. Returns the number of completions.
    fn complete(&mut self, fetched: &mut Fetched) -> Result<usize, Error> {
        let (session, slots) = (self.session, self.slots);
        let (done, total_done) = (&mut self.done, &mut self.total_done);
        let atomic = session.options.program.verb == Verb::Atomic;
        let mut checked = Ok(());
        let completed = session.completed(|queue_pair, m| {
            let Some(done) = done.get_mut(queue_pair as usize) else { return };
            // Completions are in order: unsignaled operations before this one are done too.
            *total_done += u64::from(m + 1 - *done);
            *done = m + 1;
            if atomic && checked.is_ok() {
                checked = fetched.take(session, queue_pair, m, slots);
            }
        })?;
        checked?;
        if completed > 0 && self.peak {
            self.times.completed.push((self.total_done, session.host.now()));
        }
        Ok(completed)
    }
}
