//! The output of a job: pieces to the manager, no more under way than it allows.

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

/// Bytes of a piece, the most that a message may carry.
const PIECE: usize = 64 << 10;
/// How long the manager may take to acknowledge anything before the job fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// Bytes that the manager has not acknowledged.
#[derive(Debug, Default)]
struct State {
    pending: u64,
    waker: Option<Waker>,
}

/// How much may still be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit(Arc<Mutex<State>>);

impl Credit {
    /// The manager has passed on that many bytes.
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

    /// Takes `bytes` (at most the window) once so many may be sent.
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

/// Takes a job's output. Only rank 0 has one. Call [`finish`](Self::finish) at the end.
#[derive(Debug)]
pub struct Output {
    job: JobContext,
    buffer: Vec<u8>,
}

impl Output {
    pub(crate) fn new(job: JobContext) -> Self {
        Self { job, buffer: Vec::new() }
    }

    /// Appends bytes; waits while the manager has enough.
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

    /// Sends what is left.
    pub async fn finish(mut self) -> Result<(), JobError> {
        if self.buffer.is_empty() { Ok(()) } else { self.flush().await }
    }

    async fn flush(&mut self) -> Result<(), JobError> {
        let bytes = core::mem::take(&mut self.buffer);
        let lite = self.job.lite();
        let mut patience = pin!(lite.sleep(PATIENCE));
        core::future::poll_fn(|cx| {
            if self.job.credit().poll_take(cx, bytes.len() as u64).is_ready() {
                return Poll::Ready(Ok(()));
            }
            patience.as_mut().poll(cx).map(|()| Err(JobError::Stalled { seconds: PATIENCE.as_secs() }))
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
        // More acknowledged than sent does not widen the window.
        credit.acknowledge(u64::MAX);
        assert_eq!(credit.poll_take(&mut cx, window + 1), Poll::Pending);
        assert_eq!(credit.poll_take(&mut cx, window), Poll::Ready(()));
    }
}
