//! Changes of a region in use, at its owner: rights, names, master, the request for a move.

use super::exclusion::Changing;
use super::relocate::Mover;
use super::request::Plan;
use super::rights::Grantee;
use crate::base::member::MemberId;
use crate::base::names::{Bearer, Named};
use crate::planted::{Bug, planted};
use crate::region::owner::RegionOwner;
use crate::region::request::{Request, Response};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use proto::NodeId;

/// The time that the directory may take to bind or free a name.
const NAME_DEADLINE: Duration = Duration::from_secs(5);

impl RegionOwner {
    /// Begins a change of the region that `by` maps with `ADMIN`; waits until the change before it has
    /// ended.
    async fn change(&self, by: MemberId, mapping: u64) -> Result<Changing<'_>, Error> {
        let region = self.lock_for(&self.regions.table, by)?.through(mapping, Permissions::ADMIN)?.0;
        self.regions.changed.until(|| self.regions.begin_change(region)).await
    }

    /// Publishes a region under one more name.
    pub(crate) async fn publish_region(
        self: &Arc<Self>,
        by: MemberId,
        mapping: u64,
        name: &str,
    ) -> Result<Response, Error> {
        let region = self.lock_for(&self.regions.table, by)?.through(mapping, Permissions::ADMIN)?.0;
        let _naming = self.regions.changed.until(|| self.regions.begin_naming(region)).await?;
        let (region, named) = {
            let mut table = self.lock_for(&self.regions.table, by)?;
            let (region, r) = table.through(mapping, Permissions::ADMIN)?;
            if !r.rights.give(Permissions::SHARE) {
                return Err(Error::Permission);
            }
            if r.names.iter().any(|n| n == name) {
                return Err(Error::NameTaken);
            }
            // Noted before it is bound: a node that finds the name may map the region at once.
            r.names.push(name.into());
            (region, Named::Region { owner: self.me, region, key: r.key })
        };
        let deadline = self.platform.now() + NAME_DEADLINE;
        let bound = self.bind_named(name, &named, deadline).await;
        let is_named = || {
            let mut table = self.regions.table.lock();
            table.live(region).is_some_and(|r| r.names.iter().any(|n| n == name))
        };
        match &bound {
            Ok(_) if is_named() => {}
            // While this waited for another region of this node to give the name up, the region was freed,
            // and its names were unbound.
            Ok(_) => {
                self.spawn_drop_name(region, name.into());
                return Err(Error::Freed);
            }
            // The name may be bound, and must not stay so.
            Err(Error::Unknown) => self.spawn_drop_name(region, name.into()),
            Err(_) => self.drop_name(region, name),
        }
        bound.map(|_| Response::Done)
    }

    /// Frees a name of a region, for a node that may administer the region. Fails with `Freed` if the region
    /// is not here.
    pub(crate) async fn unpublish_region(
        self: &Arc<Self>,
        by: MemberId,
        region: u64,
        name: &str,
    ) -> Result<Response, Error> {
        let _naming = self.regions.changed.until(|| self.regions.begin_naming(region)).await?;
        {
            let mut table = self.lock_for(&self.regions.table, by)?;
            let administers = table.administers(by, region);
            let r = table.live(region).ok_or(Error::Freed)?;
            if !r.names.iter().any(|n| n == name) {
                return Err(Error::NoSuchName);
            }
            if !administers {
                return Err(Error::Permission);
            }
        }
        let deadline = self.platform.now() + NAME_DEADLINE;
        match self.unbind_from(name, Bearer::Region(region), deadline).await {
            Ok(()) | Err(Error::NoSuchName) => {}
            Err(error) => return Err(error),
        }
        self.drop_name(region, name);
        Ok(Response::Done)
    }

    fn spawn_drop_name(self: &Arc<Self>, region: u64, name: String) {
        let node = self.clone();
        let task = async move {
            node.unbind_at_last(&name, Bearer::Region(region)).await;
            node.drop_name(region, &name);
        };
        self.platform.spawn("lite-unbind", Box::pin(task));
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

    /// Grants rights to nodes that map the region from now on.
    pub(crate) fn grant(
        &self,
        by: MemberId,
        mapping: u64,
        to: Grantee,
        rights: Permissions,
    ) -> Result<Response, Error> {
        let mut table = self.lock_for(&self.regions.table, by)?;
        let rows = &mut table.through(mapping, Permissions::ADMIN)?.1.rights;
        if let Grantee::Node(node) = to
            && self.has_left(node)
        {
            // The node's row is cleared already, so the right would go to its next incarnation.
            return Err(Error::NodeDown(node));
        }
        rows.grant(to, rights);
        Ok(Response::Done)
    }

    /// Revokes rights. Returns when no operation that relies on them is in flight.
    pub(crate) async fn revoke_rights(
        self: &Arc<Self>,
        by: MemberId,
        mapping: u64,
        from: Grantee,
        rights: Permissions,
    ) -> Result<Response, Error> {
        let change = self.change(by, mapping).await?;
        let (holders, gate) = {
            let mut table = self.regions.table.lock();
            let r = table.live(change.region).ok_or(Error::Freed)?;
            r.rights.revoke(from, rights);
            let gate = r.gate.clone();
            (table.restrict(change.region, from, rights), gate)
        };
        if holders.is_empty() || planted(Bug::RevokeTellsNobody) {
            return Ok(Response::Done);
        }
        // Stops the operations that nodes do for mappings that have lost the right.
        gate.pause();
        let told = self.tell_holders(holders, |mappings| Request::Restrict { mappings, rights }).await;
        gate.drained().await;
        gate.reopen();
        if told { Ok(Response::Done) } else { Err(Error::LinkDown) }
    }

    /// Sets the secret that nodes which map the region from now on must give.
    pub(crate) fn set_secret(&self, by: MemberId, mapping: u64, secret: Vec<u8>) -> Result<Response, Error> {
        let mut table = self.lock_for(&self.regions.table, by)?;
        table.through(mapping, Permissions::ADMIN)?.1.secret = secret;
        Ok(Response::Done)
    }

    /// Makes another node the master.
    pub(crate) fn hand_over(&self, by: MemberId, mapping: u64, to: NodeId) -> Result<Response, Error> {
        let to = self.member_now(to)?;
        let mut table = self.lock_for(&self.regions.table, by)?;
        let (_, r) = table.through(mapping, Permissions::ADMIN)?;
        // Under the lock, the end of that incarnation is either seen here or ends the region later.
        if !self.is_live(to) {
            return Err(Error::NodeDown(to.0));
        }
        (r.master, r.is_orphan) = (to, false);
        Ok(Response::Done)
    }

    /// Moves a region to the memory of a plan, as [`Mover::relocate`] does.
    pub(crate) async fn move_region(
        self: &Arc<Self>,
        by: MemberId,
        mapping: u64,
        plan: &Plan,
    ) -> Result<Response, Error> {
        let change = self.change(by, mapping).await?;
        let (layout, memory) = self.take_memory(plan).await?;
        Mover::of(self).relocate(change, Arc::new(layout), memory, |_| true).await.map(|()| Response::Done)
    }
}
