//! Regions: allocation, mapping, names.

use super::Lite;
use crate::base::names::{Bearer, Named};
use crate::base::qos::MemoryCharge;
use crate::region::Mover;
use crate::region::request::{MapRequest, Request};
use crate::{CompletionQueue, Error, Lmr, LocalMemory, Permissions, Placement};
use core::time::Duration;
use platform::{Instant, Pages};
use proto::NodeId;

impl Lite {
    /// Allocates `len` zeroed bytes at `placement`: a [`NodeId`], which may be this node, or a
    /// [`Placement`]. This node becomes the region's master and has all rights. `permissions` are the
    /// rights of all other nodes, and must contain `SHARE` if they are to map the region by name. The
    /// master can [grant](Lmr::grant) more rights and revoke them.
    ///
    /// The region exists until it is freed, its [owner](Lmr::owner) or its master leaves (unless it
    /// [outlives](Lmr::outlive) that), or no node maps it and it is not published. If another of its
    /// nodes leaves, operations on that node's share fail with `NodeDown`. The memory need not be
    /// contiguous: a region may take all that is free.
    ///
    /// # Errors
    /// `NoMemory` if the nodes do not have `len` bytes free.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId, Permissions, Placement};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let rights = Permissions::READ | Permissions::WRITE;
    /// let near = lite.alloc(lite.node_id(), 1 << 20, rights).await?;
    /// let wide = Placement::Striped { nodes: vec![NodeId(1), NodeId(2)], stripe: 65536 };
    /// let wide = lite.alloc(wide, 1 << 30, rights).await?;
    /// let parts = Placement::Shares(vec![(NodeId(1), 4096), (NodeId(3), 100)]);
    /// let parts = lite.alloc(parts, 4196, rights).await?;
    /// let somewhere = lite.alloc(Placement::Anywhere, 1 << 20, rights).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn alloc(
        &self,
        placement: impl Into<Placement>,
        len: u64,
        permissions: Permissions,
    ) -> Result<Lmr, Error> {
        let charge = self.by.class.hold(len)?;
        let deadline = self.deadline();
        let mut last = Error::NoMemory { asked: len, free: 0 };
        for plan in self.node.plans(placement.into(), len, deadline).await? {
            let Some(owner) = plan.shares.first().map(|(node, _)| *node) else { continue };
            let ask = |mapping| Request::Alloc { mapping, plan: plan.clone(), permissions };
            match self.node.obtain_again(owner, ask, deadline).await {
                Ok(mapping) => return Ok(Lmr::new(&self.by, mapping, charge)),
                Err(error @ Error::NoMemory { .. }) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Maps the region that is published as `name`, with the rights `wanted`.
    ///
    /// # Errors
    /// `Permission` if the region does not grant this node all of `wanted` and `SHARE`, or if it has a
    /// secret.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        self.map_by(name, wanted, &[], self.deadline()).await
    }

    /// Does the same as [`map`](Self::map), for a region with a [secret](Lmr::set_secret).
    ///
    /// # Errors
    /// As for `map`; `Permission` also if the secret is wrong.
    pub async fn map_secret(&self, name: &str, wanted: Permissions, secret: &[u8]) -> Result<Lmr, Error> {
        self.map_by(name, wanted, secret, self.deadline()).await
    }

    /// Does the same as [`map`](Self::map), but waits until the name is published.
    ///
    /// # Errors
    /// As for `map`; `NoSuchName` if the last answer of the directory before the deadline was that the name
    /// is not published.
    pub async fn map_wait(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        const FIRST_PAUSE: Duration = Duration::from_micros(500);
        const LONGEST_PAUSE: Duration = Duration::from_millis(20);
        let deadline = self.deadline();
        let mut pause = FIRST_PAUSE;
        let mut missing = false;
        loop {
            let mapped = match self.find_region(name, deadline).await {
                Ok(found) => self.map_found(found, wanted, &[], deadline).await,
                Err(Error::Deadline) if missing => Err(Error::NoSuchName),
                Err(error) => Err(error),
            };
            match mapped {
                Err(Error::NoSuchName) if self.node.platform.now() + pause < deadline => {
                    missing = true;
                    self.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    async fn map_by(
        &self,
        name: &str,
        wanted: Permissions,
        secret: &[u8],
        deadline: Instant,
    ) -> Result<Lmr, Error> {
        let mut found = self.find_region(name, deadline).await?;
        loop {
            let error = match self.map_found(found, wanted, secret, deadline).await {
                Err(error @ (Error::Freed | Error::NodeDown(_))) => error,
                result => return result,
            };
            // The owner may have handed the region over meanwhile.
            match self.find_region(name, deadline).await {
                Ok(again) if again != found => found = again,
                _ => return Err(error),
            }
        }
    }

    /// Moves all memory of regions off this node to the nodes with the most free memory, and makes other
    /// nodes the [owners](Lmr::owner) of the regions that this node owns. Regions whose master this node is
    /// [outlive](Lmr::outlive) it. The node can [leave](Self::leave) without loss then. From the call on,
    /// and after success, no region is accepted here; [`accept_regions`](Self::accept_regions) ends that.
    ///
    /// Operations of all nodes go on: they wait for some 50 ms at a time while a part of their region moves.
    /// Locks, events, counters, barriers and mailboxes stay.
    ///
    /// # Errors
    /// `NoMemory` if the other nodes do not have enough free memory. After an error some regions may have
    /// moved, and regions are accepted again.
    pub async fn vacate(&self) -> Result<(), Error> {
        Mover::of(&self.by.node).vacate(self.deadline()).await
    }

    /// Accepts regions again after [`vacate`](Self::vacate).
    pub fn accept_regions(&self) {
        Mover::of(&self.by.node).accept_regions();
    }

    /// Returns the owner, number and key of the region that is published as `name`.
    async fn find_region(&self, name: &str, deadline: Instant) -> Result<(NodeId, u64, u64), Error> {
        match self.node.find_named(name, deadline).await? {
            Named::Region { owner, region, key } => Ok((owner, region, key)),
            other => Err(Error::Refused(alloc::format!("`{name}` is {}, not a region", other.what()))),
        }
    }

    async fn map_found(
        &self,
        (owner, region, key): (NodeId, u64, u64),
        wanted: Permissions,
        secret: &[u8],
        deadline: Instant,
    ) -> Result<Lmr, Error> {
        let ask = |mapping| Request::Map {
            mapping,
            ask: MapRequest { region, key, secret: secret.into(), wanted },
        };
        self.node
            .obtain_again(owner, ask, deadline)
            .await
            .map(|m| Lmr::new(&self.by, m, MemoryCharge::default()))
    }

    /// Allocates `len` zeroed bytes of this node's memory, contiguous or not.
    ///
    /// # Errors
    /// `NoMemory` if fewer bytes are free.
    pub async fn local_memory(&self, len: u64) -> Result<LocalMemory, Error> {
        LocalMemory::take(&self.by.node, len).await
    }

    /// Turns pages, which their owner has filled as a slice, into memory that can become a region, with their
    /// content. On an appliance nothing is copied: the frames stay where they are. With `remote=arena`, and
    /// in a process, peers reach another part of the memory, and the bytes are copied there once.
    ///
    /// # Errors
    /// `NoMemory` if the bytes must be copied and there is no room. The pages are gone then.
    ///
    /// ```
    /// # use lite::{Error, Lite, Permissions};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let mut table = lite.platform().memory().pages(1 << 20).expect("enough memory");
    /// table.fill(7);
    /// let memory = lite.own_pages(table).await?;
    /// let region = lite.register_memory(memory, Permissions::READ | Permissions::SHARE).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn own_pages(&self, pages: Pages) -> Result<LocalMemory, Error> {
        LocalMemory::of_pages(&self.by.node, pages).await
    }

    /// Makes `memory` a region in place, with its content. This node is its owner and master. For
    /// `permissions` and the region's lifetime see [`alloc`](Self::alloc). The memory is free again when
    /// the region is freed.
    pub async fn register_memory(&self, memory: LocalMemory, permissions: Permissions) -> Result<Lmr, Error> {
        let charge = self.by.class.hold(memory.len())?;
        let mapped = memory.register(&self.by.node, permissions, self.deadline()).await?;
        Ok(Lmr::new(&self.by, mapped, charge))
    }

    /// Returns a queue for at most `depth` operations in flight or not yet taken.
    #[must_use]
    pub fn completion_queue(&self, depth: usize) -> CompletionQueue {
        CompletionQueue::new(&self.by, depth)
    }

    /// Frees a name of a region, or a name under which this node has published another object. The region
    /// stays if it is mapped or has other names. Only the region's master and nodes with `ADMIN` may do
    /// this.
    pub async fn unpublish(&self, name: &str) -> Result<(), Error> {
        let (node, deadline) = (&self.node, self.deadline());
        let mut found = node.find_named(name, deadline).await;
        let unbound = loop {
            let unbound = match &found {
                Ok(Named::Region { owner, region, .. }) => {
                    let ask = Request::Unpublish { region: *region, name: name.into() };
                    node.request(node.member_now(*owner)?, &ask, deadline).await.map(drop)
                }
                Ok(Named::Object(place)) if place.home() == node.own_id() => {
                    node.unbind_from(name, Bearer::Object(place.number), deadline).await
                }
                Ok(_) | Err(Error::Refused(_)) => node.unbind(name, deadline).await,
                Err(error) => Err(error.clone()),
            };
            if unbound != Err(Error::Freed) {
                break unbound;
            }
            // The region has ended, or its owner has handed it over.
            let again = node.find_named(name, deadline).await;
            if again == found {
                break Err(Error::NoSuchName);
            }
            found = again;
        };
        unbound.inspect(|()| self.by.scope.forget_name(name))
    }
}
