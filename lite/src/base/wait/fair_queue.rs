//! A fair queue: tasks that wait for one of several equal resources, first come, first served.

use crate::base::lock::Mutex;
use crate::base::writers::{AtomicUsize, Ordering};
use alloc::collections::VecDeque;
use core::task::{Context, Poll, Waker};

/// The number of waiters that are woken for one resource that becomes free. More than one, because a future
/// that was woken may stay unpolled while its task waits for something else.
const WOKEN: usize = 2;

/// The number of waiters at the head of the queue that are checked for a pending wake-up.
const NEAR: usize = 16;

/// Tasks that wait for a resource of which each takes one, in the order in which they came. Unlike
/// [`Waiters`](super::Waiters), a resource that becomes free does not wake them all.
///
/// The state that `take` reads must be behind a lock that the caller of [`wake`](Self::wake) has held
/// before: then either `take` sees the change, or the caller sees the waiter. The counts change only under
/// the queue's lock.
///
/// A task that finds a free resource, while a waiter before it has been woken and has not looked yet,
/// yields once before it takes the resource. So the order holds among tasks that run, and a future that is
/// not polled delays nobody.
#[derive(Default)]
pub(crate) struct FairQueue {
    /// The number of waiters that have not been woken.
    asleep: AtomicUsize,
    /// The number of waiters that have been woken and have neither left the queue nor waited again.
    woken: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    last: u64,
    /// By number, ascending. Waiters without a waker have been woken.
    waiting: VecDeque<(u64, Option<Waker>)>,
}

impl Queue {
    /// Returns the index of the waiter with that number. It is often the first one.
    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        if self.waiting.front().is_some_and(|(n, _)| *n == number) {
            return Some(0);
        }
        self.waiting.binary_search_by_key(&number, |(n, _)| *n).ok()
    }
}

/// An entry of the queue. Dropping it lets the next waiter look, because there may be more resources than
/// this one took.
struct Waiter<'a> {
    fair_queue: &'a FairQueue,
    number: Option<u64>,
    has_yielded: bool,
}

/// Adds `by` to a count. The queue's lock must be held.
fn change(count: &AtomicUsize, by: isize) {
    count.store(count.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Release);
}

impl FairQueue {
    /// Returns true if the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.asleep.load(Ordering::Acquire) == 0 && self.woken.load(Ordering::Acquire) == 0
    }

    /// Waits until `take` returns something.
    pub(crate) async fn until<T>(&self, take: impl FnMut() -> Option<T>) -> T {
        self.until_likely(|| true, take).await
    }

    /// Does the same as [`until`](Self::until), but at first calls `take` only once the task is in the queue,
    /// if `is_likely` tells that there is nothing to take. It may be wrong.
    #[inline(always)]
    pub(crate) async fn until_likely<T>(
        &self,
        is_likely: impl Fn() -> bool,
        mut take: impl FnMut() -> Option<T>,
    ) -> T {
        let mut waiter = Waiter { fair_queue: self, number: None, has_yielded: false };
        core::future::poll_fn(|cx| {
            if waiter.yields() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // A waiter that was woken looks before it waits again: only then does its end wake the next one.
            if (waiter.number.is_some() || is_likely())
                && let Some(v) = take()
            {
                return Poll::Ready(v);
            }
            waiter.wait(cx);
            // A resource may have become free meanwhile.
            take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Wakes the first waiter, because one more resource is free.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.wake_some(WOKEN);
        }
    }

    /// Wakes all waiters, because each may now go on.
    pub(crate) fn wake_all(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.wake_some(usize::MAX);
        }
    }

    fn wake_some(&self, most: usize) {
        let mut at = 0;
        for _ in 0..most {
            let first = {
                let mut queue = self.queue.lock();
                // Waiters without a waker have been woken.
                let first = loop {
                    let Some((_, waker)) = queue.waiting.get_mut(at) else { return };
                    if let Some(waker) = waker.take() {
                        break waker;
                    }
                    at += 1;
                };
                change(&self.asleep, -1);
                change(&self.woken, 1);
                first
            };
            first.wake();
            if self.asleep.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }
}

impl Waiter<'_> {
    /// Returns true if waiters that came before and have been woken should look first.
    #[inline]
    fn yields(&mut self) -> bool {
        // If this waiter has an entry, it may be the only one that has been woken.
        let woken = self.fair_queue.woken.load(Ordering::SeqCst);
        !self.has_yielded && woken > usize::from(self.number.is_some()) && self.yields_to_others()
    }

    /// Does the work of [`yields`](Self::yields) if another waiter has been woken.
    #[cold]
    fn yields_to_others(&mut self) -> bool {
        let mut queue = self.fair_queue.queue.lock();
        let number = self.number.unwrap_or(u64::MAX);
        let mut before = queue.waiting.iter().take_while(|(n, _)| *n < number).take(NEAR);
        let yields = before.any(|(_, waker)| waker.is_none());
        self.has_yielded = yields;
        if yields && self.number.is_none() {
            queue.last += 1;
            self.number = Some(queue.last);
            let last = queue.last;
            queue.waiting.push_back((last, None));
            change(&self.fair_queue.woken, 1);
        }
        yields
    }

    fn wait(&mut self, cx: &Context<'_>) {
        self.has_yielded = false;
        let mut queue = self.fair_queue.queue.lock();
        let Some(number) = self.number else {
            queue.last += 1;
            let last = queue.last;
            self.number = Some(last);
            queue.waiting.push_back((last, Some(cx.waker().clone())));
            change(&self.fair_queue.asleep, 1);
            return;
        };
        let Some((_, waker)) = queue.place(number).and_then(|at| queue.waiting.get_mut(at)) else { return };
        if waker.is_none() {
            change(&self.fair_queue.woken, -1);
            change(&self.fair_queue.asleep, 1);
        }
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut queue = self.fair_queue.queue.lock();
        let removed = match queue.place(number) {
            Some(0) => queue.waiting.pop_front(),
            place => place.and_then(|at| queue.waiting.remove(at)),
        };
        let Some((_, waker)) = removed else { return };
        let was_woken = waker.is_none();
        let count = if was_woken { &self.fair_queue.woken } else { &self.fair_queue.asleep };
        change(count, -1);
        drop(queue);
        if was_woken && self.fair_queue.asleep.load(Ordering::SeqCst) > 0 {
            self.fair_queue.wake_some(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::future::Future;
    use core::pin::{Pin, pin};
    use std::boxed::Box;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;
    use std::vec::Vec;

    type Pinned<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

    fn pinned<'a>(future: impl Future<Output = ()> + 'a) -> Pinned<'a> {
        Box::pin(future)
    }

    type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Tasks that wait for the end of something, in a queue that is woken for all of them.
    struct Crowd {
        tasks: std::sync::Mutex<Vec<Option<Task>>>,
    }

    /// The waker of one task of a crowd. The second one lets the first two tasks run at once.
    struct Member(usize, std::sync::Weak<Crowd>, AtomicU32);

    impl Wake for Member {
        fn wake(self: Arc<Self>) {
            self.2.fetch_add(1, Ordering::SeqCst);
            let Some(crowd) = self.1.upgrade().filter(|_| self.0 == 1) else { return };
            for at in 0..2 {
                let mut tasks = crowd.tasks.lock().unwrap();
                let ended = tasks[at].as_mut().is_some_and(|task| {
                    task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
                });
                let task = ended.then(|| tasks[at].take());
                drop(tasks);
                drop(task);
            }
        }
    }

    /// Two of three tasks leave the queue while all are being woken, so that the third is at another place:
    /// it is woken all the same, also if the tasks look without a hint that there is something to take.
    #[test]
    fn all_are_woken_while_some_leave() {
        let (queue, closed) = (Arc::new(FairQueue::default()), Arc::new(AtomicU32::new(0)));
        let crowd = Arc::new(Crowd { tasks: std::sync::Mutex::default() });
        let wakers: Vec<_> =
            (0..3).map(|i| Arc::new(Member(i, Arc::downgrade(&crowd), AtomicU32::new(0)))).collect();
        for waker in &wakers {
            let (queue, closed) = (queue.clone(), closed.clone());
            let take = move || (closed.load(Ordering::SeqCst) > 0).then_some(());
            let mut task: Task = Box::pin(async move { queue.until_likely(|| false, take).await });
            let waker = Waker::from(waker.clone());
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            crowd.tasks.lock().unwrap().push(Some(task));
        }
        closed.store(1, Ordering::SeqCst);
        queue.wake_all();
        let left = crowd.tasks.lock().unwrap().iter().flatten().count();
        assert_eq!(left, 1);
        assert_eq!(wakers[2].2.load(Ordering::SeqCst), 1);
    }

    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_first_come_is_the_first_woken_and_a_dropped_place_is_nobodys_loss() {
        let (fair_queue, free) = (FairQueue::default(), Cell::new(0));
        let take = || (free.get() > 0).then(|| free.set(free.get() - 1));
        let wakers: Vec<_> = (0..8).map(|_| Arc::new(Woken(AtomicU32::new(0)))).collect();
        let mut futures: Vec<_> = (0..8).map(|_| Some(pinned(fair_queue.until(take)))).collect();
        let poll = |futures: &mut Vec<Option<Pinned<'_>>>, i: usize| {
            let waker = Waker::from(wakers[i].clone());
            let future = futures[i].as_mut().unwrap();
            let ready = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if ready {
                futures[i] = None;
            }
            ready
        };
        let woken = |i: usize| wakers[i].0.load(Ordering::SeqCst);
        for i in 0..8 {
            assert!(!poll(&mut futures, i));
        }
        free.set(1);
        fair_queue.wake();
        assert_eq!((0..8).map(woken).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0, 0, 0]);
        // The second lets the first go before it. The first is not polled, so the second takes the resource
        // and lets the next one look.
        assert!(!poll(&mut futures, 1));
        assert_eq!(woken(1), 2);
        assert!(poll(&mut futures, 1));
        assert_eq!((woken(2), woken(3)), (1, 0));
        // A waiter before it has been woken and has not looked yet; then nothing is left.
        assert!(!poll(&mut futures, 2));
        assert!(!poll(&mut futures, 2));
        free.set(1);
        // An entry that was woken and is dropped lets the next waiter look.
        futures[0] = None;
        assert_eq!((woken(2), woken(3)), (3, 0));
        assert!(poll(&mut futures, 2));
        assert_eq!((woken(3), woken(4)), (1, 0));
        // An entry that waits and is dropped was not looking.
        futures[7] = None;
        assert_eq!(woken(4), 0);
        // A newcomer lets waiters that are looking go first.
        let mut late = pin!(fair_queue.until(|| Some(())));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
