//! What holders with `ADMIN` do to a region: names, rights, secret, master, place, end. The owner does it.

use super::memory::Plan;
use super::placement::Placement;
use super::rights::Grantee;
use crate::node::Node;
use crate::rpc::{Answer, Ask};
use crate::{Error, Lmr, Permissions};
use alloc::vec::Vec;
use platform::Instant;
use proto::NodeId;

/// Bytes of the longest secret.
const LONGEST_SECRET: usize = 256;

impl Lmr {
    /// Has the owner do something, for holders with `ADMIN`.
    async fn administer(&self, ask: &Ask) -> Result<Answer, Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let owner = self.mapping().owner;
        self.here().ask_node(owner, ask, self.deadline()).await
    }

    /// Publishes the region as `name`: nodes that the region grants `SHARE` may map it by that name, with at most the rights that
    /// it grants them. Needs `ADMIN`. Fails with `NameTaken`, and with `Permission` if it grants nobody `SHARE`.
    ///
    /// Costs a message to the owner and one to the directory.
    pub async fn publish(&self, name: &str) -> Result<(), Error> {
        let mapping = self.mapping().id;
        let noted = self.scope().keep_region(name, mapping, self)?;
        let ask = Ask::Publish { mapping, name: name.into() };
        let result = self.administer(&ask).await.map(drop);
        // On the other two it may be published yet.
        if noted && !matches!(result, Ok(()) | Err(Error::Unknown | Error::Deadline)) {
            self.scope().forget_name(name);
        }
        result
    }

    /// Grants `rights` to a node, or to all; `whom` is a [`NodeId`] or a [`Grantee`]. Needs `ADMIN`. Whoever maps the region from
    /// now on may ask for them; handles keep the rights that they were mapped with.
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
        let ask = Ask::Grant { mapping: self.mapping().id, to: whom.into(), rights };
        self.administer(&ask).await.map(drop)
    }

    /// Takes `rights` from a node, or from all, in handles that exist and for those to come; never from the master. Needs `ADMIN`.
    ///
    /// From the return on every operation that needs them is refused with `Permission`. Operations that were under way have
    /// ended by then: each work request that had been issued has completed, and what of a longer transfer had not been issued is
    /// refused, so that a write may have been done in part. Operations that do not need these rights wait for a moment. On
    /// `Unknown` and `Deadline` it goes on.
    pub async fn revoke(&self, whom: impl Into<Grantee>, rights: Permissions) -> Result<(), Error> {
        let ask = Ask::Withdraw { mapping: self.mapping().id, from: whom.into(), rights };
        self.administer(&ask).await.map(drop)
    }

    /// Whoever maps the region from now on must give `secret`, which only the owner keeps; the directory does not have it. At most
    /// 256 bytes, empty: none. Needs `ADMIN`.
    pub async fn set_secret(&self, secret: &[u8]) -> Result<(), Error> {
        if secret.len() > LONGEST_SECRET {
            return Err(Error::TooLarge { max: LONGEST_SECRET as u64 });
        }
        let ask = Ask::SetSecret { mapping: self.mapping().id, secret: secret.into() };
        self.administer(&ask).await.map(drop)
    }

    /// Makes another node the region's master: it may map the region with all rights, and the region ends when *it* leaves.
    /// Needs `ADMIN`. This handle keeps its rights until they are revoked.
    pub async fn hand_over(&self, to: NodeId) -> Result<(), Error> {
        let ask = Ask::HandOver { mapping: self.mapping().id, to };
        self.administer(&ask).await.map(drop)
    }

    /// Moves the region's memory while it is in use. Needs `ADMIN`. The owner stays: see [`owner`](Self::owner).
    ///
    /// Operations of all holders wait while the bytes are copied and go on in the new place; none fails or is lost, but one whose
    /// deadline passes meanwhile. On an error other than `Unknown` and `Deadline` the region is where it was, in the whole; on
    /// those two the move goes on, and ends in one of the two states. So it does if a node dies meanwhile.
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
            let ask = Ask::Move { mapping: self.mapping().id, plan };
            result = self.here().ask_node(self.mapping().owner, &ask, deadline).await.map(drop);
            if !matches!(result, Err(Error::NoMemory { .. })) {
                break;
            }
        }
        result
    }

    /// Frees the region. Needs `ADMIN`. On `Ok` nobody can reach the memory any more, it is free, and so are the region's names;
    /// other handles fail with [`Error::Freed`], and what they had under way has ended. [`Error::Permission`]: the region stays,
    /// and the handle is dropped. On other errors, and if the future is dropped, the region is being freed, which goes on until
    /// the owner has heard of it, also if it could not be asked by the deadline.
    pub async fn free(self) -> Result<(), Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let (m, node) = (self.mapping(), self.here());
        self.forget();
        m.close();
        self.scope().forget_region(m.id);
        let freed = node.ask_for_sure(m.owner, Ask::Free { mapping: m.id }, self.deadline()).await;
        if freed == Err(Error::Permission) {
            // The right was taken away a moment ago, and the owner still counts this node among those who map the region.
            node.release(m);
        }
        freed.map(drop)
    }

    /// Where the region's bytes lie: nodes and bytes, in the order of the layout.
    #[must_use]
    pub fn shares(&self) -> Vec<(NodeId, u64)> {
        self.mapping().shares()
    }
}

impl Node {
    /// The plans to try for `len` bytes placed as said.
    pub(super) async fn plans(
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
