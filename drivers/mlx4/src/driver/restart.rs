//! Reset and restart of a card that has failed.

use super::Mlx4;
use crate::bringup::reset::{self, Saved};
use crate::bringup::{self, PortFrames, Preserved, Started};
use crate::card::{Function, Health};
use crate::config::{FramePort, Layer};
use crate::control::{Control, ControlState};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::objects::mr::Keys;
use crate::objects::qp::QpState;
use crate::recovery::Step;
use crate::vf::channel::reset_by_flag;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use lock_api::RawMutex;
use platform::Instant;
use verbs::{CqId, Gid};

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
        match recovery.next_step(now) {
            Some(Step::Reset) => {
                let begun = self.begin_reset();
                // Flushing is safe only when the card is being reset or cannot reach memory. Otherwise its
                // work has not ended.
                if begun.is_ok() || self.is_cut_off() || self.cut_off() {
                    self.flush_all();
                }
                recovery.reset_begun(begun, now);
            }
            Some(Step::Restart) if reset::is_back(&self.hw) => match self.restart(recovery.saved()) {
                Ok(()) => {
                    log::info!("mlx4: the card was reset and works again");
                    recovery.restarted(Ok(()), now);
                    self.counts.resets.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => recovery.restarted(Err(error), self.hw.now()),
            },
            Some(Step::Restart) => recovery.not_back(now),
            None => {}
        }
        recovery.health()
    }

    /// Stops the card permanently and releases it, so that another driver finds it as after a reset. All work
    /// ends without completions. The owner must not call [`recover`](Self::recover) afterwards.
    pub fn shut_down(&self) {
        let mut state = self.control.lock();
        if self.health.fail() {
            Control::new(&self.hw, &mut state).stop();
            self.cut_off();
        }
        state.commands.fail();
    }

    fn begin_reset(&self) -> Result<(), Error> {
        match self.card.function {
            Function::Physical => reset::begin(&self.hw),
            Function::Virtual => reset_by_flag(&self.hw),
        }
    }

    /// Marks all queue pairs as lost, and completes the work in flight as flushed.
    fn flush_all(&self) {
        self.control.lock().commands.fail();
        for slot in &*self.slots {
            let mut taken = slot.lock();
            if let Some(qp) = taken.as_deref_mut().filter(|qp| qp.state != QpState::Lost) {
                qp.state = QpState::Lost;
                if let Err(error) = self.flush(qp) {
                    log::warn!("mlx4: the work of a queue pair cannot be flushed: {error}");
                }
            }
        }
    }

    /// Restarts a card that is back from its reset.
    fn restart(&self, saved: Option<&Saved>) -> Result<(), Error> {
        if let Some(saved) = saved {
            reset::finish(&self.hw, saved);
        }
        let mut state = self.control.lock();
        let groups = self
            .frames
            .each_ref()
            .map(|frames| frames.lock().as_ref().map_or_else(Vec::new, |frames| frames.groups().to_vec()));
        let preserved = self.preserved(&state);
        let started = bringup::restart(&self.hw, &self.config, self.card.function, Some(&preserved))?;
        let Started { control: mut new, card, eq, agent, mut frames, link } = started;
        new.cq_ids = core::mem::take(&mut state.cq_ids);
        // The memory of the old tables is freed only now that the card uses other memory.
        *state = new;
        let gid = core::mem::replace(&mut *self.link.lock(), link).gid;
        let gid = Some(gid).filter(|gid| card.port.layer == Layer::Ethernet && *gid != Gid([0; 16]));
        let mut control = Control::new(&self.hw, &mut state);
        if let Err(error) = self.restore(&mut control, &mut frames, &groups, gid) {
            state.commands.fail();
            reset::silence(&self.hw, self.card.function);
            return Err(error);
        }
        if let Some(gid) = gid {
            self.link.lock().gid = gid;
        }
        self.limits.key.store(card.keys.local, Ordering::Relaxed);
        self.remote_key.store(card.keys.remote, Ordering::Relaxed);
        *self.eq.lock() = eq;
        *self.agent.lock() = agent;
        for (place, frames) in self.frames.iter().zip(frames) {
            *place.lock() = frames;
        }
        self.health.works_again(self.hw.now());
        drop(state);
        self.refresh()
    }

    /// Returns the state that must survive the restart.
    fn preserved(&self, state: &ControlState<H::Block>) -> Preserved {
        let [local, remote] = [&self.limits.key, &self.remote_key].map(|key| key.load(Ordering::Relaxed));
        let mut qpns = state.qpns.clone();
        // The queue pairs for frames are made again, so their numbers are free.
        for frames in &self.frames {
            if let Some(frames) = &*frames.lock() {
                qpns.free(frames.number());
            }
        }
        Preserved { keys: Keys { local, remote }, qpns }
    }

    /// Makes the objects that a card had before its failure again: completion queues, groups of frames, and
    /// the GID.
    fn restore(
        &self,
        control: &mut Control<'_, H>,
        frames: &mut PortFrames<H::Block>,
        groups: &[Vec<[u8; 6]>; FramePort::ALL.len()],
        gid: Option<Gid>,
    ) -> Result<(), Error> {
        let card = control.card();
        if card.capabilities != self.card.capabilities || card.port.layer != self.card.port.layer {
            return Err(Error::Nonsense("its capabilities have changed with the reset"));
        }
        self.recreate_cqs(control)?;
        for (frames, groups) in frames.iter_mut().zip(groups) {
            if let Some(frames) = frames {
                groups.iter().try_for_each(|group| frames.join(control, *group))?;
            }
        }
        gid.map_or(Ok(()), |gid| control.set_gid(gid))
    }

    /// Creates the existing completion queues again on the card.
    fn recreate_cqs(&self, control: &mut Control<'_, H>) -> Result<(), Error> {
        for (index, slot) in (0..).zip(&self.cqs) {
            if let Some(cq) = slot.queue.lock().as_deref_mut() {
                control.recreate_cq(CqId(index), cq)?;
                slot.name(cq.number());
            }
        }
        Ok(())
    }
}
