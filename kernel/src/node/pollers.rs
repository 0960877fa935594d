//! The RNIC as a poller of core 0, and LITE as a poller of each core that has queue pairs of its own.
//!
//! Core 0 drives the RNIC. The completions of another core are taken by that core. While it sleeps, or runs
//! one task for long, core 0 takes them for it, and thereby wakes its tasks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use lite::Lite;
use platform::Instant;
use verbs::Rnic;

use crate::arch::percpu::MAX_CPUS;
use crate::exec::{self, Poller};

/// The interval at which core 0 looks for cores that have not polled.
const LOOK: Duration = Duration::from_micros(50);
/// The time after which core 0 polls for a core that runs a task.
const ABSENCE: Duration = Duration::from_micros(200);

/// The cores that poll LITE and sleep, or are about to. Core 0 polls for them.
static ASLEEP: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// Makes core 0 drive the RNIC, also from interrupts.
pub(super) fn register_rnic(rnic: Arc<dyn Rnic>) {
    exec::register_poller(0, Box::new(RnicPoller(rnic)));
}

/// Makes each core that has queue pairs of its own drive its part of LITE, in task context only.
pub(super) fn register_lite(lite: &Lite) {
    for core in (1..lite.pollers()).rev() {
        exec::register_poller(core, Box::new(LitePoller { lite: lite.clone(), core }));
    }
    exec::register_poller(0, Box::new(FirstLitePoller { lite: lite.clone(), next_look: Instant::ZERO }));
}

struct RnicPoller(Arc<dyn Rnic>);

impl Poller for RnicPoller {
    fn name(&self) -> &'static str {
        "rnic"
    }

    fn poll(&mut self, now: Instant, budget: u32) -> bool {
        let worked = self.0.progress(now, budget as usize);
        if worked && budget == exec::INTERRUPT_BUDGET {
            // A task keeps this core from polling LITE, so the other cores take their completions themselves.
            fence(Ordering::SeqCst);
            let asleep = ASLEEP.iter().enumerate().filter(|(_, asleep)| asleep.load(Ordering::Relaxed));
            asleep.for_each(|(core, _)| exec::kick(core));
        }
        worked
    }

    fn next_deadline(&self) -> Instant {
        self.0.next_deadline().unwrap_or(Instant::MAX)
    }

    fn is_urgent(&self) -> bool {
        // The pollers of LITE take the completions of a card.
        !self.0.works_alone()
    }

    fn wakes_tasks(&self) -> bool {
        // LITE's poller, which runs next, finds the completions and wakes their tasks.
        false
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }
}

/// LITE on core 0, which also polls for cores that do not.
struct FirstLitePoller {
    lite: Lite,
    /// The time at which this core looks for cores that have not polled.
    next_look: Instant,
}

impl FirstLitePoller {
    /// Polls for the cores that sleep.
    fn poll_for_sleepers(&self, now: Instant) -> bool {
        // The fence in `LitePoller::arm` is its counterpart: this core finds the flag set, or that core finds
        // the completion.
        fence(Ordering::SeqCst);
        let others = ASLEEP.iter().enumerate().take(self.lite.pollers()).skip(1);
        let asleep = others.filter(|(_, asleep)| asleep.load(Ordering::Relaxed));
        asleep.fold(false, |any, (core, _)| self.lite.poll_core(core, now) | any)
    }

    /// Polls for the cores that have not polled for long.
    fn poll_for_absent(&self, now: Instant) -> bool {
        let absent = |core: &usize| exec::last_poll(*core) + ABSENCE <= now;
        (1..self.lite.pollers()).filter(absent).fold(false, |any, core| self.lite.poll_core(core, now) | any)
    }
}

impl Poller for FirstLitePoller {
    fn name(&self) -> &'static str {
        "lite"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        let mut worked = self.lite.poll_core(0, now);
        if self.lite.pollers() > 1 {
            worked |= self.poll_for_sleepers(now);
            if now >= self.next_look {
                self.next_look = now + LOOK;
                worked |= self.poll_for_absent(now);
            }
        }
        worked
    }

    fn next_deadline(&self) -> Instant {
        self.lite.next_deadline().unwrap_or(Instant::MAX)
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn may_interrupt(&self) -> bool {
        // LITE's poller wakes tasks and may drop them.
        false
    }

    fn arm(&mut self) -> bool {
        // Completions come from the RNIC's poller, which has run before; work that a task has queued since is
        // handled here.
        let now = crate::time::now();
        self.lite.poll_core(0, now) | self.poll_for_sleepers(now)
    }
}

/// LITE on another core.
struct LitePoller {
    lite: Lite,
    core: usize,
}

impl LitePoller {
    fn set_asleep(&self, asleep: bool) {
        if let Some(word) = ASLEEP.get(self.core)
            && word.load(Ordering::Relaxed) != asleep
        {
            word.store(asleep, Ordering::SeqCst);
        }
    }
}

impl Poller for LitePoller {
    fn name(&self) -> &'static str {
        "lite"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        self.set_asleep(false);
        self.lite.poll_core(self.core, now)
    }

    fn next_deadline(&self) -> Instant {
        self.lite.next_deadline_of(self.core).unwrap_or(Instant::MAX)
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn may_interrupt(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        self.set_asleep(true);
        fence(Ordering::SeqCst);
        // If there was work, this core goes on, and its next poll notes that.
        self.lite.poll_core(self.core, crate::time::now())
    }
}
