//! Messages of an owner to the nodes that map its regions: unmap, pause, resume, restrict. Also memset.

use super::layout::Piece;
use super::owner::Reach;
use crate::base::member::MemberId;
use crate::base::names::Bearer;
use crate::planted::{Bug, planted};
use crate::region::errands::Errand;
use crate::region::owner::RegionOwner;
use crate::region::request::{Request, Response};
use crate::transport::transfer::RECONNECT_PAUSE;
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

/// The time for which a node may take to acknowledge before it is asked again.
const TELL_DEADLINE: Duration = Duration::from_secs(2);
/// The pause between two attempts to reach a node that has not acknowledged.
const TELL_PAUSE: Duration = Duration::from_millis(10);
/// The most mappings named in one message.
const TELL_AT_ONCE: usize = 256;
/// The bytes that memset sets before it lets other tasks run.
const FILL_STEP: u64 = 1 << 20;

impl RegionOwner {
    /// Sends each holder a message, all at the same time. Returns when each has acknowledged, or has
    /// departed and nothing that it sent can arrive any more; there is no time limit. Returns `false` if
    /// this node is no longer a member.
    pub(super) async fn tell_holders(
        self: &Arc<Self>,
        holders: BTreeMap<MemberId, Vec<u64>>,
        ask: impl Fn(Vec<u64>) -> Request,
    ) -> bool {
        let left = Arc::new(AtomicUsize::new(0));
        for (holder, mappings) in holders {
            for some in mappings.chunks(TELL_AT_ONCE) {
                left.fetch_add(1, Ordering::SeqCst);
                let (node, left, some, ask) = (self.clone(), left.clone(), some.to_vec(), ask(some.to_vec()));
                let task = async move {
                    node.tell_holder(holder, &some, &ask).await;
                    left.fetch_sub(1, Ordering::SeqCst);
                    node.regions.changed.wake_all();
                };
                self.platform.spawn("lite-tell", Box::pin(task));
            }
        }
        self.regions.changed.until(|| (left.load(Ordering::SeqCst) == 0).then_some(())).await;
        !self.is_fenced()
    }

    async fn tell_holder(self: &Arc<Self>, holder: MemberId, mappings: &[u64], ask: &Request) {
        while !self.is_fenced() {
            let deadline = self.platform.now() + TELL_DEADLINE;
            let acknowledged = self.request(holder, ask, deadline).await.is_ok();
            let given_up = || !mappings.iter().any(|mapping| self.regions.is_held(holder, *mapping));
            if acknowledged || given_up() {
                return;
            }
            let again = self.platform.now() + TELL_PAUSE;
            let gone = self.regions.changed.until(|| given_up().then_some(()));
            self.timers.before(again, gone).await;
        }
    }

    /// Spawns the task that fences and then frees a region marked as being freed.
    pub(crate) fn spawn_fence(self: &Arc<Self>, region: u64) {
        let node = self.clone();
        self.platform.spawn("lite-fence", Box::pin(async move { node.fence_region(region).await }));
    }

    /// Waits until no node reaches the memory of a marked region, then frees it. There is no time limit: a
    /// node that does not acknowledge delays this until it leaves or is declared dead.
    pub(crate) async fn fence_region(self: &Arc<Self>, region: u64) {
        self.regions.changed.until(|| self.regions.is_at_rest(region).then_some(())).await;
        let Some(gate) = self.regions.gate(region) else { return };
        gate.close();
        let told = !planted(Bug::FreeTellsNobody);
        let holders = if told { self.regions.holders(region) } else { BTreeMap::new() };
        if !self.tell_holders(holders, |mappings| Request::Revoke { mappings }).await {
            // Without a membership no node can be asked, so the memory stays allocated.
            return;
        }
        gate.drained().await;
        let names = self.regions.take_names(region);
        for name in names {
            self.unbind_at_last(&name, Bearer::Region(region)).await;
        }
        let memory = self.regions.remove(region);
        self.give_memory(memory);
    }

    /// Sets `len` bytes from `offset` of a region, on behalf of `by`, which maps it.
    pub(crate) async fn memset_for(
        self: &Arc<Self>,
        by: MemberId,
        mapping: u64,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<(), Error> {
        let reach = self.reach(by, mapping, Permissions::WRITE, offset, len).await?;
        // The errand begins after this wait: while this waits for a move to end, the move may wait until
        // all nodes have seen the end of `by`.
        let errand = self.errands.begin(self, by)?;
        self.fill(&errand, &reach, offset, len, byte).await
    }

    /// Sets `len` bytes from `offset` of a region that this node owns; each node sets the bytes that it
    /// holds.
    async fn fill(
        self: &Arc<Self>,
        errand: &Errand,
        reach: &Reach,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<(), Error> {
        let mut done = 0;
        let result = self.fill_on(errand, reach, offset, len, byte, &mut done).await;
        result.map_err(|error| match error {
            // These errors allow that some bytes have been set.
            Error::NodeDown(_) | Error::LinkDown | Error::Permission | Error::Freed => error,
            _ if done > 0 => Error::Unknown,
            error => error,
        })
    }

    /// Does the work of [`fill`](Self::fill). `done` counts the bytes that have been set.
    async fn fill_on(
        self: &Arc<Self>,
        errand: &Errand,
        reach: &Reach,
        offset: u64,
        len: u64,
        byte: u8,
        done: &mut u64,
    ) -> Result<(), Error> {
        while *done < len {
            errand.check()?;
            let spot = reach.layout().find(offset + *done).ok_or(Error::OutOfBounds)?;
            let step = spot.run.min(len - *done).min(FILL_STEP);
            let piece = Piece { at: spot.at, addr: spot.addr, len: step };
            self.check_location(&spot)?;
            if spot.at.0 == self.me {
                self.set_here(spot.addr, step, byte)?;
                platform::yield_now().await;
            } else {
                self.fill_there(spot.at, piece, byte).await?;
            }
            *done += step;
        }
        Ok(())
    }

    /// Makes another node set bytes of memory that it holds for a region. After the return, the other node no
    /// longer sets them.
    async fn fill_there(self: &Arc<Self>, at: MemberId, piece: Piece, byte: u8) -> Result<(), Error> {
        let deadline = self.platform.now() + TELL_DEADLINE;
        let mut unsure = false;
        let error = loop {
            match self.request(at, &Request::Fill { piece, byte }, deadline).await {
                // Earlier attempts are done as well: they were sent before this one.
                Ok(Response::Done) => return Ok(()),
                Ok(_) => break Error::Refused("unexpected answer".into()),
                Err(error) => {
                    let lost = error == Error::Unknown;
                    unsure |= lost;
                    if !lost || self.platform.now() + RECONNECT_PAUSE >= deadline {
                        break error;
                    }
                }
            }
            self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
        };
        if !unsure {
            return Err(error);
        }
        self.served_by(at).await;
        Err(match error {
            Error::NodeDown(_) | Error::LinkDown | Error::Permission | Error::Freed => error,
            // An earlier attempt may have set the bytes.
            _ => Error::Unknown,
        })
    }

    /// Waits until a node has served all that this node has asked it so far, or has departed. A node serves
    /// the requests of another in order.
    pub(super) async fn served_by(self: &Arc<Self>, whom: MemberId) {
        self.retry_until_done(whom, &Request::Yield { holding: self.random() }).await;
    }

    /// Sets bytes of memory that this node holds for a region of another owner.
    pub(crate) fn fill_held(&self, owner: MemberId, piece: &Piece, byte: u8) -> Result<Response, Error> {
        if piece.at != (self.me, self.incarnation) {
            return Err(Error::NodeDown(piece.at.0));
        }
        if piece.len > FILL_STEP {
            return Err(Error::OutOfBounds);
        }
        if !self.holdings.holds(owner, piece) {
            return Err(Error::Freed);
        }
        self.set_here(piece.addr, piece.len, byte).map(|()| Response::Done)
    }
}
