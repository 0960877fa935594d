//! A fair queue: tasks that wait for one of several equal resources, first come, first served.

use crate::base::lock::Mutex;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};

/// The number of waiters at the head of the queue that are checked for a pending wake-up.
const NEAR: usize = 16;

/// Tasks that wait for a resource of which each takes one, in the order in which they came. Unlike
/// [`Waiters`](super::Waiters), a resource that becomes free does not wake them all.
///
/// The queue is a part of the state behind the lock of the resource: one lock serves for the look at the
/// resource and for the place in the queue, so that no change is missed between the two.
///
/// A task that finds a free resource, while a waiter before it has been woken and has not looked yet,
/// yields once before it takes the resource. So the order holds among tasks that run, and a future that is
/// not polled delays nobody.
#[derive(Default)]
pub(crate) struct FairQueue {
    last: u64,
    /// By number, ascending. Waiters without a waker have been woken.
    waiting: VecDeque<(u64, Option<Waker>)>,
    /// The number of waiters that have been woken and have neither left the queue nor waited again.
    woken: usize,
}

/// The tasks that are woken for one resource that becomes free. They are up to two, because a future that was
/// woken may stay unpolled while its task waits for something else. They must be woken once the lock is free:
/// a waker may be the last reference to a task that waits in the same queue.
#[must_use = "the tasks are not woken yet"]
#[derive(Default)]
pub(crate) struct Woken(Option<Waker>, Option<Waker>);

impl Woken {
    /// Wakes the tasks. The caller does not have the queue's lock.
    #[inline(always)]
    pub(crate) fn wake(self) {
        if let Some(first) = self.0 {
            first.wake();
        }
        if let Some(second) = self.1 {
            second.wake();
        }
    }
}

impl FairQueue {
    /// Returns true if no task waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the first waiters, because one more resource is free.
    #[inline(always)]
    pub(crate) fn wake(&mut self) -> Woken {
        if self.waiting.len() == self.woken {
            return Woken::default();
        }
        if self.waiting.len() > 1 {
            return self.wake_two();
        }
        // Mostly one task waits.
        self.woken = 1;
        Woken(self.waiting.front_mut().and_then(|(_, waker)| waker.take()), None)
    }

    /// Returns the wakers of the first two waiters that have not been woken.
    // Not inlined, as some functions below, because callers are many and the image would grow.
    #[inline(never)]
    fn wake_two(&mut self) -> Woken {
        let first = self.wake_one();
        Woken(first, self.wake_one())
    }

    /// Returns the waker of the first waiter that has not been woken.
    fn wake_one(&mut self) -> Option<Waker> {
        if self.waiting.len() == self.woken {
            return None;
        }
        self.woken += 1;
        // The first waiter is mostly asleep.
        match self.waiting.front_mut() {
            Some((_, waker @ Some(_))) => waker.take(),
            _ => self.waiting.iter_mut().find_map(|(_, waker)| waker.take()),
        }
    }

    /// Returns the wakers of all waiters, because each may now go on.
    #[must_use = "the tasks are not woken yet"]
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        self.woken = self.waiting.len();
        self.waiting.iter_mut().filter_map(|(_, waker)| waker.take()).collect()
    }

    /// Adds an entry and returns its number.
    fn join(&mut self, waker: Option<Waker>) -> u64 {
        self.last += 1;
        self.woken += usize::from(waker.is_none());
        self.waiting.push_back((self.last, waker));
        self.last
    }

    /// Returns true if waiters that came before the one with that number, and have been woken, should look
    /// first. Then a waiter without an entry gets one.
    #[cold]
    fn is_behind(&mut self, number: &mut Option<u64>) -> bool {
        let own = number.unwrap_or(u64::MAX);
        let mut before = self.waiting.iter().take_while(|(n, _)| *n < own).take(NEAR);
        let is_behind = before.any(|(_, waker)| waker.is_none());
        if is_behind && number.is_none() {
            *number = Some(self.join(None));
        }
        is_behind
    }

    /// Lets the waiter with that number wait for its next wake-up; one without an entry gets one. Returns a
    /// waker that is not needed any more.
    #[inline(never)]
    fn wait(&mut self, number: &mut Option<u64>, cx: &Context<'_>) -> Option<Waker> {
        let Some(number) = *number else {
            *number = Some(self.join(Some(cx.waker().clone())));
            return None;
        };
        let at = self.place(number)?;
        let (_, waker) = self.waiting.get_mut(at)?;
        self.woken -= usize::from(waker.is_none());
        if waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            return None;
        }
        waker.replace(cx.waker().clone())
    }

    /// Returns the index of the waiter with that number. It is often the first one.
    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        if self.waiting.front().is_some_and(|(n, _)| *n == number) {
            return Some(0);
        }
        self.waiting.binary_search_by_key(&number, |(n, _)| *n).ok()
    }

    /// Removes an entry that is the only one and has been woken. Otherwise returns false.
    #[inline(always)]
    fn leave_as_the_last(&mut self, number: u64) -> bool {
        let is_last = self.waiting.len() == 1 && self.woken == 1 && self.last == number;
        if is_last {
            self.woken = 0;
            // An entry that has been woken has no waker that could be dropped here.
            core::mem::forget(self.waiting.pop_front());
        }
        is_last
    }

    /// Removes an entry. If it had been woken, the next waiter is woken, because there may be more resources
    /// than this one took.
    #[inline(never)]
    fn leave(&mut self, number: u64) -> Left {
        let removed = match self.place(number) {
            Some(0) => self.waiting.pop_front(),
            place => place.and_then(|at| self.waiting.remove(at)),
        };
        match removed {
            Some((_, None)) => {
                self.woken -= 1;
                Left { own: None, next: self.wake_one() }
            }
            removed => Left { own: removed.and_then(|(_, waker)| waker), next: None },
        }
    }
}

/// The wakers that remain when an entry has left the queue. They are used once the lock is free.
#[must_use = "the next task is not woken yet"]
struct Left {
    /// The waker of the entry itself, if it had not been woken.
    own: Option<Waker>,
    next: Option<Waker>,
}

impl Left {
    #[inline(always)]
    fn finish(self) {
        drop(self.own);
        if let Some(next) = self.next {
            next.wake();
        }
    }
}

/// Waits until `take` returns something of the state behind `lock`; `queue` tells the queue in it.
#[inline(always)]
pub(crate) async fn take_in_turn<S, T>(
    lock: &Mutex<S>,
    queue: impl Fn(&mut S) -> &mut FairQueue,
    mut take: impl FnMut(&mut S) -> Option<T>,
) -> T {
    let mut waiter = Waiter { lock, queue, number: None, has_yielded: false };
    core::future::poll_fn(|cx| waiter.poll(cx, &mut take)).await
}

/// A task that waits, and its entry in the queue, once it has one. Dropping it leaves the queue.
struct Waiter<'a, S, Q: Fn(&mut S) -> &mut FairQueue> {
    lock: &'a Mutex<S>,
    queue: Q,
    number: Option<u64>,
    has_yielded: bool,
}

impl<S, Q: Fn(&mut S) -> &mut FairQueue> Waiter<'_, S, Q> {
    #[inline(always)]
    fn poll<T>(&mut self, cx: &Context<'_>, take: &mut impl FnMut(&mut S) -> Option<T>) -> Poll<T> {
        let mut state = self.lock.lock();
        let queue = (self.queue)(&mut state);
        // If this waiter has an entry, it may be the only one that has been woken.
        if !self.has_yielded
            && queue.woken > usize::from(self.number.is_some())
            && queue.is_behind(&mut self.number)
        {
            self.has_yielded = true;
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(taken) = take(&mut state) {
            if let Some(number) = self.number.take() {
                let queue = (self.queue)(&mut state);
                if !queue.leave_as_the_last(number) {
                    let left = queue.leave(number);
                    drop(state);
                    left.finish();
                }
            }
            return Poll::Ready(taken);
        }
        self.has_yielded = false;
        let former = (self.queue)(&mut state).wait(&mut self.number, cx);
        drop(state);
        drop(former);
        Poll::Pending
    }
}

impl<S, Q: Fn(&mut S) -> &mut FairQueue> Drop for Waiter<'_, S, Q> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let left = (self.queue)(&mut self.lock.lock()).leave(number);
        left.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::Future;
    use core::pin::{Pin, pin};
    use std::boxed::Box;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::vec::Vec;

    #[derive(Default)]
    struct State {
        free: u32,
        queue: FairQueue,
    }

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
    /// it is woken all the same.
    #[test]
    fn all_are_woken_while_some_leave() {
        let state = Arc::new(Mutex::new(State::default()));
        let crowd = Arc::new(Crowd { tasks: std::sync::Mutex::default() });
        let wakers: Vec<_> =
            (0..3).map(|i| Arc::new(Member(i, Arc::downgrade(&crowd), AtomicU32::new(0)))).collect();
        for waker in &wakers {
            let state = state.clone();
            let closed = |state: &mut State| (state.free > 0).then_some(());
            let mut task: Task =
                Box::pin(async move { take_in_turn(&state, |state| &mut state.queue, closed).await });
            let waker = Waker::from(waker.clone());
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            crowd.tasks.lock().unwrap().push(Some(task));
        }
        let woken = {
            let mut state = state.lock();
            state.free = 1;
            state.queue.wake_all()
        };
        woken.into_iter().for_each(Waker::wake);
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
        let state = Mutex::new(State::default());
        let take = |state: &mut State| (state.free > 0).then(|| state.free -= 1);
        let waits = || take_in_turn(&state, |state| &mut state.queue, take);
        let free = |count: u32| {
            let woken = {
                let mut state = state.lock();
                state.free = count;
                state.queue.wake()
            };
            woken.wake();
        };
        let wakers: Vec<_> = (0..8).map(|_| Arc::new(Woken(AtomicU32::new(0)))).collect();
        let mut futures: Vec<_> = (0..8).map(|_| Some(pinned(waits()))).collect();
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
        free(1);
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
        state.lock().free = 1;
        // An entry that was woken and is dropped lets the next waiter look.
        futures[0] = None;
        assert_eq!((woken(2), woken(3)), (3, 0));
        assert!(poll(&mut futures, 2));
        assert_eq!((woken(3), woken(4)), (1, 0));
        // An entry that waits and is dropped was not looking.
        futures[7] = None;
        assert_eq!(woken(4), 0);
        // A newcomer lets waiters that are looking go first.
        let mut late = pin!(take_in_turn(&state, |state| &mut state.queue, |_| Some(())));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
