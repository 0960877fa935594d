//! Runs many futures in one task.

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

struct One<F: Future> {
    future: Option<Pin<Box<F>>>,
    flag: Arc<Flag>,
    output: Option<F::Output>,
}

/// Waits for all futures and returns their results. Polls only those that were woken.
pub(crate) async fn all<F: Future>(futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let one = |future| {
        let flag = Arc::new(Flag { ready: AtomicBool::new(true), task: Mutex::new(None) });
        One { future: Some(future), flag, output: None }
    };
    let mut each: Vec<One<F>> = futures.into_iter().map(one).collect();
    let mut left = each.len();
    core::future::poll_fn(|cx| {
        for one in &mut each {
            let Some(future) = &mut one.future else { continue };
            {
                let mut task = one.flag.task.lock();
                if !task.as_ref().is_some_and(|t| t.will_wake(cx.waker())) {
                    *task = Some(cx.waker().clone());
                }
            }
            if !one.flag.ready.swap(false, Ordering::SeqCst) {
                continue;
            }
            let waker = Waker::from(one.flag.clone());
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                one.future = None;
                one.output = Some(output);
                left -= 1;
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    each.into_iter().filter_map(|one| one.output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use std::rc::Rc;
    use std::{cell::RefCell, vec};

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
}
