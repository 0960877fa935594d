//! The state of synchronisation on a node.

use super::object::Objects;
use super::request::Request;
use super::waiting::WaitTable;
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::names::ObjectAddress;
use crate::base::scope::{End, Kept, Scoped};
use crate::rpc::Rpc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;

/// The locks, events and barriers whose home this node is, and the waits of this node's tasks. It extends
/// [`Rpc`].
pub(crate) struct SyncHome {
    rpc: Arc<Rpc>,
    pub(crate) objects: Mutex<Objects>,
    /// The waits of this node's tasks for locks, events and barriers, here and elsewhere.
    pub(crate) waits: WaitTable,
}

impl Deref for SyncHome {
    type Target = Arc<Rpc>;

    fn deref(&self) -> &Arc<Rpc> {
        &self.rpc
    }
}

impl SyncHome {
    pub(crate) fn new(rpc: Arc<Rpc>) -> Self {
        Self { rpc, objects: Mutex::default(), waits: WaitTable::default() }
    }

    /// Notes a lock or event that was made in `scope`.
    pub(crate) fn keep_object(self: &Arc<Self>, scope: &Scoped, address: ObjectAddress) -> Result<(), Error> {
        let end = || -> End {
            let node = self.clone();
            Box::new(move |timeout| {
                Box::pin(async move {
                    match node.end_object(&address, node.platform.now() + timeout).await {
                        Ok(()) | Err(Error::NodeDown(_)) => {}
                        Err(error) => log::debug!("lite: ending an object on {}: {error}", address.home),
                    }
                })
            })
        };
        let kept = scope.keep(Kept::Object(address.secret), end);
        if kept.is_err() {
            self.spawn_retry(address.home(), Request::Destroy { secret: address.secret });
        }
        kept.map(drop)
    }
}
