//! What an owner has holders do: give mappings up, keep still, look anew, lose rights; and how it sets bytes.

use super::layout::Piece;
use super::owner::Reach;
use crate::errands::Errand;
use crate::membership::Life;
use crate::node::Node;
use crate::op::RECONNECT_PAUSE;
use crate::planted::{Bug, planted};
use crate::rpc::{Answer, Ask};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

/// How long a holder may take to acknowledge before it is asked again.
const TELL_DEADLINE: Duration = Duration::from_secs(2);
/// Between two attempts to reach a holder that has not acknowledged.
const TELL_PAUSE: Duration = Duration::from_millis(10);
/// Mappings named in one message.
const TELL_AT_ONCE: usize = 256;
/// Bytes that memset sets before it lets other tasks run.
const FILL_STEP: u64 = 1 << 20;
/// How long the directory may take to free a name.
const UNBIND_DEADLINE: Duration = Duration::from_secs(5);

impl Node {
    /// Has each holder do something, all at the same time. Returns when each has acknowledged, or is gone and nothing of it
    /// reaches anybody any more; it takes as long as that takes. `false`: this node is no member any more.
    pub(super) async fn tell_holders(
        self: &Arc<Self>,
        holders: BTreeMap<Life, Vec<u64>>,
        ask: impl Fn(Vec<u64>) -> Ask,
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

    async fn tell_holder(self: &Arc<Self>, holder: Life, mappings: &[u64], ask: &Ask) {
        while !self.is_fenced() {
            let deadline = self.platform.now() + TELL_DEADLINE;
            let acknowledged = self.ask_node(holder, ask, deadline).await.is_ok();
            let given_up = || !mappings.iter().any(|mapping| self.regions.is_held(holder, *mapping));
            if acknowledged || given_up() {
                return;
            }
            let again = self.platform.now() + TELL_PAUSE;
            let gone = self.regions.changed.until(|| given_up().then_some(()));
            self.timers.before(again, gone).await;
        }
    }

    /// Fences and frees a region that is marked for it.
    pub(crate) fn spawn_fence(self: &Arc<Self>, region: u64) {
        let node = self.clone();
        self.platform.spawn("lite-fence", Box::pin(async move { node.fence_region(region).await }));
    }

    /// Waits until nobody reaches the memory of a region that is marked, then frees it. Takes as long as it takes: a node that
    /// does not acknowledge holds it up until it leaves or is declared dead.
    pub(crate) async fn fence_region(self: &Arc<Self>, region: u64) {
        self.regions.changed.until(|| self.regions.is_at_rest(region).then_some(())).await;
        let Some(gate) = self.regions.gate(region) else { return };
        gate.close();
        let told = !planted(Bug::FreeTellsNobody);
        let holders = if told { self.regions.holders(region) } else { BTreeMap::new() };
        if !self.tell_holders(holders, |mappings| Ask::Revoke { mappings }).await {
            // Without a membership there is nobody to ask, and the memory stays taken.
            return;
        }
        gate.drained().await;
        let names = self.regions.take_names(region);
        for name in names {
            let deadline = self.platform.now() + UNBIND_DEADLINE;
            if let Err(error) = self.unbind(&name, deadline).await {
                log::warn!("lite: the name `{name}` stays bound: {error}");
            }
        }
        let memory = self.regions.remove(region);
        self.give_memory(memory);
    }

    /// For `by`: sets `len` bytes from `offset` of the region that `by` maps.
    pub(crate) async fn memset_for(
        self: &Arc<Self>,
        by: Life,
        mapping: u64,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<(), Error> {
        let reach = self.reach(by, mapping, Permissions::WRITE, offset, len).await?;
        // Not before: while this waits for a move to end, that may wait for all to have seen the end of `by`.
        let errand = self.begin_errand(by)?;
        self.fill(&errand, &reach, offset, len, byte).await
    }

    /// Sets `len` bytes from `offset` of a region that this node owns: each node those that it holds.
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
            // These do not say that nothing has happened.
            Error::NodeDown(_) | Error::LinkDown | Error::Permission | Error::Freed => error,
            _ if done > 0 => Error::Unknown,
            error => error,
        })
    }

    /// As [`fill`](Self::fill), from `done` on, which counts what has been set.
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
            self.check_spot(&spot)?;
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

    /// Has another node set bytes that it holds. When this returns, it will not do so any more.
    async fn fill_there(self: &Arc<Self>, at: Life, piece: Piece, byte: u8) -> Result<(), Error> {
        let deadline = self.platform.now() + TELL_DEADLINE;
        let mut unsure = false;
        let error = loop {
            match self.ask_node(at, &Ask::Fill { piece, byte }, deadline).await {
                // So are those before: they came earlier.
                Ok(Answer::Done) => return Ok(()),
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
        if unsure {
            self.served_by(at).await;
        }
        Err(error)
    }

    /// Waits until a node has served all that this node has asked it so far, or is gone: a node serves the questions of another
    /// in the order in which they come.
    async fn served_by(self: &Arc<Self>, whom: Life) {
        self.insist(whom, &Ask::Yield { holding: self.random() }).await;
    }

    /// For an owner: sets bytes of what this node holds for it.
    pub(crate) fn fill_held(&self, owner: Life, piece: &Piece, byte: u8) -> Result<Answer, Error> {
        if piece.at != (self.me, self.incarnation) {
            return Err(Error::NodeDown(piece.at.0));
        }
        if piece.len > FILL_STEP {
            return Err(Error::OutOfBounds);
        }
        if !self.holdings.holds(owner, piece) {
            return Err(Error::Freed);
        }
        self.set_here(piece.addr, piece.len, byte).map(|()| Answer::Done)
    }
}
