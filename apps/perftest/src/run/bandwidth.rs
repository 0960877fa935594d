//! As many operations at a time as the depth of the queues allows.

use crate::atomics::Fetched;
use crate::buffer::Slots;
use crate::error::Error;
use crate::options::Verb;
use crate::session::{Session, Wait};
use alloc::vec;
use alloc::vec::Vec;
use platform::Instant;

/// Beyond so many operations no peak is looked for, as in perftest.
const PEAK_MAX: u64 = 20_000;

/// What this side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// It posts operations.
    pub sends: bool,
    /// It takes SENDs. The first receives are posted already.
    pub receives: bool,
}

/// When what was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The beginning.
    pub start: Instant,
    /// The end.
    pub end: Instant,
    /// When each operation was posted, in order; empty if there is no peak to look for.
    pub posted: Vec<Instant>,
    /// How many operations were completed by when.
    pub completed: Vec<(u64, Instant)>,
}

/// Sends and receives all messages of one size.
pub async fn bandwidth(
    session: &Session<'_>,
    slots: &Slots,
    flow: Flow,
    fetched: &mut Fetched,
) -> Result<Sent, Error> {
    let options = session.options;
    let (n, queue_pairs) = (options.iterations, options.queue_pairs);
    let total = u64::from(n) * u64::from(queue_pairs);
    let atomic = options.program.verb == Verb::Atomic;
    // A queue for its atomics only holds as many as there are slots for their results.
    let depth = if atomic { options.tx_depth.min(slots.count) } else { options.tx_depth };
    let moderation = if atomic { 1 } else { options.moderation };
    let (mut sent, mut done, mut posted_receives) = (
        vec![0u32; queue_pairs as usize],
        vec![0u32; queue_pairs as usize],
        vec![options.rx_depth; queue_pairs as usize],
    );
    let (mut total_done, mut total_received) = (0u64, 0u64);
    let peak = options.peak && flow.sends && total <= PEAK_MAX;
    let room = if peak { total as usize } else { 0 };
    let mut result = Sent {
        start: session.host.now(),
        end: session.host.now(),
        posted: Vec::with_capacity(room),
        completed: Vec::with_capacity(room),
    };
    // In a bidirectional test of SENDs the server waits for the client's first.
    let mut begun = session.client || !flow.receives;
    let mut wait = Wait::new(session.host);
    while flow.sends && total_done < total || flow.receives && total_received < total {
        if flow.sends && begun {
            for (index, (sent, done)) in sent.iter_mut().zip(&done).enumerate() {
                while *sent < n && *sent - *done < depth {
                    let last = *sent + 1 == n;
                    let signaled = last || (*sent + 1).is_multiple_of(moderation);
                    if peak {
                        result.posted.push(session.host.now());
                    }
                    session.post(index as u32, *sent, slots, signaled)?;
                    *sent += 1;
                }
            }
        }
        let mut came = 0;
        if flow.receives {
            came = session.received(slots.size, |queue_pair, _| {
                let Some(posted) = posted_receives.get_mut(queue_pair as usize) else { return Ok(()) };
                if *posted < n {
                    session.post_receive(queue_pair, *posted, slots)?;
                    *posted += 1;
                }
                Ok(())
            })?;
            total_received += came as u64;
            begun |= came > 0;
        }
        let mut ended = 0;
        if flow.sends {
            let mut result_of = Ok(());
            ended = session.completed(|queue_pair, m| {
                let Some(done) = done.get_mut(queue_pair as usize) else { return };
                // Completions are in order: what was not signaled before it is done too.
                total_done += u64::from(m + 1 - *done);
                *done = m + 1;
                if atomic && result_of.is_ok() {
                    result_of = fetched.take(session, queue_pair, m, slots);
                }
            })?;
            result_of?;
            if ended > 0 && peak {
                result.completed.push((total_done, session.host.now()));
            }
        }
        if came + ended > 0 {
            wait.happened();
        }
        wait.pause().await?;
    }
    result.end = session.host.now();
    Ok(result)
}
