//! Tasks that stay attentive: while a task waits and its core has nothing else to do, the run of the task
//! goes on with polls of the RNIC and LITE. The event that it waits for then finds it at hand, without the
//! run queue, the main loop, and the start of another run.
//!
//! Such a task has a waker of its own, which only notes the wake-up while the task is attentive. So each
//! wake-up is seen, whichever core it comes from.

use core::mem::{self, ManuallyDrop};
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use platform::Instant;
use spin::Once;

use super::core_state::{Attended, Core};
use crate::time;

/// The states of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum State {
    /// The task is being polled, or has not been polled yet.
    Running = 0,
    /// The task waits, and looks for its wake-up by itself.
    Attentive = 1,
    /// The task waits, and must be made ready by a wake-up.
    Asleep = 2,
    /// The task has been woken.
    Woken = 3,
}

/// The part of a task by which it is woken. It is a part of the task's metadata, which exists as long as
/// there is a waker.
#[derive(Debug)]
pub(super) struct Attention {
    /// A [`State`].
    state: AtomicU8,
    /// The waker that makes the task ready. It does not count as a reference.
    task: Once<TaskWaker>,
}

/// The parts of the waker that the executor gives to the task.
#[derive(Debug)]
struct TaskWaker {
    data: *const (),
    vtable: &'static RawWakerVTable,
}

// SAFETY: wakers are usable on all cores, and so are their parts.
unsafe impl Send for TaskWaker {}
// SAFETY: as above.
unsafe impl Sync for TaskWaker {}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

impl Attention {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU8::new(State::Running as u8), task: Once::new() }
    }

    /// Polls the task of core `core` by `poll`, whenever it has been woken, and pays attention for as long
    /// as the core has nothing else to do. Ready once `poll` has returned true. `cx` has the waker that
    /// makes the task ready. The function is not generic, so that not all kinds of tasks contain it.
    ///
    /// # Safety
    /// Call in a run of the task whose metadata this is, on its core.
    pub(super) unsafe fn poll(
        &self,
        core: &Core,
        cx: &Context<'_>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) -> Poll<()> {
        if !self.task.is_completed() {
            self.learn(cx.waker());
        }
        // The executor's reference to the task lasts for this run.
        // SAFETY: the functions of the table expect an `Attention`, and this one lasts as long as the task.
        let waker = ManuallyDrop::new(unsafe { Waker::new((&raw const *self).cast(), &VTABLE) });
        let mut resumes = self.is(State::Attentive);
        loop {
            let polled = core.last_poll();
            if !resumes {
                self.state.swap(State::Running as u8, Ordering::Acquire);
                if poll(&mut Context::from_waker(&waker)) {
                    return Poll::Ready(());
                }
            }
            // SAFETY: the caller's promise; the task's future is not being polled.
            if unsafe { self.wait(core, cx, resumes, polled) }.is_pending() {
                return Poll::Pending;
            }
            resumes = false;
        }
    }

    /// Notes the waker that makes the task ready. The executor gives the same one to each run.
    #[cold]
    #[inline(never)]
    fn learn(&self, waker: &Waker) {
        self.task.call_once(|| TaskWaker { data: waker.data(), vtable: waker.vtable() });
    }

    /// Waits for the wake-up of the task, whose future is pending, as long as the core has nothing else to
    /// do. Ready if the future must be polled again. If pending, the run of the task must end. `resumes`: the
    /// task has waited in its former run already. `polled`: the last poll of the core before the future's.
    ///
    /// # Safety
    /// As for [`poll`](Self::poll); the task's future must not be in a poll.
    unsafe fn wait(&self, core: &Core, cx: &Context<'_>, resumes: bool, polled: Instant) -> Poll<()> {
        let is_alone = core.ready() == 0;
        if !resumes {
            core.idle().note_work();
            if !self.enter(State::Running, if is_alone { State::Attentive } else { State::Asleep }) {
                // The task yields, or an event has come meanwhile. If it has polled in vain, a turn of the
                // main loop would only poll once more.
                if is_alone && core.last_poll() > polled && !core.is_full_turn_due(time::now()) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !is_alone {
                return Poll::Pending;
            }
        }
        // SAFETY: the caller's promise.
        match unsafe { core.attend(resumes, || self.is(State::Woken)) } {
            Attended::Woken => return Poll::Ready(()),
            Attended::MustTurn => cx.waker().wake_by_ref(),
            Attended::MustSleep => {
                if !self.enter(State::Attentive, State::Asleep) {
                    cx.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }

    fn is(&self, state: State) -> bool {
        self.state.load(Ordering::Relaxed) == state as u8
    }

    /// Changes the state from `from` to `to`. Returns false if the task has been woken.
    fn enter(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Returns the waker that makes the task ready. Dropping it would return a reference that this is not.
    fn task(&self) -> ManuallyDrop<Waker> {
        let TaskWaker { data, vtable } = self.task.get().expect("a waker exists only once the task has run");
        // SAFETY: these are the parts of a waker of the task, to which the caller has a reference.
        ManuallyDrop::new(unsafe { Waker::new(*data, vtable) })
    }

    fn wake(&self) {
        if self.state.swap(State::Woken as u8, Ordering::AcqRel) == State::Asleep as u8 {
            self.task().wake_by_ref();
        }
    }
}

/// Returns the attention of a waker's task.
///
/// # Safety
/// `data` must be a waker's, which lasts as long as the result is used.
unsafe fn attention<'a>(data: *const ()) -> &'a Attention {
    // SAFETY: the caller's promise; `Attention::poll` is the only source of these wakers.
    unsafe { &*data.cast() }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the waker that is being cloned lasts meanwhile.
    let task = unsafe { attention(data) }.task();
    mem::forget(Waker::clone(&task));
    RawWaker::new(data, &VTABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: the waker lasts until it is dropped in the second step.
    unsafe {
        wake_by_ref(data);
        drop_waker(data);
    }
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker lasts meanwhile.
    unsafe { attention(data) }.wake();
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the waker's reference to the task ends here, where it is dropped.
    drop(ManuallyDrop::into_inner(unsafe { attention(data) }.task()));
}
