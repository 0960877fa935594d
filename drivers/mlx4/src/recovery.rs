//! Recovery of a card that has failed: it is reset and restarted in steps, a bounded number of times. All
//! work in flight ends with an error.
//!
//! ```text
//! None ---- failure ---------------------------> Reset
//! Reset --- its time comes, reset begins ------> AwaitReset
//! AwaitReset --- card is back and restarted ---> None
//! Reset or AwaitReset --- error or deadline ---> Reset after a pause, or Lost after MAX_ATTEMPTS
//! ```

use crate::command::reset_by_flag;
use crate::config::Layer;
use crate::control::{Control, Function};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::memory_region::Keys;
use crate::qp::QpState;
use crate::reset::{self, Saved};
use crate::start::{self, Preserved, Started};
use crate::{HEALTH_INTERVAL, Mlx4};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use lock_api::RawMutex;
use platform::Instant;
use verbs::Gid;

/// Restarts in a row without success, after which the driver gives the card up.
const MAX_ATTEMPTS: u32 = 5;
/// The time between the first attempt and the second. It doubles with each later attempt.
const BACKOFF: Duration = Duration::from_secs(1);
/// The time without failure after which a card has all its attempts again.
const STABLE_TIME: Duration = Duration::from_secs(600);

/// The health of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// The card works.
    Ok,
    /// The card has failed and is being recovered. The owner must call [`Mlx4::recover`] at `next`.
    Recovering {
        /// The time of the next step.
        next: Instant,
    },
    /// The maximum number of recoveries in a row has failed. The driver has given the card up.
    Lost {
        /// The error of the last attempt.
        error: Error,
    },
}

/// The next step of a recovery.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The card works.
    None,
    /// The card will be reset.
    Reset {
        at: Instant,
    },
    /// The card was reset and is polled until it is back.
    AwaitReset {
        at: Instant,
        deadline: Instant,
    },
    Lost(Error),
}

/// The state of a card's recovery.
pub(crate) struct Recovery {
    step: Step,
    attempts: u32,
    /// The time of the last start.
    started_at: Instant,
    saved: Option<Saved>,
}

impl Recovery {
    /// Begins with a working card; `saved` is the configuration that a reset loses.
    pub(crate) const fn new(saved: Option<Saved>) -> Self {
        Self { step: Step::None, attempts: 0, started_at: Instant::ZERO, saved }
    }

    /// Records that an attempt has failed.
    fn attempt_failed(&mut self, error: Error, now: Instant) {
        log::error!("mlx4: the card cannot be restarted: {error}");
        self.step = if self.attempts >= MAX_ATTEMPTS {
            Step::Lost(error)
        } else {
            Step::Reset { at: now + BACKOFF * (1 << self.attempts.saturating_sub(1)) }
        };
    }
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Does the next step for a card that has failed, and returns the card's health. The owner calls it
    /// periodically, but not in an interrupt: it allocates memory, and waits some milliseconds for commands.
    ///
    /// Once the reset has begun, all work requests have completed as flushed, and the existing queue pairs
    /// can only be destroyed. Completion queues and the GID persist. The key of a physical function persists
    /// too; that of a virtual function is its master's choice, so callers must read
    /// [`Rnic::memory_key`](verbs::Rnic::memory_key) again.
    pub fn recover(&self, now: Instant) -> Health {
        let mut recovery = self.recovery.lock();
        if !self.has_failed() {
            return Health::Ok;
        }
        if let Step::None = recovery.step {
            if now >= recovery.started_at + STABLE_TIME {
                recovery.attempts = 0;
            }
            recovery.step = Step::Reset { at: now };
        }
        match recovery.step {
            Step::Reset { at } if now >= at => {
                if recovery.attempts >= MAX_ATTEMPTS {
                    recovery.attempt_failed(Error::Failed, now);
                } else {
                    recovery.attempts += 1;
                    let begun = self.begin_reset();
                    // Flushing is safe only when the card is being reset or cannot reach memory. Otherwise
                    // its work has not ended.
                    if begun.is_ok() || self.is_cut_off() || self.cut_off() {
                        self.flush_all();
                    }
                    match begun {
                        Ok(()) => {
                            recovery.step = Step::AwaitReset {
                                at: now + reset::POLL_INTERVAL,
                                deadline: now + reset::RESET_LIMIT,
                            };
                        }
                        Err(error) => recovery.attempt_failed(error, now),
                    }
                }
            }
            Step::AwaitReset { at, deadline } if now >= at => {
                if reset::is_back(&self.hw) {
                    match self.restart(recovery.saved.as_ref()) {
                        Ok(()) => {
                            log::info!("mlx4: the card was reset and works again");
                            (recovery.step, recovery.started_at) = (Step::None, now);
                            self.resets.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => recovery.attempt_failed(error, self.hw.now()),
                    }
                } else if now >= deadline {
                    recovery.attempt_failed(Error::ResetTimeout, now);
                } else {
                    recovery.step = Step::AwaitReset { at: now + reset::POLL_INTERVAL, deadline };
                }
            }
            _ => {}
        }
        match recovery.step {
            Step::None => Health::Ok,
            Step::Reset { at } | Step::AwaitReset { at, .. } => Health::Recovering { next: at },
            Step::Lost(error) => Health::Lost { error },
        }
    }

    fn begin_reset(&self) -> Result<(), Error> {
        match self.card.function {
            Function::Physical => reset::begin(&self.hw),
            Function::Virtual => reset_by_flag(&self.hw),
        }
    }

    /// Marks all queue pairs as lost, and completes the work in flight as flushed.
    fn flush_all(&self) {
        self.control.lock().fail();
        for place in &*self.slots {
            let mut taken = place.lock();
            if let Some(slot) = taken.as_deref_mut().filter(|slot| slot.state != QpState::Lost) {
                slot.state = QpState::Lost;
                if let Err(error) = self.flush(slot) {
                    log::warn!("mlx4: the work of a queue pair cannot be flushed: {error}");
                }
            }
        }
    }

    fn restart(&self, saved: Option<&Saved>) -> Result<(), Error> {
        if let Some(saved) = saved {
            reset::finish(&self.hw, saved);
        }
        let mut control = self.control.lock();
        let [local, remote] = [&self.key, &self.remote_key].map(|key| key.load(Ordering::Relaxed));
        let mut qpns = control.qpns.clone();
        let (mut groups, mut own) = (Vec::new(), None);
        if let Some(frames) = &*self.frames.lock() {
            groups.extend_from_slice(frames.groups());
            own = Some(frames.number());
        }
        // The queue pair for frames is made again, so its number is free.
        own.into_iter().for_each(|number| qpns.free(number));
        let preserved = Preserved { keys: Keys { local, remote }, qpns };
        let up = start::restart(&self.hw, &self.config, self.card.function, Some(&preserved))?;
        let Started { control: mut new, card, eq, agent, mut frames, link } = up;
        new.take_over(&mut control);
        // The memory of the old tables is freed only now that the card uses other memory.
        *control = new;
        let gid = core::mem::replace(&mut *self.link.lock(), link).gid;
        let gid = Some(gid).filter(|gid| card.port.layer == Layer::Ethernet && *gid != Gid([0; 16]));
        let renewed =
            if card.capabilities == self.card.capabilities && card.port.layer == self.card.port.layer {
                self.recreate(&mut control)
            } else {
                Err(Error::Nonsense("its capabilities have changed with the reset"))
            };
        let joined = renewed.and_then(|()| match &mut frames {
            Some(frames) => {
                groups.into_iter().try_for_each(|group| frames.join(&self.hw, &mut control, group))
            }
            None => Ok(()),
        });
        let told = joined.and_then(|()| gid.map_or(Ok(()), |gid| control.set_gid(&self.hw, &card, gid)));
        if let Err(error) = told {
            control.fail();
            reset::silence(&self.hw, self.card.function);
            return Err(error);
        }
        if let Some(gid) = gid {
            self.link.lock().gid = gid;
        }
        self.key.store(card.keys.local, Ordering::Relaxed);
        self.remote_key.store(card.keys.remote, Ordering::Relaxed);
        *self.eq.lock() = eq;
        *self.agent.lock() = agent;
        *self.frames.lock() = frames;
        self.next_health.store((self.hw.now() + HEALTH_INTERVAL).as_nanos(), Ordering::Relaxed);
        self.cut_off.store(false, Ordering::Release);
        self.failed.store(false, Ordering::Relaxed);
        drop(control);
        self.refresh()
    }

    /// Creates the existing completion queues again on the card.
    fn recreate(&self, control: &mut Control<H::Block>) -> Result<(), Error> {
        for (index, place) in (0..).zip(&self.cqs) {
            let mut queue = place.queue.lock();
            if let Some(cq) = queue.as_deref_mut() {
                control.recreate_cq(&self.hw, index, cq)?;
                place.number.store(cq.number(), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
