//! The standing of this node: a member, suspended, or no member any more.

use super::members::Watchers;
use crate::Error;
use crate::base::lease::{MembershipEnd, Resumed, Step};
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::region::RegionOwner;
use crate::sync::SyncHome;
use crate::transport::conn::peers::PeerLink;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::Deref;
use platform::Instant;
use proto::ToManager;

/// The membership of this node. It extends [`RegionOwner`], and uses [`SyncHome`].
pub(crate) struct Membership {
    regions: Arc<RegionOwner>,
    pub(crate) sync: Arc<SyncHome>,
    pub(crate) watchers: Watchers,
    /// The ended incarnations that are not settled, and whether this node has confirmed their end.
    pub(super) departed: Mutex<BTreeMap<MemberId, bool>>,
    /// The incarnations whose end all members have seen.
    #[cfg(feature = "testing")]
    pub(crate) settled: Mutex<Vec<MemberId>>,
}

impl Deref for Membership {
    type Target = Arc<RegionOwner>;

    #[inline]
    fn deref(&self) -> &Arc<RegionOwner> {
        &self.regions
    }
}

impl Membership {
    pub(crate) fn new(regions: Arc<RegionOwner>, sync: Arc<SyncHome>) -> Self {
        Self {
            regions,
            sync,
            watchers: Watchers::default(),
            departed: Mutex::default(),
            #[cfg(feature = "testing")]
            settled: Mutex::default(),
        }
    }

    /// Extends the lease to `until`, because the manager has acknowledged a heartbeat.
    pub(crate) fn extend_lease(&self, until: Instant) {
        if let Some(Resumed { told }) = self.lease.extend(until, self.platform.now()) {
            if let Some(lasted) = told {
                log::info!("lite: the manager answers again: {} goes on after {lasted:.1?}", self.me);
            }
            self.end_suspension();
        }
    }

    /// Wakes all tasks that wait for the end of a suspension, and the poller for deferred work.
    fn end_suspension(&self) {
        self.resumption.wake_all();
        self.peer_change.wake_all();
        self.resources.wake_all();
        self.platform.wake_poller();
    }

    /// Does the poller's part of a suspension; returns true if it has ended the membership.
    #[cold]
    pub(crate) fn sit_out(&self, now: Instant) -> bool {
        match self.lease.step(now) {
            Step::Wait => false,
            Step::Tell => {
                log::warn!(
                    "lite: the manager is silent, the lease has passed: {} posts nothing until it answers",
                    self.me
                );
                false
            }
            Step::End => {
                let silence = self.config.silence.unwrap_or_default();
                log::error!("lite: the manager has been silent for {silence:?}");
                self.fence();
                true
            }
        }
    }

    /// Ends this node's membership: nothing is issued any more, and nothing of its peers reaches its
    /// memory.
    pub(crate) fn fence(&self) {
        match self.lease.fence() {
            None => return,
            Some(MembershipEnd::Left) => log::info!("lite: {} has left", self.me),
            Some(MembershipEnd::Lost) => {
                log::error!("lite: {} has lost its membership", self.me);
                // The manager may not know it: perhaps all heartbeats arrived, and only the
                // acknowledgements were lost.
                let reason = "no answer to its heartbeats came in time".into();
                self.control.post(&ToManager::LastWords { reason });
            }
        }
        let mut links = Vec::new();
        for peer in self.peers.lock().values_mut() {
            links.push(mem::replace(&mut peer.link, PeerLink::Gone));
        }
        for link in links {
            self.retire(link);
        }
        self.endpoint.close();
        let loopback = self.loopback.lock().take();
        if let Some(conn) = loopback {
            self.shut(&conn);
        }
        self.unfinished.lock().forget_all_lost();
        self.drains.wake_all();
        self.sync.waits.end_all(&Error::LinkDown);
        self.control.end();
        self.end_suspension();
        self.services.close_all();
        self.watchers.wake_all();
    }
}
