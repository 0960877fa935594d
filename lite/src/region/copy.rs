//! Copies between two regions. A node that holds one of the regions does the copy, so that the bytes cross
//! the network at most once and never pass through a third node: the caller lends that node its rights for
//! the one copy.

use super::handle::Lmr;
use super::mapped::Mapping;
use super::request::Loan;
use crate::base::member::MemberId;
use crate::base::qos::{Class, MemoryCharge};
use crate::base::wait::in_window;
use crate::region::issuer::Issuer;
use crate::region::owner::RegionOwner;
use crate::region::request::{Request, Response};
use crate::{Error, Permissions};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;

/// The pieces that are copied at once.
const AT_ONCE: usize = 4;
/// The bytes after which a piece lets other tasks run.
const TURN: u64 = 256 << 10;

impl Lmr {
    /// Copies `len` bytes from `offset` to `to_offset` of `to`, which may be the same region. The ranges
    /// may overlap, as in C's `memmove`: the target then holds what the source held before.
    ///
    /// Needs READ on this region and WRITE on `to`. A node that holds one of the regions does the copy. On
    /// an error some of the bytes may have been copied; after [`Error::Unknown`] the copy may still go on,
    /// until the deadline at the latest.
    pub async fn memmove(&self, offset: u64, to: &Self, to_offset: u64, len: u64) -> Result<(), Error> {
        self.check(Permissions::READ, offset, len)?;
        to.check(Permissions::WRITE, to_offset, len)?;
        let (node, deadline) = (self.here(), self.deadline());
        if node.is_fenced() {
            return Err(Error::LinkDown);
        }
        if len == 0 {
            return Ok(());
        }
        let work = self.move_by(offset, to, to_offset, len, deadline);
        node.timers.before(deadline, work).await.unwrap_or(Err(Error::Unknown))
    }

    async fn move_by(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        len: u64,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (node, here, there) = (self.here(), &self.mapping(), &to.mapping());
        let from = node.locate(here, Permissions::READ, offset, len).await?.0.at;
        let into = node.locate(there, Permissions::WRITE, to_offset, len).await?.0.at;
        if [from.0, into.0].contains(&node.me) {
            return copy(self, offset, to, to_offset, len, deadline).await;
        }
        // Counted as a memset; the part that this node copies itself counts as reads and writes.
        let (_ticket, deadline) = self.rate(0, deadline).await?;
        let left = |deadline: Instant| {
            u64::try_from((deadline - node.platform.now()).as_nanos()).unwrap_or(u64::MAX)
        };
        let mut loans = [None; 2];
        let sides = [(here, Permissions::READ, offset), (there, Permissions::WRITE, to_offset)];
        for (loan, (mapping, rights, offset)) in loans.iter_mut().zip(sides) {
            let (owner, token, timeout_ns) = (mapping.owner(), node.random(), left(deadline));
            let ask = Request::Lend { mapping: mapping.id, to: from.0, rights, token, timeout_ns };
            node.request(owner, &ask, deadline).await.map_err(|e| self.explain(e))?;
            *loan = Some(Loan { owner: owner.0, token, offset });
        }
        let [Some(source), Some(target)] = loans else { return Err(Error::Unknown) };
        let ask = Request::Copy { from: source, to: target, len, timeout_ns: left(deadline) };
        node.request(from, &ask, deadline).await.map(drop)
    }

    /// Does the same as [`memmove`](Self::memmove) for ranges that do not overlap. Overlapping ranges,
    /// which C leaves undefined, are [refused](Error::Refused).
    pub async fn memcpy(&self, offset: u64, to: &Self, to_offset: u64, len: u64) -> Result<(), Error> {
        self.check(Permissions::READ, offset, len)?;
        to.check(Permissions::WRITE, to_offset, len)?;
        let near = offset.abs_diff(to_offset) < len;
        if near && self.here().is_same(self, to).await? {
            return Err(Error::Refused("the ranges overlap".into()));
        }
        self.memmove(offset, to, to_offset, len).await
    }
}

/// Copies through buffers of this node. Several pieces are copied at once unless the ranges overlap; in that
/// case one after the other, from the end if the target begins within the source.
async fn copy(
    from: &Lmr,
    offset: u64,
    to: &Lmr,
    to_offset: u64,
    len: u64,
    deadline: Instant,
) -> Result<(), Error> {
    let node = from.here();
    let overlap = offset.abs_diff(to_offset) < len && node.is_same(from, to).await?;
    let (backwards, at_once) = (to_offset > offset, if overlap { 1 } else { AT_ONCE });
    let step = len.min(node.chunk as u64);
    let (from, to) = (&from.until(deadline), &to.until(deadline));
    let mut done = 0;
    let next = || {
        let part = step.min(len - done);
        let at = if overlap && backwards { len - done - part } else { done };
        done += part;
        let others_run = done.is_multiple_of(TURN) || done == len;
        (part > 0).then_some(async move {
            let mut buffer = Vec::new();
            buffer.try_reserve_exact(part as usize).map_err(|_| Error::NoMemory { asked: part, free: 0 })?;
            buffer.resize(part as usize, 0);
            from.read(offset + at, &mut buffer).await?;
            to.write(to_offset + at, &buffer).await?;
            if others_run {
                platform::yield_now().await;
            }
            Ok(())
        })
    };
    in_window(at_once, next).await
}

impl RegionOwner {
    /// Returns whether two handles are of one region, that is, whether both begin at the same location.
    async fn is_same(&self, a: &Lmr, b: &Lmr) -> Result<bool, Error> {
        let (a, b) = (&a.mapping(), &b.mapping());
        if a.owner() != b.owner() || a.len != b.len {
            return Ok(false);
        }
        let begin = |m| self.locate(m, Permissions::empty(), 0, 0);
        let (a, b) = (begin(a).await?.0, begin(b).await?.0);
        Ok((a.at, a.addr) == (b.at, b.addr))
    }

    /// Does a copy for another node, with the rights that it has lent. Stops if that node leaves. After the
    /// return nothing of the copy is on the wire.
    pub(crate) async fn copy_for(
        self: &Arc<Self>,
        by: MemberId,
        from: Loan,
        to: Loan,
        len: u64,
        timeout_ns: u64,
    ) -> Result<Response, Error> {
        let timeout = Duration::from_nanos(timeout_ns).min(Duration::from_secs(3600));
        let deadline = self.platform.now() + timeout;
        let issuer = Issuer::new(self.clone(), timeout, Class::default());
        let lmr = |mapping| Lmr::new(&issuer, mapping, MemoryCharge::default());
        let borrowed = async {
            let source = lmr(self.borrow(from, deadline).await?);
            Ok((source, lmr(self.borrow(to, deadline).await?)))
        };
        let (source, target) = self.timers.before(deadline, borrowed).await.ok_or(Error::Deadline)??;
        source.check(Permissions::READ, from.offset, len)?;
        target.check(Permissions::WRITE, to.offset, len)?;
        // The errand begins only now: borrowing may wait for the end of a move, which may wait until all
        // nodes have seen the end of `by`.
        let errand = self.errands.begin(self, by)?;
        let work = errand.while_it_lives(copy(&source, from.offset, &target, to.offset, len, deadline));
        let result = self.timers.before(deadline, work).await.unwrap_or(Err(Error::Unknown));
        for lmr in [source, target] {
            self.drained(&lmr.mapping()).await;
        }
        result.map(|()| Response::Done)
    }

    async fn borrow(self: &Arc<Self>, loan: Loan, deadline: Instant) -> Result<Arc<Mapping>, Error> {
        let mapping = self.random();
        let ask = Request::Borrow { mapping, token: loan.token };
        self.obtain(loan.owner, mapping, &ask, deadline).await
    }
}
