//! The tasks of one job, which end together.

use crate::JobError;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use platform::Platform;
use spin::Mutex;

/// All tasks of a job.
#[derive(Clone)]
pub(crate) struct Tasks {
    platform: Arc<dyn Platform>,
    shared: Arc<Shared>,
}

/// The state that all tasks of a job share.
#[derive(Default)]
struct Shared {
    /// True after [`Tasks::cancel`]. It changes under the lock of the state. Each poll of a task reads it.
    cancelled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The tasks that have not ended, each with its waker once it has been polled.
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
    /// The waker that is among the job's. A task nearly always has the same one, so that most polls take no
    /// lock that all tasks of the job have in common.
    waker: Option<Waker>,
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
            let mut state = self.tasks.shared.state.lock();
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
        let cancelled = this.tasks.is_cancelled(this.id, &mut this.waker, cx.waker());
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
        Self { platform, shared: Arc::default() }
    }

    /// Starts a task. After the job is cancelled, the task ends at its next await.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Join<T> {
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        let id = {
            let mut state = self.shared.state.lock();
            state.next += 1;
            let id = state.next;
            state.live.insert(id, None);
            id
        };
        let (tasks, future) = (self.clone(), Box::pin(future));
        let task = Running { tasks, id, waker: None, future: Some(future), slot: slot.clone() };
        self.platform.spawn(name, Box::pin(task));
        Join(slot)
    }

    /// Ends each task at its next await.
    pub(crate) fn cancel(&self) {
        let wakers: alloc::vec::Vec<Waker> = {
            let mut state = self.shared.state.lock();
            self.shared.cancelled.store(true, Ordering::Release);
            state.live.values_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if the job is cancelled. If it is not, its cancellation wakes `waker` for the task `id`,
    /// whose waker among the job's is `known`.
    #[inline(always)]
    fn is_cancelled(&self, id: u64, known: &mut Option<Waker>, waker: &Waker) -> bool {
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.list_waker(id, known, waker);
        }
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Makes the job's cancellation wake `waker` for the task `id`, and notes that in `known`.
    #[cold]
    #[inline(never)]
    fn list_waker(&self, id: u64, known: &mut Option<Waker>, waker: &Waker) {
        *known = Some(waker.clone());
        if let Some(listed) = self.shared.state.lock().live.get_mut(&id) {
            *listed = Some(waker.clone());
        }
    }

    /// Waits until no task is left.
    pub(crate) async fn ended(&self) {
        core::future::poll_fn(|cx| {
            let mut state = self.shared.state.lock();
            if state.live.is_empty() {
                return Poll::Ready(());
            }
            state.ended = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::task::Wake;
    use core::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a task that never ends by itself.
    fn task(shared: &Arc<Shared>) -> Running<()> {
        let tasks = Tasks {
            platform: lite::testing::World::new(1).host(platform::IoAddr(4096), 4096),
            shared: shared.clone(),
        };
        shared.state.lock().live.insert(1, None);
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        Running { tasks, id: 1, waker: None, future: Some(Box::pin(core::future::pending())), slot }
    }

    #[test]
    fn cancelling_wakes_the_waker_of_the_latest_poll() {
        let shared = Arc::<Shared>::default();
        let mut task = task(&shared);
        let counts = [(); 2].map(|()| Arc::<Count>::default());
        for count in &counts {
            for _ in 0..2 {
                let waker = Waker::from(count.clone());
                assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        task.tasks.cancel();
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
        let waker = Waker::from(counts[1].clone());
        assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_ready());
        assert!(matches!(task.slot.lock().result, Some(Err(JobError::Cancelled))));
        assert!(shared.state.lock().live.is_empty());
    }
}
