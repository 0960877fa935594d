//! The 8-byte write ping-pong of perftest's `ib_write_lat`. Each side writes into the other's memory when it
//! sees the other's write. The latency is half of a round trip.

use crate::measure::Row;
use crate::{DEADLINE, failed};
use alloc::vec::Vec;
use futures_util::future::try_join;
use lite::Lmr;
use runtime::{JobContext, JobError};

/// Round trips that are not counted, at the beginning.
const WARM_UP: usize = 50;

/// Plays `samples` round trips. Rank 0 writes first. A side looks for the answer to its write from the moment
/// at which the write is posted, also before the write has completed.
pub(crate) async fn run(job: &JobContext, mine: &Lmr, theirs: &Lmr, samples: usize) -> Result<Row, JobError> {
    job.barrier("ping-pong").await?;
    let mine = mine.with_deadline(DEADLINE);
    let rounds = (WARM_UP + samples) as u64;
    let mut halves = Vec::with_capacity(samples);
    if job.rank() == 0 {
        for round in 1..=rounds {
            let begin = job.now();
            try_join(write(theirs, round), wait_for(&mine, round)).await?;
            if round > WARM_UP as u64 {
                halves.push(u64::try_from((job.now() - begin).as_nanos()).unwrap_or(u64::MAX) / 2);
            }
        }
    } else {
        wait_for(&mine, 1).await?;
        for round in 1..rounds {
            try_join(write(theirs, round), wait_for(&mine, round + 1)).await?;
        }
        write(theirs, rounds).await?;
        halves.push(0);
    }
    Ok(Row::latency("write_ping_pong", 8, halves))
}

/// Writes `round` to the first word of the other node's region.
async fn write(theirs: &Lmr, round: u64) -> Result<(), JobError> {
    theirs.write(0, &round.to_ne_bytes()).await.map_err(failed)
}

/// Looks at the first word of this node's region until it equals `round`.
async fn wait_for(mine: &Lmr, round: u64) -> Result<(), JobError> {
    mine.poll_until(0, |word| word == round).await.map(drop).map_err(failed)
}
