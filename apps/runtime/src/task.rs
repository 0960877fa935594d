//! The tasks of one job, which end together.

use crate::JobError;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use platform::Platform;
use spin::Mutex;

/// All tasks of a job.
#[derive(Clone)]
pub(crate) struct Tasks {
    platform: Arc<dyn Platform>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    next: u64,
    /// The tasks that have not ended, each with the waker of its latest poll.
    live: BTreeMap<u64, Option<Waker>>,
    /// The waker of the task that waits for the end of all tasks.
    ended: Option<Waker>,
}

/// The result of a task and the waker of the task that waits for it.
struct Slot<T> {
    result: Option<Result<T, JobError>>,
    waker: Option<Waker>,
}

/// Resolves to the result of a task, or to [`JobError::Cancelled`].
#[must_use]
pub struct Join<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Join<T> {
    type Output = Result<T, JobError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One task. Its future is dropped as soon as it ends or the job is cancelled.
struct Running<T> {
    tasks: Tasks,
    id: u64,
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    slot: Arc<Mutex<Slot<T>>>,
}

impl<T> Running<T> {
    /// Drops the future, then publishes the result and wakes the waiting tasks.
    fn end(&mut self, result: Result<T, JobError>) {
        if self.future.take().is_none() {
            return;
        }
        let waiter = {
            let mut slot = self.slot.lock();
            slot.result = Some(result);
            slot.waker.take()
        };
        let last = {
            let mut state = self.tasks.state.lock();
            state.live.remove(&self.id);
            if state.live.is_empty() { state.ended.take() } else { None }
        };
        waiter.into_iter().chain(last).for_each(Waker::wake);
    }
}

impl<T> Future for Running<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let cancelled = {
            let mut state = this.tasks.state.lock();
            if let Some(waker) = state.live.get_mut(&this.id) {
                *waker = Some(cx.waker().clone());
            }
            state.cancelled
        };
        let Some(future) = &mut this.future else { return Poll::Ready(()) };
        let result = if cancelled {
            Err(JobError::Cancelled)
        } else {
            match future.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(value) => Ok(value),
            }
        };
        this.end(result);
        Poll::Ready(())
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.end(Err(JobError::Cancelled));
    }
}

impl<T> Unpin for Running<T> {}

impl Tasks {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Self {
        Self { platform, state: Arc::default() }
    }

    /// Starts a task. After the job is cancelled, the task ends at its next await.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Join<T> {
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        let id = {
            let mut state = self.state.lock();
            state.next += 1;
            let id = state.next;
            state.live.insert(id, None);
            id
        };
        let task = Running { tasks: self.clone(), id, future: Some(Box::pin(future)), slot: slot.clone() };
        self.platform.spawn(name, Box::pin(task));
        Join(slot)
    }

    /// Ends each task at its next await.
    pub(crate) fn cancel(&self) {
        let wakers: alloc::vec::Vec<Waker> = {
            let mut state = self.state.lock();
            state.cancelled = true;
            state.live.values_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until no task is left.
    pub(crate) async fn ended(&self) {
        core::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.live.is_empty() {
                return Poll::Ready(());
            }
            state.ended = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
