//! A node that is about to leave: its memory of regions moves to other nodes, and so do the regions that it
//! owns. Regions whose master it is outlive it.

use super::placement::Placement;
use super::relocate::Mover;
use super::request::{Request, Response};
use super::table::RegionState;
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;
use proto::ToManager;

/// The time that the manager may take to tell the free memory of the members.
const LOOK: Duration = Duration::from_secs(5);
/// The pause between two looks for regions that are left.
const PAUSE: Duration = Duration::from_millis(10);
/// The time in which an order of the manager must be carried out.
const LONGEST_ORDER: Duration = Duration::from_secs(3600);

impl Mover {
    /// Moves all memory of regions off this node, and hands the regions over that it owns. No new region is
    /// accepted here meanwhile and, after success, later.
    pub(crate) async fn vacate(&self, deadline: Instant) -> Result<(), Error> {
        // A manager of a former release does not know how names change hands.
        self.control.check_known(ToManager::GIVES_NAMES)?;
        self.set_vacating(true);
        let result = self.vacate_before(deadline).await;
        if result.is_err() {
            self.set_vacating(false);
        }
        result
    }

    /// Begins to obey an order of the manager to vacate this node. Returns false if a task does so already,
    /// and obeys this order as well.
    pub(crate) fn begin_order(&self) -> bool {
        let mut orders = self.orders.lock();
        orders.begun += 1;
        self.set_vacating(true);
        !core::mem::replace(&mut orders.obeyed, true)
    }

    /// Obeys all orders of the manager, and returns the result of the last one. Until the manager takes its
    /// order back, no new region is accepted here, also after an error.
    pub(crate) async fn obey_orders(&self) -> Result<(), Error> {
        loop {
            let begun = self.orders.lock().begun;
            let result = self.vacate_before(self.platform.now() + LONGEST_ORDER).await;
            let mut orders = self.orders.lock();
            if orders.begun == begun {
                orders.obeyed = false;
                return result;
            }
        }
    }

    async fn vacate_before(&self, deadline: Instant) -> Result<(), Error> {
        // A region that is on its way goes on after the deadline.
        let result = self.timers.before(deadline, self.vacate_all(deadline)).await;
        result.unwrap_or(Err(Error::Deadline))
    }

    /// Accepts regions again after [`vacate`](Self::vacate), and takes an order of the manager back.
    pub(crate) fn accept_regions(&self) {
        self.set_vacating(false);
    }

    async fn vacate_all(&self, deadline: Instant) -> Result<(), Error> {
        // This node need not map a region to be its master.
        self.regions.outlive_all(self, self.own_id())?;
        for peer in self.live_peers() {
            match self.request_until(peer, &Request::OutliveAll, deadline).await {
                Ok(_) | Err(Error::NodeDown(_)) => {}
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
                    self.vacate_region(region).await?;
                }
            }
            if self.platform.now() >= deadline {
                return Err(Error::Deadline);
            }
            if !self.is_vacating() {
                return Err(Error::Refused("regions are accepted again".into()));
            }
            self.timers.until(self.platform.now() + PAUSE).await;
        }
    }

    /// Moves a region of this node off it, and makes the node of its first byte the owner. If the future is
    /// dropped, that goes on.
    async fn vacate_region(&self, region: u64) -> Result<(), Error> {
        let (node, end) = (self.clone(), Arc::new(Mutex::new(None)));
        let place = end.clone();
        let task = async move {
            let result = node.pass_on(region).await;
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

    async fn pass_on(&self, region: u64) -> Result<(), Error> {
        self.move_off(region, self.own_id()).await?;
        let first = {
            let mut table = self.regions.table.lock();
            let r = table.live(region).ok_or(Error::Freed)?;
            r.layout.pieces().next().map(|piece| piece.at)
        };
        self.hand_region(region, first.ok_or(Error::Freed)?).await
    }

    /// Moves the memory elsewhere that `by` holds for a region of this node.
    pub(crate) async fn vacate_for(&self, by: MemberId, holding: u64) -> Result<Response, Error> {
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
    async fn move_off(&self, region: u64, from: MemberId) -> Result<(), Error> {
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
