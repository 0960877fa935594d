//! Latency tests: one operation at a time.

use crate::atomics::Fetched;
use crate::buffer::{Side, Slots};
use crate::error::Error;
use crate::exchange::{Exchange, FAREWELL};
use crate::options::Verb;
use crate::session::{Session, Wait};
use alloc::vec::Vec;
use platform::Instant;

/// Returns an empty list with room for the times of `n` postings, so that nothing is allocated during the
/// test.
fn times(n: u32) -> Result<Vec<Instant>, Error> {
    let mut times = Vec::new();
    let bytes = u64::from(n) * size_of::<Instant>() as u64;
    times.try_reserve_exact(n as usize).map_err(|_| Error::OutOfMemory(bytes.div_ceil(1_000_000)))?;
    Ok(times)
}

/// Runs READs or atomics, each posted when the one before has completed. Returns the times of posting.
pub(crate) async fn one_way(
    session: &Session<'_>,
    slots: &Slots,
    fetched: &mut Fetched,
) -> Result<Vec<Instant>, Error> {
    let n = session.options.iterations;
    let mut posted = times(n)?;
    let mut wait = Wait::new(session.host);
    for m in 0..n {
        posted.push(session.host.now());
        session.post(0, m, slots, true)?;
        wait.until_completed(session).await?;
        if session.options.program.verb == Verb::Atomic {
            fetched.take(session, 0, m, slots)?;
        }
    }
    Ok(posted)
}

/// Runs WRITEs in both directions: each side waits until the last byte of its buffer equals the number of the
/// peer's write. The server begins.
pub(crate) async fn write_ping_pong(
    session: &Session<'_>,
    exchange: &Exchange,
    slots: &Slots,
) -> Result<Vec<Instant>, Error> {
    let n = session.options.iterations;
    let mut posted = times(n)?;
    let (mut received, mut sent, mut completed) = (0u32, 0u32, 0u32);
    let mut wait = Wait::new(session.host);
    while received < n || sent < n || completed < n {
        if received < n && (sent > 0 || session.client) {
            received += 1;
            while session.buffers.get_last(Side::Far, slots.size)? != received as u8 {
                wait.pause().await?;
            }
            wait.progressed();
        }
        if sent < n {
            posted.push(session.host.now());
            session.buffers.set_last(Side::Near, slots.size, (sent + 1) as u8)?;
            session.post(0, sent, slots, true)?;
            // An RNIC in software begins the operation here.
            session.host.drive();
            sent += 1;
        }
        if completed < n {
            if !write_completes(session, exchange, &mut wait, received == n).await? {
                break;
            }
            completed += 1;
        }
    }
    Ok(posted)
}

/// Waits for the completion of a write. Returns `false` if it was the last write and the peer is gone after
/// it got everything: on a lossy network, the acknowledgement may have been lost with the peer.
async fn write_completes(
    session: &Session<'_>,
    exchange: &Exchange,
    wait: &mut Wait<'_>,
    last: bool,
) -> Result<bool, Error> {
    loop {
        match session.has_completed() {
            Ok(false) => {}
            Ok(true) => {
                wait.progressed();
                return Ok(true);
            }
            Err(_) if last && exchange.has_ended(session.host) => return Ok(false),
            Err(error) => return Err(error),
        }
        if last && wait.idle() > FAREWELL && exchange.has_ended(session.host) {
            return Ok(false);
        }
        wait.pause().await?;
    }
}

/// Runs SENDs in both directions. The client begins. The first receives are posted already.
pub(crate) async fn send_ping_pong(session: &Session<'_>, slots: &Slots) -> Result<Vec<Instant>, Error> {
    let n = session.options.iterations;
    let mut posted = times(n)?;
    let (mut received, mut sent) = (0u32, 0u32);
    let mut receives = session.options.rx_depth;
    let mut wait = Wait::new(session.host);
    while received < n || sent < n {
        if received < n && (sent > 0 || !session.client) {
            let next = |_, _| {
                if receives < n {
                    session.post_receive(0, receives, slots)?;
                    receives += 1;
                }
                Ok(())
            };
            let mut next = next;
            loop {
                let came = session.received::<1>(slots.size, &mut next)?;
                if came > 0 {
                    received += came as u32;
                    break;
                }
                wait.pause().await?;
            }
            wait.progressed();
        }
        if sent < n {
            posted.push(session.host.now());
            session.post(0, sent, slots, true)?;
            sent += 1;
            wait.until_completed(session).await?;
        }
    }
    Ok(posted)
}
