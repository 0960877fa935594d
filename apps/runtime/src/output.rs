//! The output of a job, sent to the manager in pieces within a window that the client's
//! acknowledgements move.

use crate::error::During;
use crate::{JobContext, JobError};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use lite::Lite;
use proto::{JobId, ToManager};
use spin::Mutex;

/// The length of a piece, in bytes: the most that one message may carry.
const PIECE: usize = 64 << 10;
/// The longest time without an acknowledgement from the client before the job fails.
const ACK_TIMEOUT: Duration = Duration::from_secs(300);

/// The output that the client has not acknowledged.
#[derive(Debug, Default)]
struct State {
    /// The pieces, in order, without gaps. The first begins at or before `taken`.
    pieces: VecDeque<Arc<Vec<u8>>>,
    /// The position of the first piece, and the end of the last.
    begin: u64,
    end: u64,
    /// The position up to which the client has the output.
    taken: u64,
    /// The position of the next piece to send.
    next: u64,
    /// True while a task sends a piece. That task then sends the pieces behind it.
    sending: bool,
    waker: Option<Waker>,
}

impl State {
    fn take(&mut self, bytes: u64) {
        self.taken = self.taken.max(bytes.min(self.end));
        while let Some(first) = self.pieces.front().map(|piece| piece.len() as u64)
            && self.begin + first <= self.taken
        {
            self.begin += first;
            self.pieces.pop_front();
        }
        self.next = self.next.max(self.begin);
    }

    /// Returns the next piece to send and its position.
    fn next(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.sending {
            return None;
        }
        let mut at = self.begin;
        for piece in &self.pieces {
            let len = piece.len() as u64;
            if at + len > self.next {
                // The client may have the first bytes of the piece.
                let known = usize::try_from(self.next.saturating_sub(at)).unwrap_or(0);
                let from = at + known as u64;
                (self.next, self.sending) = (at + len, true);
                return Some((from, piece.get(known..).unwrap_or_default().to_vec()));
            }
            at += len;
        }
        None
    }
}

/// The output window: the output that is kept until the client has acknowledged it. It is sent again after a
/// break of a connection between this node and the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit(Arc<Mutex<State>>);

impl Credit {
    /// Notes that the client has the first `bytes` bytes of the output.
    pub(crate) fn acknowledge(&self, bytes: u64) {
        let waker = {
            let mut state = self.0.lock();
            state.take(bytes);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes the output be sent from `offset` on.
    pub(crate) fn rewind(&self, offset: u64) {
        let mut state = self.0.lock();
        state.next = offset.clamp(state.begin, state.end);
    }

    /// Appends a piece (not longer than the window) as soon as the window has room.
    fn poll_push(&self, cx: &mut Context<'_>, piece: &Arc<Vec<u8>>) -> Poll<()> {
        let mut state = self.0.lock();
        let len = piece.len() as u64;
        if state.end - state.begin + len > ToManager::OUTPUT_WINDOW as u64 {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.end += len;
        state.pieces.push_back(piece.clone());
        Poll::Ready(())
    }

    /// Waits until the client has everything.
    fn poll_taken(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.taken == state.end {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends all pieces that were not sent yet.
    pub(crate) async fn send(&self, lite: &Lite, job: JobId) -> Result<(), lite::Error> {
        loop {
            let Some((offset, bytes)) = self.0.lock().next() else { return Ok(()) };
            let sent = lite.send_control(&ToManager::JobOutput { job, offset, bytes }).await;
            self.0.lock().sending = false;
            sent?;
        }
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

    /// Sends the rest of the buffer, and waits until the client has all output.
    pub async fn finish(mut self) -> Result<(), JobError> {
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        let credit = self.job.credit().clone();
        self.acknowledged(|cx| credit.poll_taken(cx)).await
    }

    /// Waits for acknowledgements of the client, within [`ACK_TIMEOUT`].
    async fn acknowledged(
        &self,
        mut until: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Result<(), JobError> {
        let mut timeout = pin!(self.job.lite().sleep(ACK_TIMEOUT));
        core::future::poll_fn(|cx| {
            if until(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            timeout.as_mut().poll(cx).map(|()| Err(JobError::Stalled { seconds: ACK_TIMEOUT.as_secs() }))
        })
        .await
    }

    async fn flush(&mut self) -> Result<(), JobError> {
        let bytes = core::mem::take(&mut self.buffer);
        if let Some(keeping) = self.job.keeping() {
            return match self.job.rank() {
                0 => keeping.append(&bytes).await,
                _ => Err(JobError::Refused("only rank 0 may write output".into())),
            };
        }
        let (credit, piece) = (self.job.credit().clone(), Arc::new(bytes));
        self.acknowledged(|cx| credit.poll_push(cx, &piece)).await?;
        credit.send(self.job.lite(), self.job.id()).await.during("sending output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const WINDOW: usize = ToManager::OUTPUT_WINDOW;

    fn push(credit: &Credit, len: usize) -> Poll<()> {
        credit.poll_push(&mut Context::from_waker(Waker::noop()), &Arc::new(vec![1; len]))
    }

    /// Sends the next piece, and returns its position and length.
    fn send(credit: &Credit) -> Option<(u64, usize)> {
        let mut state = credit.0.lock();
        let sent = state.next().map(|(at, bytes)| (at, bytes.len()));
        state.sending = false;
        sent
    }

    #[test]
    fn the_window_is_kept() {
        let credit = Credit::default();
        assert_eq!(push(&credit, WINDOW - 1), Poll::Ready(()));
        assert_eq!(push(&credit, 2), Poll::Pending);
        assert_eq!(push(&credit, 1), Poll::Ready(()));
        credit.acknowledge(5);
        assert_eq!(push(&credit, 1), Poll::Pending, "a piece is kept until all of it is acknowledged");
        credit.acknowledge(WINDOW as u64 - 1);
        assert_eq!(push(&credit, WINDOW - 1), Poll::Ready(()));
        // An acknowledgement of more than was sent does not widen the window.
        credit.acknowledge(u64::MAX);
        assert_eq!(push(&credit, WINDOW + 1), Poll::Pending);
        assert_eq!(push(&credit, WINDOW), Poll::Ready(()));
    }

    #[test]
    fn what_the_client_does_not_have_is_sent_again() {
        let credit = Credit::default();
        for len in [10, 20, 30] {
            assert_eq!(push(&credit, len), Poll::Ready(()));
        }
        assert_eq!([(); 4].map(|()| send(&credit)), [Some((0, 10)), Some((10, 20)), Some((30, 30)), None]);
        credit.acknowledge(15);
        credit.rewind(15);
        assert_eq!([(); 3].map(|()| send(&credit)), [Some((15, 15)), Some((30, 30)), None]);
        credit.rewind(30);
        assert_eq!(send(&credit), Some((30, 30)));
        credit.acknowledge(60);
        assert_eq!(push(&credit, 5), Poll::Ready(()));
        assert_eq!(send(&credit), Some((60, 5)));
        assert_eq!(credit.poll_taken(&mut Context::from_waker(Waker::noop())), Poll::Pending);
        credit.acknowledge(65);
        assert_eq!(credit.poll_taken(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
    }
}
