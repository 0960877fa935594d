//! Locks, events, counters and barriers.

use super::Lite;
use crate::base::names::{Kind, ObjectAddress};
use crate::rpc::Rollback;
use crate::sync::request::{Request, Response};
use crate::sync::{LONGEST_NAME, Unsure};
use crate::{Counter, Error, Event, Lock, Permissions};
use proto::NodeId;

impl Lite {
    /// Waits until each node of `group`, this one included, waits at the barrier `name`, once. All must
    /// give the same group, in any order. Either all are released or all fail. There is one exception: if
    /// the home, which is the node with the lowest number, dies while the barrier opens, some may be
    /// released while others get `NodeDown`.
    ///
    /// # Errors
    /// `NodeDown` if a node of the group is dead or leaves meanwhile; `Deadline` or `Unknown` if one of
    /// them stops waiting.
    pub async fn barrier(&self, name: &str, group: &[NodeId]) -> Result<(), Error> {
        let deadline = self.deadline();
        let node = &self.node.sync;
        let mut group = group.to_vec();
        group.sort_unstable();
        group.dedup();
        let home = match group.first() {
            Some(home) if name.len() <= LONGEST_NAME && group.contains(&node.me) => *home,
            _ => {
                let why = "a barrier has a name of at most 256 bytes, and a group that this node belongs to";
                return Err(Error::Refused(why.into()));
            }
        };
        let member = node.member_now(home)?;
        let waiting = node.begin_wait_at_barrier(member)?;
        let (token, oldest) = (waiting.token, node.waits.oldest_at_barriers(member));
        let undo = Rollback::new(node, member, Request::BarrierLeave { name: name.into(), token });
        let ask = Request::BarrierEnter { name: name.into(), group, token, oldest };
        let result = match node.request_until(member, &ask, deadline).await {
            // Without an answer, this node may still be waiting at the home.
            Ok(Response::Queued) | Err(Error::Unknown) => {
                // After the deadline the barrier may have opened without this node's knowledge.
                let ended = node.wait_until(&waiting, deadline).await;
                ended.unwrap_or(Err(Error::Unknown)).map(drop)
            }
            other => other.map(drop),
        };
        if !matches!(result, Err(Error::Unknown)) {
            undo.disarm();
        }
        result
    }

    /// Creates a counter with the value 0 on `home`, which may be this node, and publishes it as `name`.
    ///
    /// # Errors
    /// `NameTaken` if something is published under that name.
    pub async fn create_counter(&self, home: NodeId, name: &str) -> Result<Counter, Error> {
        let cell = self.alloc(home, 8, Permissions::ATOMIC | Permissions::SHARE).await?;
        let mut unsure = Unsure(Some(cell.clone()));
        cell.publish(name).await?;
        unsure.0 = None;
        Ok(Counter { cell })
    }

    /// Opens the counter that is published as `name`.
    pub async fn open_counter(&self, name: &str) -> Result<Counter, Error> {
        let cell = self.map(name, Permissions::ATOMIC).await?;
        if cell.len() != 8 {
            return Err(Error::Refused(alloc::format!(
                "`{name}` is no counter: it has {} bytes",
                cell.len()
            )));
        }
        Ok(Counter { cell })
    }

    /// Creates an event on `home`, which may be this node, and publishes it as `name`.
    ///
    /// # Errors
    /// `NameTaken` if something is published under that name.
    pub async fn create_event(&self, home: NodeId, name: &str) -> Result<Event, Error> {
        self.by.scope.check()?;
        let address = self.node.sync.new_object(Kind::Event, home, name, self.deadline()).await?;
        self.node.sync.keep_object(&self.by.scope, address)?;
        Ok(self.event(address))
    }

    /// Opens the event that is published as `name`.
    pub async fn open_event(&self, name: &str) -> Result<Event, Error> {
        let address = self.node.sync.find_object(Kind::Event, name, self.deadline()).await?;
        Ok(self.event(address))
    }

    fn event(&self, address: ObjectAddress) -> Event {
        let (node, scope) = (self.node.sync.clone(), self.by.scope.clone());
        Event { node, address, timeout: self.by.timeout(), scope }
    }

    /// Creates a lock on `home`, which may be this node, and publishes it as `name`.
    ///
    /// # Errors
    /// `NameTaken` if something is published under that name.
    pub async fn create_lock(&self, home: NodeId, name: &str) -> Result<Lock, Error> {
        self.by.scope.check()?;
        let address = self.node.sync.new_object(Kind::Lock, home, name, self.deadline()).await?;
        self.node.sync.keep_object(&self.by.scope, address)?;
        Ok(self.lock(address))
    }

    /// Opens the lock that is published as `name`.
    pub async fn open_lock(&self, name: &str) -> Result<Lock, Error> {
        let address = self.node.sync.find_object(Kind::Lock, name, self.deadline()).await?;
        Ok(self.lock(address))
    }

    fn lock(&self, address: ObjectAddress) -> Lock {
        let (node, scope) = (self.node.sync.clone(), self.by.scope.clone());
        Lock { node, address, timeout: self.by.timeout(), scope }
    }
}
