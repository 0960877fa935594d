//! A node that is about to leave: its memory of regions moves to other nodes, and so do the regions that it
//! owns. Regions whose master it is outlive it.

use super::owner::{RegionOwner, RegionState};
use super::placement::Placement;
use super::request::{Request, Response};
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;

/// The time that the manager may take to tell the free memory of the members.
const LOOK: Duration = Duration::from_secs(5);
/// The pause between two looks for regions that are left.
const PAUSE: Duration = Duration::from_millis(10);

impl RegionOwner {
    /// Moves all memory of regions off this node, and hands the regions over that it owns. No new region is
    /// accepted here meanwhile and, after success, later.
    pub(crate) async fn vacate(self: &Arc<Self>, deadline: Instant) -> Result<(), Error> {
        self.set_vacating(true);
        let result = self.vacate_all(deadline).await;
        if result.is_err() {
            self.set_vacating(false);
        }
        result
    }

    /// Accepts regions again after [`vacate`](Self::vacate).
    pub(crate) fn accept_regions(&self) {
        self.set_vacating(false);
    }

    async fn vacate_all(self: &Arc<Self>, deadline: Instant) -> Result<(), Error> {
        for mapping in self.mappings.administered() {
            let ask = Request::Outlive { mapping: mapping.id };
            match self.ask_owner(&mapping, &ask, deadline).await {
                Ok(_) | Err(Error::NodeDown(_) | Error::Freed) => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            let holdings = self.holdings.all();
            let own: Vec<(u64, bool)> = {
                let table = self.regions.table.lock();
                table.regions.iter().map(|(id, r)| (*id, r.state == RegionState::Live)).collect()
            };
            if holdings.is_empty() && own.is_empty() {
                return Ok(());
            }
            for (owner, holding) in holdings {
                match self.request_until(owner, &Request::Vacate { holding }, deadline).await {
                    // The memory of an owner that has died is freed once its end is settled.
                    Ok(_) | Err(Error::NodeDown(_) | Error::Freed) => {}
                    Err(error) => return Err(error),
                }
            }
            for (region, is_live) in own {
                // One that is being formed or freed is looked at again.
                if is_live {
                    self.vacate_region(region, deadline).await?;
                }
            }
            if self.platform.now() >= deadline {
                return Err(Error::Deadline);
            }
            self.timers.until(self.platform.now() + PAUSE).await;
        }
    }

    /// Moves a region of this node off it, and makes the node of its first byte the owner. If the future is
    /// dropped, that goes on.
    async fn vacate_region(self: &Arc<Self>, region: u64, deadline: Instant) -> Result<(), Error> {
        let (node, end) = (self.clone(), Arc::new(Mutex::new(None)));
        let place = end.clone();
        let task = async move {
            let result = node.pass_on(region, deadline).await;
            *place.lock() = Some(result);
            node.regions.changed.wake_all();
        };
        self.platform.spawn("lite-pass-on", Box::pin(task));
        match self.regions.changed.until(|| end.lock().take()).await {
            // It was freed meanwhile, or is looked at again: a node that maps it has left.
            Err(Error::Freed | Error::NodeDown(_) | Error::Refused(_)) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn pass_on(self: &Arc<Self>, region: u64, deadline: Instant) -> Result<(), Error> {
        self.move_off(region, self.own_id()).await?;
        let first = {
            let mut table = self.regions.table.lock();
            let r = table.live(region).ok_or(Error::Freed)?;
            r.layout.pieces().next().map(|piece| piece.at)
        };
        self.hand_region(region, first.ok_or(Error::Freed)?, deadline).await
    }

    /// Moves the memory elsewhere that `by` holds for a region of this node.
    pub(crate) async fn vacate_for(self: &Arc<Self>, by: MemberId, holding: u64) -> Result<Response, Error> {
        let region = {
            let table = self.regions.table.lock();
            let has = |share: &super::memory::Share| matches!(share, super::memory::Share::There { at, holding: h } if *at == by && *h == holding);
            table.regions.iter().find(|(_, r)| r.memory.iter().any(has)).map(|(id, _)| *id)
        };
        match region {
            Some(region) => match self.move_off(region, by).await {
                Ok(()) | Err(Error::Freed) => Ok(Response::Done),
                Err(error) => Err(error),
            },
            None => Ok(Response::Done),
        }
    }

    /// Moves a region's memory off a node, to the nodes with the most free memory.
    async fn move_off(self: &Arc<Self>, region: u64, from: MemberId) -> Result<(), Error> {
        let change = self.regions.changed.until(|| self.regions.begin_change(region)).await?;
        let (old, is_there) = {
            let mut table = self.regions.table.lock();
            let r = table.live(region).ok_or(Error::Freed)?;
            (r.layout.clone(), r.memory.iter().any(|share| share.is_on(from, self.own_id())))
        };
        if !is_there {
            return Ok(());
        }
        let room = old.room_for(from);
        let mut free = self.free_memory(self.platform.now() + LOOK).await?;
        free.retain(|(node, _)| *node != from.0);
        let mut last = Error::NoMemory { asked: room, free: 0 };
        for plan in Placement::Anywhere.plans(room, &free)? {
            match self.take_memory(&plan).await {
                Ok((other, memory)) => {
                    let Some(to) = old.without(from, &other) else {
                        self.give_memory(memory);
                        return Err(Error::OutOfBounds);
                    };
                    let me = self.own_id();
                    return self.relocate(change, Arc::new(to), memory, |share| share.is_on(from, me)).await;
                }
                Err(error @ Error::NoMemory { .. }) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}
