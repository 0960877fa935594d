//! [`Counter`]: a number that all nodes change by RDMA atomics.

use crate::sometimes::sometimes;
use crate::{Error, Lmr};
use alloc::boxed::Box;
use core::time::Duration;

/// A 64-bit number in the memory of a node, changed by the RNICs alone: an operation costs one atomic and
/// no processor time at the node. The counter is a region of 8 bytes, and is freed as one.
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
    pub(crate) cell: Lmr,
}

/// The region of a counter whose creator may not learn that its name is bound. Dropping this frees the
/// region, so that no name is bound to a region without a user.
pub(crate) struct Unsure(pub(crate) Option<Lmr>);

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

impl Counter {
    /// Returns a handle of the counter whose operations end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { cell: self.cell.with_deadline(d) }
    }

    /// Returns the value.
    pub async fn get(&self) -> Result<u64, Error> {
        self.cell.fetch_add(0, 0).await
    }

    /// Adds `n`, wrapping, and returns the value before.
    pub async fn add(&self, n: u64) -> Result<u64, Error> {
        self.cell.fetch_add(0, n).await
    }

    /// Sets the value to `to` if it is `from`, and returns the value before.
    pub async fn compare_swap(&self, from: u64, to: u64) -> Result<u64, Error> {
        self.cell.compare_swap(0, from, to).await
    }

    /// Ends the counter, as [`Lmr::free`] frees a region. For the node that created it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.cell.free().await
    }
}
