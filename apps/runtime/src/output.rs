//! The output of a job, sent to the manager in pieces within the manager's window.

use crate::error::During;
use crate::{JobContext, JobError};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Poll, Waker};
use core::time::Duration;
use proto::ToManager;
use spin::Mutex;

/// The length of a piece, in bytes: the most that one message may carry.
const PIECE: usize = 64 << 10;
/// The longest time without an acknowledgement from the manager before the job fails.
const ACK_TIMEOUT: Duration = Duration::from_secs(300);

/// The number of bytes that the manager has not acknowledged.
#[derive(Debug, Default)]
struct State {
    pending: u64,
    waker: Option<Waker>,
}

/// The output window: limits the bytes in flight to the manager.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit(Arc<Mutex<State>>);

impl Credit {
    /// Counts `bytes` as passed on by the manager.
    pub(crate) fn acknowledge(&self, bytes: u64) {
        let waker = {
            let mut state = self.0.lock();
            state.pending = state.pending.saturating_sub(bytes);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Reserves `bytes` (at most the window) as soon as the window has room.
    pub(crate) fn poll_take(&self, cx: &mut core::task::Context<'_>, bytes: u64) -> Poll<()> {
        let mut state = self.0.lock();
        if state.pending + bytes > ToManager::OUTPUT_WINDOW as u64 {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.pending += bytes;
        Poll::Ready(())
    }
}

/// Writes a job's output. Only rank 0 may write. Call [`finish`](Self::finish) at the end.
#[derive(Debug)]
pub struct Output {
    job: JobContext,
    buffer: Vec<u8>,
}

impl Output {
    pub(crate) fn new(job: JobContext) -> Self {
        Self { job, buffer: Vec::new() }
    }

    /// Appends bytes. Waits while the manager's window is full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        let mut rest = bytes;
        while self.buffer.len() + rest.len() >= PIECE {
            let (now, later) = rest.split_at(PIECE - self.buffer.len());
            self.buffer.extend_from_slice(now);
            rest = later;
            self.flush().await?;
        }
        self.buffer.extend_from_slice(rest);
        Ok(())
    }

    /// Sends the rest of the buffer.
    pub async fn finish(mut self) -> Result<(), JobError> {
        if self.buffer.is_empty() { Ok(()) } else { self.flush().await }
    }

    async fn flush(&mut self) -> Result<(), JobError> {
        let bytes = core::mem::take(&mut self.buffer);
        if let Some(keeping) = self.job.keeping() {
            return match self.job.rank() {
                0 => keeping.append(&bytes).await,
                _ => Err(JobError::Refused("only rank 0 may write output".into())),
            };
        }
        let lite = self.job.lite();
        let mut timeout = pin!(lite.sleep(ACK_TIMEOUT));
        core::future::poll_fn(|cx| {
            if self.job.credit().poll_take(cx, bytes.len() as u64).is_ready() {
                return Poll::Ready(Ok(()));
            }
            timeout.as_mut().poll(cx).map(|()| Err(JobError::Stalled { seconds: ACK_TIMEOUT.as_secs() }))
        })
        .await?;
        lite.send_control(&ToManager::JobOutput { job: self.job.id(), bytes }).await.during("sending output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::Context;

    #[test]
    fn the_window_is_kept() {
        let credit = Credit::default();
        let mut cx = Context::from_waker(Waker::noop());
        let window = ToManager::OUTPUT_WINDOW as u64;
        assert_eq!(credit.poll_take(&mut cx, window - 1), Poll::Ready(()));
        assert_eq!(credit.poll_take(&mut cx, 2), Poll::Pending);
        assert_eq!(credit.poll_take(&mut cx, 1), Poll::Ready(()));
        credit.acknowledge(5);
        assert_eq!(credit.poll_take(&mut cx, 6), Poll::Pending);
        assert_eq!(credit.poll_take(&mut cx, 5), Poll::Ready(()));
        // An acknowledgement of more than was sent does not widen the window.
        credit.acknowledge(u64::MAX);
        assert_eq!(credit.poll_take(&mut cx, window + 1), Poll::Pending);
        assert_eq!(credit.poll_take(&mut cx, window), Poll::Ready(()));
    }
}
