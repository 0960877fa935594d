//! Operations that need `ADMIN`: names, rights, secret, master, moves, free. The owner serves them.

use super::handle::Lmr;
use super::placement::Placement;
use super::request::Plan;
use super::rights::Grantee;
use crate::base::scope::{End, Kept};
use crate::region::memory::RegionMemory;
use crate::region::request::{Request, Response};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use platform::Instant;
use proto::NodeId;

/// The length of the longest secret, in bytes.
const LONGEST_SECRET: usize = 256;

impl Lmr {
    /// Notes a region that is about to be published; returns true if it must be forgotten if that fails.
    fn keep_in_scope(&self, name: &str, mapping: u64) -> Result<bool, Error> {
        let end = || -> End {
            let (region, name) = (self.clone(), String::from(name));
            Box::new(move |timeout| {
                Box::pin(async move {
                    match region.with_deadline(timeout).free().await {
                        Ok(()) | Err(Error::Freed) => {}
                        Err(error) => log::debug!("lite: freeing the region `{name}`: {error}"),
                    }
                })
            })
        };
        self.scope().keep(Kept::Region(name.into(), mapping), end)
    }

    /// Sends a request that needs `ADMIN` to the owner.
    async fn administer(&self, ask: &Request) -> Result<Response, Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        self.here().ask_owner(&self.mapping(), ask, self.deadline()).await
    }

    /// Publishes the region as `name`: nodes to which the region grants `SHARE` may map it by that name,
    /// with at most the rights that it grants them. Needs `ADMIN`.
    ///
    /// # Errors
    /// `NameTaken` if something is published under that name; `Permission` if the region grants `SHARE` to
    /// no node.
    ///
    /// Publishing costs a message to the owner and one to the directory.
    pub async fn publish(&self, name: &str) -> Result<(), Error> {
        let mapping = self.mapping().id;
        let noted = self.keep_in_scope(name, mapping)?;
        let ask = Request::Publish { mapping, name: name.into() };
        let result = self.administer(&ask).await.map(drop);
        // After `Unknown` and `Deadline` the region may still be published.
        if noted && !matches!(result, Ok(()) | Err(Error::Unknown | Error::Deadline)) {
            self.scope().forget_name(name);
        }
        result
    }

    /// Grants `rights` to a node or to all nodes; `whom` is a [`NodeId`] or a [`Grantee`]. Needs `ADMIN`.
    /// Nodes that map the region from now on may ask for these rights; existing handles keep the rights
    /// that they were mapped with.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId, Permissions};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// // All may read; node 3 may write as well.
    /// let table = lite.alloc(NodeId(2), 1 << 20, Permissions::READ | Permissions::SHARE).await?;
    /// table.grant(NodeId(3), Permissions::WRITE).await?;
    /// table.publish("table").await?;
    /// // ... until it has done its part.
    /// table.revoke(NodeId(3), Permissions::WRITE).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn grant(&self, whom: impl Into<Grantee>, rights: Permissions) -> Result<(), Error> {
        let ask = Request::Grant { mapping: self.mapping().id, to: whom.into(), rights };
        self.administer(&ask).await.map(drop)
    }

    /// Revokes `rights` from a node or from all nodes, in existing and in future handles, except from the
    /// master. Needs `ADMIN`.
    ///
    /// After the return every operation that needs these rights is refused with `Permission`. Operations
    /// that were in flight have ended: each work request that had been posted has completed, and the rest
    /// of a longer transfer is refused, so a write may have been done in part. Operations that do not need
    /// these rights wait for a moment. After `Unknown` and `Deadline` the revocation goes on in the
    /// background.
    pub async fn revoke(&self, whom: impl Into<Grantee>, rights: Permissions) -> Result<(), Error> {
        let ask = Request::Withdraw { mapping: self.mapping().id, from: whom.into(), rights };
        self.administer(&ask).await.map(drop)
    }

    /// Sets the secret that nodes which map the region from now on must give. Only the owner keeps it; the
    /// directory does not. It has at most 256 bytes; an empty one removes it. Needs `ADMIN`.
    pub async fn set_secret(&self, secret: &[u8]) -> Result<(), Error> {
        if secret.len() > LONGEST_SECRET {
            return Err(Error::TooLarge { max: LONGEST_SECRET as u64 });
        }
        let ask = Request::SetSecret { mapping: self.mapping().id, secret: secret.into() };
        self.administer(&ask).await.map(drop)
    }

    /// Makes another node the region's master: it may map the region with all rights, and the region ends
    /// when it leaves. Needs `ADMIN`. This handle keeps its rights until they are revoked.
    pub async fn hand_over(&self, to: NodeId) -> Result<(), Error> {
        let ask = Request::HandOver { mapping: self.mapping().id, to };
        self.administer(&ask).await.map(drop)
    }

    /// Lets the region outlive its master, which this node must be: it stays after the master has left, until
    /// it is freed, its [owner](Self::owner) leaves, or no node maps it and it has no name. Then each node
    /// with a right to the region may also map it with `ADMIN`. Needs `ADMIN`.
    pub async fn outlive(&self) -> Result<(), Error> {
        let ask = Request::Outlive { mapping: self.mapping().id };
        self.administer(&ask).await.map(drop)
    }

    /// Moves the region's memory while it is in use. Needs `ADMIN`. The owner stays the same: see
    /// [`owner`](Self::owner).
    ///
    /// A move to the same number of nodes in a row, or to the same stripes on as many nodes, copies the
    /// region in parts. Operations of all nodes wait for some 50 ms at a time while a part is copied, and
    /// go on for as long before the next one. Any other move copies the region as a whole, and operations
    /// wait that long. None fails or is lost, unless its deadline passes meanwhile.
    ///
    /// After an error other than `Unknown` and `Deadline` the whole region is where it was, unless a node
    /// that had received a part has died: the bytes on it are lost then, as those of any region. After these
    /// two errors the move goes on and ends in the same way. A region of up to 4 MiB (the setting
    /// `move-window`) has only one part.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId, Permissions, Placement};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let table = lite.alloc(NodeId(2), 1 << 20, Permissions::READ).await?;
    /// table.move_to(NodeId(3)).await?;
    /// let nodes = vec![NodeId(2), NodeId(3)];
    /// table.move_to(Placement::Striped { nodes, stripe: 65536 }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn move_to(&self, to: impl Into<Placement>) -> Result<(), Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let deadline = self.deadline();
        let plans = self.here().plans(to.into(), self.len(), deadline).await?;
        let mut result = Err(Error::NoMemory { asked: self.len(), free: 0 });
        for plan in plans {
            let ask = Request::Move { mapping: self.mapping().id, plan };
            result = self.here().ask_owner(&self.mapping(), &ask, deadline).await.map(drop);
            if !matches!(result, Err(Error::NoMemory { .. })) {
                break;
            }
        }
        result
    }

    /// Frees the region. Needs `ADMIN`. After `Ok` no node can reach the memory any more, the memory and
    /// the region's names are free, and other handles fail with [`Error::Freed`]; their operations in
    /// flight have ended. After [`Error::Permission`] the region stays and this handle is dropped. After
    /// other errors, and if the future is dropped, a background task repeats the request until the owner
    /// has received it, also if the owner could not be reached by the deadline.
    pub async fn free(self) -> Result<(), Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let (m, node) = (self.mapping(), self.here());
        self.forget();
        m.close();
        self.scope().forget_region(m.id);
        let freed = node.free_at_owner(&m, self.deadline()).await;
        if freed == Err(Error::Permission) {
            // The right was revoked a moment ago, and the owner still counts this node among those that map
            // the region.
            node.release(m);
        }
        freed
    }

    /// Returns the nodes that have the region's bytes, and the number of bytes on each, in the order of the
    /// layout.
    #[must_use]
    pub fn shares(&self) -> Vec<(NodeId, u64)> {
        self.mapping().shares()
    }
}

impl RegionMemory {
    /// Returns the plans to try for `len` bytes at `placement`.
    pub(crate) async fn plans(
        &self,
        placement: Placement,
        len: u64,
        deadline: Instant,
    ) -> Result<Vec<Plan>, Error> {
        let free = match placement {
            Placement::Anywhere => self.free_memory(deadline).await?,
            _ => Vec::new(),
        };
        placement.plans(len, &free)
    }
}
