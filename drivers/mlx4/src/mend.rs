//! What a card goes through that has failed: it is reset and brought up again, a step at a time and a bounded number of
//! times. All work that was under way ends with an error.

use crate::command::reset_by_flag;
use crate::config::Layer;
use crate::control::{Control, Function};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::qp::Stage;
use crate::region::Keys;
use crate::reset::{self, Saved};
use crate::start::{self, Former, Up};
use crate::{HEALTH_EVERY, Mlx4};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use lock_api::RawMutex;
use platform::Instant;
use verbs::Gid;

/// Tries in a row, after which a card is left alone.
const TRIES: u32 = 5;
/// Between the first try and the second. Each later one waits twice as long.
const BACKOFF: Duration = Duration::from_secs(1);
/// A card that was well for so long has all its tries again.
const WELL_FOR: Duration = Duration::from_secs(600);

/// How a card is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It works.
    Well,
    /// It has failed, and is being brought up again: [`Mlx4::mend`] is to be called at that time.
    Mending {
        /// When there is something to be done.
        next: Instant,
    },
    /// It has failed as often as it was brought up, and is left alone.
    Lost {
        /// Why the last try was in vain.
        error: Error,
    },
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Nothing is to be done.
    None,
    /// It is to be reset.
    Reset {
        at: Instant,
    },
    /// It was reset, and is looked for.
    Look {
        at: Instant,
        deadline: Instant,
    },
    Lost(Error),
}

/// What is done about a card that has failed.
pub(crate) struct Mending {
    step: Step,
    tries: u32,
    /// When it was last brought up.
    up_at: Instant,
    saved: Option<Saved>,
}

impl Mending {
    /// A card that is well; `saved` is what a reset loses.
    pub(crate) const fn new(saved: Option<Saved>) -> Self {
        Self { step: Step::None, tries: 0, up_at: Instant::ZERO, saved }
    }

    /// A try was in vain.
    fn again(&mut self, error: Error, now: Instant) {
        log::error!("mlx4: the card is not brought up again: {error}");
        self.step = if self.tries >= TRIES {
            Step::Lost(error)
        } else {
            Step::Reset { at: now + BACKOFF * (1 << self.tries.saturating_sub(1)) }
        };
    }
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Does what is next for a card that has failed, and says how it is. To be called by its owner now and then, not from an
    /// interrupt: it takes memory, and waits some milliseconds for commands.
    ///
    /// Once the card is told to reset, all work requests have completed as flushed, and the queue pairs that there were do
    /// nothing any more but to be destroyed. Completion queues stay, and so does the GID. So does the key of a physical
    /// function; a virtual one's is its master's to choose: [`Rnic::memory_key`](verbs::Rnic::memory_key) tells.
    pub fn mend(&self, now: Instant) -> Condition {
        let mut mending = self.mending.lock();
        if !self.has_failed() {
            return Condition::Well;
        }
        if let Step::None = mending.step {
            if now >= mending.up_at + WELL_FOR {
                mending.tries = 0;
            }
            mending.step = Step::Reset { at: now };
        }
        match mending.step {
            Step::Reset { at } if now >= at => {
                if mending.tries >= TRIES {
                    mending.again(Error::Failed, now);
                } else {
                    mending.tries += 1;
                    let begun = self.begin_reset();
                    // It is told to let go of memory, or cannot reach it. Else its work does not end.
                    if begun.is_ok() || self.is_cut_off() || self.cut_off() {
                        self.end_all();
                    }
                    match begun {
                        Ok(()) => {
                            mending.step = Step::Look { at: now + reset::LOOK, deadline: now + reset::LIMIT };
                        }
                        Err(error) => mending.again(error, now),
                    }
                }
            }
            Step::Look { at, deadline } if now >= at => {
                if reset::is_back(&self.hw) {
                    match self.bring_up_again(mending.saved.as_ref()) {
                        Ok(()) => {
                            log::info!("mlx4: the card was reset and is up again");
                            (mending.step, mending.up_at) = (Step::None, now);
                            self.resets.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => mending.again(error, self.hw.now()),
                    }
                } else if now >= deadline {
                    mending.again(Error::ResetTimeout, now);
                } else {
                    mending.step = Step::Look { at: now + reset::LOOK, deadline };
                }
            }
            _ => {}
        }
        match mending.step {
            Step::None => Condition::Well,
            Step::Reset { at } | Step::Look { at, .. } => Condition::Mending { next: at },
            Step::Lost(error) => Condition::Lost { error },
        }
    }

    fn begin_reset(&self) -> Result<(), Error> {
        match self.card.function {
            Function::Physical => reset::begin(&self.hw),
            Function::Virtual => reset_by_flag(&self.hw),
        }
    }

    /// All queue pairs are lost, and what was under way ends as flushed.
    fn end_all(&self) {
        self.control.lock().fail();
        for place in &*self.slots {
            let mut taken = place.lock();
            if let Some(slot) = taken.as_deref_mut().filter(|slot| slot.stage != Stage::Lost) {
                slot.stage = Stage::Lost;
                if let Err(error) = self.flush(slot) {
                    log::warn!("mlx4: work of a queue pair does not end: {error}");
                }
            }
        }
    }

    fn bring_up_again(&self, saved: Option<&Saved>) -> Result<(), Error> {
        if let Some(saved) = saved {
            reset::finish(&self.hw, saved);
        }
        let mut control = self.control.lock();
        let [local, remote] = [&self.key, &self.remote_key].map(|key| key.load(Ordering::Relaxed));
        let mut numbers = control.numbers.clone();
        let (mut groups, mut own) = (Vec::new(), None);
        if let Some(frames) = &*self.frames.lock() {
            groups.extend_from_slice(frames.groups());
            own = Some(frames.number());
        }
        // That of the queue pair for frames is not kept.
        own.into_iter().for_each(|number| numbers.give(number));
        let former = Former { keys: Keys { local, remote }, numbers };
        let up = start::again(&self.hw, &self.config, self.card.function, Some(&former))?;
        let Up { control: mut new, card, eq, agent, mut frames, link } = up;
        new.succeed(&mut control);
        // What it had goes only once the card has other memory, which it has from here on.
        *control = new;
        let gid = core::mem::replace(&mut *self.link.lock(), link).gid;
        let gid = Some(gid).filter(|gid| card.port.layer == Layer::Ethernet && *gid != Gid([0; 16]));
        let renewed =
            if card.capabilities == self.card.capabilities && card.port.layer == self.card.port.layer {
                self.renew(&mut control)
            } else {
                Err(Error::Nonsense("it is another card since its reset"))
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
        self.next_health.store((self.hw.now() + HEALTH_EVERY).as_nanos(), Ordering::Relaxed);
        self.cut_off.store(false, Ordering::Release);
        self.failed.store(false, Ordering::Relaxed);
        drop(control);
        self.refresh()
    }

    /// Completion queues are made anew.
    fn renew(&self, control: &mut Control<H::Block>) -> Result<(), Error> {
        for (index, place) in (0..).zip(&self.cqs) {
            let mut queue = place.queue.lock();
            if let Some(cq) = queue.as_deref_mut() {
                control.renew_cq(&self.hw, index, cq)?;
                place.number.store(cq.number(), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
