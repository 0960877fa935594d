//! Many futures in one task, which polls only those that were woken.

use crate::base::lock::Mutex;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};

/// The waker of one of the futures; it marks the future as ready to be polled.
struct Flag {
    ready: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.ready.store(true, Ordering::SeqCst);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// A future that is polled only when it was woken.
struct One<F> {
    future: Pin<Box<F>>,
    flag: Arc<Flag>,
}

impl<F: Future> One<F> {
    fn new(future: Pin<Box<F>>) -> Self {
        let flag = Arc::new(Flag { ready: AtomicBool::new(true), task: Mutex::new(None) });
        Self { future, flag }
    }

    /// Polls the future if it was woken; `cx` is the task that it runs in.
    fn poll(&mut self, cx: &Context<'_>) -> Poll<F::Output> {
        {
            let mut task = self.flag.task.lock();
            if !task.as_ref().is_some_and(|t| t.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        if !self.flag.ready.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.flag.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Waits for all futures and returns their results. Polls only those that were woken.
pub(crate) async fn all<F: Future>(futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let mut each: Vec<Option<One<F>>> = futures.into_iter().map(|future| Some(One::new(future))).collect();
    core::future::poll_fn(|cx| {
        let mut left = 0;
        for (one, output) in each.iter_mut().zip(&mut outputs) {
            let Some(running) = one else { continue };
            match running.poll(cx) {
                Poll::Ready(ended) => (*output, *one) = (Some(ended), None),
                Poll::Pending => left += 1,
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Runs the futures that `next` returns, in order and at most `most` at a time, until all have ended or one
/// has failed. After a failure the others are dropped.
pub(crate) async fn in_window<F, E>(most: usize, mut next: impl FnMut() -> Option<F>) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut running: Vec<One<F>> = Vec::with_capacity(most);
    core::future::poll_fn(|cx| {
        let mut more = true;
        loop {
            while more && running.len() < most.max(1) {
                match next() {
                    Some(future) => running.push(One::new(Box::pin(future))),
                    None => more = false,
                }
            }
            let before = running.len();
            let mut at = 0;
            while let Some(one) = running.get_mut(at) {
                match one.poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Ok(())) => drop(running.swap_remove(at)),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                }
            }
            if running.is_empty() && !more {
                return Poll::Ready(Ok(()));
            }
            if running.len() == before || !more {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::vec;

    #[test]
    fn only_those_that_are_woken_are_polled() {
        let polled = Rc::new(RefCell::new(vec![]));
        let wakers = Rc::new(RefCell::new(vec![None; 3]));
        let future = |i: usize| {
            let (polled, wakers) = (polled.clone(), wakers.clone());
            Box::pin(core::future::poll_fn(move |cx| {
                polled.borrow_mut().push(i);
                let first = wakers.borrow_mut()[i].replace(cx.waker().clone()).is_none();
                if first { Poll::Pending } else { Poll::Ready(10 * i) }
            }))
        };
        let mut all = pin!(all(vec![future(0), future(1), future(2)]));
        let mut cx = Context::from_waker(Waker::noop());
        let wake = |i: usize| {
            let waker: Waker = wakers.borrow()[i].clone().unwrap();
            waker.wake();
        };
        assert!(all.as_mut().poll(&mut cx).is_pending());
        wake(1);
        assert!(all.as_mut().poll(&mut cx).is_pending());
        wake(0);
        wake(2);
        assert_eq!(all.as_mut().poll(&mut cx), Poll::Ready(vec![0, 10, 20]));
        assert_eq!(*polled.borrow(), [0, 1, 2, 1, 0, 2]);
    }

    /// Runs twelve futures, each of which is polled `polls` times; returns the most that ran at once.
    fn run(most: usize, polls: u32, fails: Option<usize>) -> (usize, usize, Result<(), usize>) {
        let (begun, running, peak) = (Cell::new(0), Cell::new(0usize), Cell::new(0));
        let next = || {
            let i = begun.get();
            (i < 12).then(|| {
                begun.set(i + 1);
                running.set(running.get() + 1);
                peak.set(peak.get().max(running.get()));
                let (mut left, running) = (polls, &running);
                core::future::poll_fn(move |cx| {
                    left -= 1;
                    if left > 0 {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    running.set(running.get() - 1);
                    Poll::Ready(if fails == Some(i) { Err(i) } else { Ok(()) })
                })
            })
        };
        let mut window = pin!(in_window(most, next));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            if let Poll::Ready(result) = window.as_mut().poll(&mut cx) {
                return (begun.get(), peak.get(), result);
            }
        }
        panic!("the window stands still");
    }

    #[test]
    fn a_window_is_filled_and_never_exceeded() {
        for polls in [1, 2, 5] {
            assert_eq!(run(4, polls, None), (12, 4, Ok(())));
            assert_eq!(run(0, polls, None), (12, 1, Ok(())));
            assert_eq!(run(20, polls, None), (12, 12, Ok(())));
        }
        assert_eq!(run(4, 3, Some(5)).2, Err(5));
        assert!(run(4, 3, Some(0)).0 <= 8, "nothing begins after a failure");
    }
}
