//! As an owner: what changes a region while it is in use. Rights, names, the master; and moves.
//!
//! A move takes the new memory first, then has every holder keep its operations waiting, copies, puts the new pieces in the
//! place of the old, and has every holder look anew; the old memory is freed last. It ends in one of two states, whoever dies
//! meanwhile: all of the region is in the new place, or all of it in the old and the new memory is given back. Which one is
//! decided here, in one step. If the owner itself dies, the region is void.

use super::layout::Layout;
use super::mapping::Mapping;
use super::memory::Plan;
use super::owner::Changing;
use super::rights::Grantee;
use crate::membership::Life;
use crate::names::Named;
use crate::node::Node;
use crate::op::Data;
use crate::planted::{Bug, planted};
use crate::qos::Share;
use crate::rpc::{Answer, Ask};
use crate::sometimes::sometimes;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use proto::NodeId;

/// How long the directory may take to bind or free a name.
const NAME_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes copied at once.
const COPY_STEP: u64 = 1 << 20;
/// How long that may take.
const COPY_DEADLINE: Duration = Duration::from_secs(10);

impl Node {
    /// Begins a change of the region that `by` maps with `ADMIN`; waits for the one before.
    async fn change(&self, by: Life, mapping: u64) -> Result<Changing<'_>, Error> {
        let region = self.lock_for(&self.regions.table, by)?.through(mapping, Permissions::ADMIN)?.0;
        self.regions.changed.until(|| self.regions.begin_change(region)).await
    }

    /// Publishes a region under one more name.
    pub(crate) async fn publish_region(
        self: &Arc<Self>,
        by: Life,
        mapping: u64,
        name: &str,
    ) -> Result<Answer, Error> {
        let (region, named) = {
            let mut table = self.lock_for(&self.regions.table, by)?;
            let (region, r) = table.through(mapping, Permissions::ADMIN)?;
            if !r.rights.give(Permissions::SHARE) {
                return Err(Error::Permission);
            }
            if r.names.iter().any(|n| n == name) {
                return Err(Error::NameTaken);
            }
            // Before it is bound: whoever finds it may map the region.
            r.names.push(name.into());
            (region, Named::Region { owner: self.me, region, key: r.key() })
        };
        let deadline = self.platform.now() + NAME_DEADLINE;
        let bound = self.bind_named(name, &named, deadline).await;
        if let Err(error) = &bound {
            if *error == Error::Unknown {
                // It may be bound, and must not be.
                drop(self.unbind(name, self.platform.now() + NAME_DEADLINE).await);
            }
            self.drop_name(region, name);
        }
        bound.map(|_| Answer::Done)
    }

    /// Frees a name of a region, for whoever may administer it.
    pub(crate) async fn unpublish_region(
        self: &Arc<Self>,
        by: Life,
        region: u64,
        name: &str,
    ) -> Result<Answer, Error> {
        {
            let mut table = self.lock_for(&self.regions.table, by)?;
            let administers = table.administers(by, region);
            let r = table.live(region).ok_or(Error::NoSuchName)?;
            if !r.names.iter().any(|n| n == name) {
                return Err(Error::NoSuchName);
            }
            if !administers {
                return Err(Error::Permission);
            }
        }
        match self.unbind(name, self.platform.now() + NAME_DEADLINE).await {
            Ok(()) | Err(Error::NoSuchName) => {}
            Err(error) => return Err(error),
        }
        self.drop_name(region, name);
        Ok(Answer::Done)
    }

    fn drop_name(self: &Arc<Self>, region: u64, name: &str) {
        let mut table = self.regions.table.lock();
        if let Some(r) = table.live(region) {
            r.names.retain(|n| n != name);
        }
        let unreachable = table.mark_if_unreachable(region);
        drop(table);
        if unreachable {
            self.spawn_fence(region);
        }
    }

    /// Grants rights: to whoever maps the region from now on.
    pub(crate) fn grant(
        &self,
        by: Life,
        mapping: u64,
        to: Grantee,
        rights: Permissions,
    ) -> Result<Answer, Error> {
        let mut table = self.lock_for(&self.regions.table, by)?;
        let rows = &mut table.through(mapping, Permissions::ADMIN)?.1.rights;
        if let Grantee::Node(node) = to
            && self.has_left(node)
        {
            // Its row is cleared already, and would be that of its next life.
            return Err(Error::NodeDown(node));
        }
        rows.grant(to, rights);
        Ok(Answer::Done)
    }

    /// Takes rights away. Answered when no operation that relies on them is under way.
    pub(crate) async fn revoke_rights(
        self: &Arc<Self>,
        by: Life,
        mapping: u64,
        from: Grantee,
        rights: Permissions,
    ) -> Result<Answer, Error> {
        let change = self.change(by, mapping).await?;
        let (holders, gate) = {
            let mut table = self.regions.table.lock();
            let r = table.live(change.region).ok_or(Error::Freed)?;
            r.rights.revoke(from, rights);
            let gate = r.gate.clone();
            (table.restrict(change.region, from, rights), gate)
        };
        if holders.is_empty() || planted(Bug::RevokeTellsNobody) {
            return Ok(Answer::Done);
        }
        // What nodes do for holders that no longer may have it done.
        gate.pause();
        let told = self.tell_holders(holders, |mappings| Ask::Restrict { mappings, rights }).await;
        gate.drained().await;
        gate.reopen();
        if told { Ok(Answer::Done) } else { Err(Error::LinkDown) }
    }

    /// Whoever maps the region from now on must know `secret`.
    pub(crate) fn set_secret(&self, by: Life, mapping: u64, secret: Vec<u8>) -> Result<Answer, Error> {
        let mut table = self.lock_for(&self.regions.table, by)?;
        table.through(mapping, Permissions::ADMIN)?.1.secret = secret;
        Ok(Answer::Done)
    }

    /// Another node is the master from now on.
    pub(crate) fn hand_over(&self, by: Life, mapping: u64, to: NodeId) -> Result<Answer, Error> {
        let to = self.life_of(to)?;
        let mut table = self.lock_for(&self.regions.table, by)?;
        let (_, r) = table.through(mapping, Permissions::ADMIN)?;
        // Under the lock, so that its end is seen here or ends the region.
        if !self.is_live(to) {
            return Err(Error::NodeDown(to.0));
        }
        r.master = to;
        Ok(Answer::Done)
    }

    /// Moves a region, as said above.
    pub(crate) async fn move_region(
        self: &Arc<Self>,
        by: Life,
        mapping: u64,
        plan: &Plan,
    ) -> Result<Answer, Error> {
        let change = self.change(by, mapping).await?;
        let (layout, memory) = self.take_memory(plan).await?;
        let layout = Arc::new(layout);
        let begun = {
            let mut table = self.regions.table.lock();
            let r = table.live(change.region).filter(|r| r.layout.len() == layout.len());
            r.map(|r| {
                r.moving = true;
                (r.layout.clone(), r.gate.clone(), r.generation + 1)
            })
        };
        let Some((old, gate, generation)) = begun else {
            self.give_memory(memory);
            return Err(Error::Freed);
        };
        gate.pause();
        let holders = self.regions.holders(change.region);
        let told = planted(Bug::MoveTellsNobody)
            || self.tell_holders(holders, |mappings| Ask::Pause { mappings, generation }).await;
        gate.drained().await;
        let copied = if told { self.copy(&old, &layout).await } else { Err(Error::LinkDown) };
        // From here on the region is in the new place, or stays in the old one.
        let (unused, result) = {
            let mut table = self.regions.table.lock();
            let unused = match table.any(change.region) {
                Some(r) => {
                    r.generation = generation;
                    r.moving = false;
                    if copied.is_ok() || planted(Bug::HalfMoved) {
                        r.layout = layout;
                        core::mem::replace(&mut r.memory, memory)
                    } else {
                        memory
                    }
                }
                None => memory,
            };
            (unused, copied)
        };
        if result.is_err() {
            sometimes!("a move failed and the region stayed");
        }
        gate.reopen();
        self.regions.changed.wake_all();
        // Nothing is under way to it, and nobody looks there any more.
        self.give_memory(unused);
        let holders = self.regions.holders(change.region);
        if !self.tell_holders(holders, |mappings| Ask::Resume { mappings, generation }).await {
            return Err(Error::LinkDown);
        }
        drop(change);
        result.map(|()| Answer::Done)
    }

    /// Copies all bytes from one layout to another of the same length. Afterwards nothing of it is under way.
    async fn copy(self: &Arc<Self>, from: &Arc<Layout>, to: &Arc<Layout>) -> Result<(), Error> {
        let me = (self.me, self.incarnation);
        let open = |layout: &Layout| {
            let stamp = self.stamps.stamp()?;
            Ok::<_, Error>(Mapping::new(me, 0, Permissions::all(), 1, layout.clone(), stamp))
        };
        let (source, target) = (open(from)?, open(to)?);
        let (len, issued) = (from.len(), AtomicBool::new(false));
        let mut buffer = vec![0; COPY_STEP.min(len) as usize];
        let mut done = 0;
        let result = loop {
            if done >= len {
                break Ok(());
            }
            let step = COPY_STEP.min(len - done) as usize;
            let Some(bytes) = buffer.get_mut(..step) else { break Err(Error::OutOfBounds) };
            let deadline = self.platform.now() + COPY_DEADLINE;
            let copied = async {
                self.access(&source, done, Data::Read(bytes), Share::All, &issued).await?;
                self.access(&target, done, Data::Write(bytes), Share::All, &issued).await
            };
            if let Err(error) = self.limit(deadline, &issued, copied).await {
                break Err(error);
            }
            done += step as u64;
            platform::yield_now().await;
        };
        // An attempt that was given up may still be on the wire.
        for mapping in [source, target] {
            mapping.close();
            self.drained(&mapping).await;
        }
        result
    }
}
