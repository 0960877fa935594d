//! The thread that polls the RNIC and LITE: awake while there is work and a little longer, asleep
//! otherwise.

use crate::Clock;
use crate::nic::Events;
use lite::Lite;
use platform::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use verbs::Rnic;

/// The number of packets, in each direction, in one call of the RNIC's `progress`.
const BUDGET: usize = 64;
/// The longest time awake without work.
const MAX_SPIN: Duration = Duration::from_micros(50);
/// The shortest time awake without work.
const FIRST_SPIN: Duration = Duration::from_micros(5);
/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Wakes the poller.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: OwnedFd,
    /// True if the poller sleeps or is about to: only then the bell is worth a system call.
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { bell, asleep: AtomicBool::new(false), stop: AtomicBool::new(false) }))
    }

    /// Makes the poller look again, if it sleeps. The caller must have written its data before.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full, and then it rings already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn silence(&self) {
        // Would block if the bell has not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

/// The running thread. Ended by [`stop`](Self::stop) or when dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread. `on_failure` is called with the reason if the RNIC fails for ever.
    pub(crate) fn start(
        clock: Clock,
        alarm: Arc<Alarm>,
        rnic: Arc<dyn Rnic>,
        lite: Lite,
        events: Box<dyn Events>,
        on_failure: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let on_failure: Option<OnFailure> = Some(Box::new(on_failure));
        let spin = Spin(FIRST_SPIN);
        let work = Work { clock, alarm: alarm.clone(), rnic, lite, events, on_failure, spin };
        let thread = thread::Builder::new().name("lite-poller".into()).spawn(move || work.run())?;
        Ok(Self { alarm, thread: Some(thread) })
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.alarm.stop.store(true, Ordering::SeqCst);
        self.alarm.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the poller has panicked");
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The time to stay awake: longer while sleeps turn out short, so that an answer on its way finds the
/// poller awake.
struct Spin(Duration);

impl Spin {
    fn after_sleep(&mut self, slept: Duration) {
        self.0 = if slept <= MAX_SPIN { (self.0 * 2).max(FIRST_SPIN).min(MAX_SPIN) } else { self.0 / 2 };
    }
}

type OnFailure = Box<dyn FnOnce(&str) + Send>;

struct Work {
    clock: Clock,
    alarm: Arc<Alarm>,
    rnic: Arc<dyn Rnic>,
    lite: Lite,
    events: Box<dyn Events>,
    on_failure: Option<OnFailure>,
    spin: Spin,
}

impl Work {
    fn run(mut self) {
        let mut idle_since = self.clock.now();
        while !self.alarm.stop.load(Ordering::SeqCst) {
            let now = self.clock.now();
            let mut worked = self.rnic.progress(now, BUDGET);
            worked |= self.lite.poll(now);
            if worked {
                idle_since = self.clock.now();
            } else if now < idle_since + self.spin.0 {
                thread::yield_now();
            } else if let Some(slept) = self.sleep() {
                self.spin.after_sleep(slept);
                idle_since = self.clock.now();
            }
        }
    }

    /// Sleeps until an event, the alarm or a deadline, unless there is work. Returns the duration of the
    /// sleep.
    fn sleep(&mut self) -> Option<Duration> {
        self.alarm.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Work that was posted before this is seen here; work that is posted after it rings.
        let begun = self.clock.now();
        let deadline = if self.rnic.arm() || self.lite.poll(begun) { None } else { self.deadline(begun) };
        let slept = deadline.map(|deadline| {
            self.wait(deadline - begun);
            self.clock.now() - begun
        });
        self.alarm.asleep.store(false, Ordering::SeqCst);
        self.alarm.silence();
        slept
    }

    /// Returns the time at which work is due next, or `None` if it is due now.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let due = [self.rnic.next_deadline(), self.lite.next_deadline()];
        let first = due.into_iter().flatten().fold(now + LONGEST_SLEEP, Instant::min);
        (first > now).then_some(first)
    }

    fn wait(&mut self, time: Duration) {
        let mut fds = vec![PollFd::new(&self.alarm.bell, PollFlags::IN)];
        self.events.watch(&mut fds);
        // The time is at most a second, so it fits.
        let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                log::error!("the poller cannot sleep: {error}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        if let Some(why) = self.events.failed()
            && let Some(tell) = self.on_failure.take()
        {
            tell(&why);
        }
    }
}
