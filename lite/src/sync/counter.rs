//! [`Counter`]: a number that all nodes change in one step.

use crate::sometimes::sometimes;
use crate::{Error, Lite, Lmr, Permissions};
use alloc::boxed::Box;
use core::time::Duration;
use proto::NodeId;

/// A 64-bit number in the memory of some node, changed by the RNICs alone: an operation costs one atomic and nobody's
/// processor. It is a region of 8 bytes, and lives and ends as one.
///
/// ```
/// # use lite::{Error, Lite};
/// # use proto::NodeId;
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let tickets = lite.create_counter(NodeId(2), "tickets").await?;
/// let mine = tickets.add(1).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    cell: Lmr,
}

/// The region of a counter whose maker may not hear that its name is bound: dropped, it is freed, so that no name is bound to what
/// nobody has.
struct Unsure(Option<Lmr>);

impl Drop for Unsure {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            sometimes!("the name of a counter was bound or not");
            let node = cell.here().clone();
            let free = async move {
                if let Err(error) = cell.free().await {
                    log::debug!("lite: freeing a counter that was not made: {error}");
                }
            };
            node.platform.spawn("lite-counter", Box::pin(free));
        }
    }
}

impl Lite {
    /// Makes a counter on `home`, which may be this node, at 0, and publishes it as `name`. Fails with
    /// `NameTaken`.
    pub async fn create_counter(&self, home: NodeId, name: &str) -> Result<Counter, Error> {
        let cell = self.alloc(home, 8, Permissions::ATOMIC | Permissions::SHARE).await?;
        let mut unsure = Unsure(Some(cell.clone()));
        cell.publish(name).await?;
        unsure.0 = None;
        Ok(Counter { cell })
    }

    /// The counter that is published as `name`.
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
}

impl Counter {
    /// The same counter; its operations have `d` from their call on.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { cell: self.cell.with_deadline(d) }
    }

    /// Its value.
    pub async fn get(&self) -> Result<u64, Error> {
        self.cell.fetch_add(0, 0).await
    }

    /// Adds `n`, wrapping; gives the value before.
    pub async fn add(&self, n: u64) -> Result<u64, Error> {
        self.cell.fetch_add(0, n).await
    }

    /// Makes it `to` if it is `from`; gives the value before.
    pub async fn compare_swap(&self, from: u64, to: u64) -> Result<u64, Error> {
        self.cell.compare_swap(0, from, to).await
    }

    /// Ends the counter, as [`Lmr::free`] does a region. For whoever made it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.cell.free().await
    }
}
