//! Operations on a mapped region, piece by piece: transfers, copies within this node, atomics.

use super::mapped::Mapping;
use super::mapping::Mappings;
use crate::base::own::Span;
use crate::base::qos::Share;
use crate::base::wait::{Epoch, Shut, in_window};
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::op::{Access, InFlight, NotPosted, Verb};
use crate::transport::transfer::{AttemptError, Data, Effects, RECONNECT_PAUSE, Route, TransferError, judge};
use crate::{Error, Permissions};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use platform::IoAddr;
use verbs::RemoteAddr;

impl Mappings {
    /// Moves all of `data` to or from a region, from `offset`. Several pieces of the region are moved at
    /// once. `effects` are those of the transfer so far. If a part of a write was lost, its error is
    /// `Unknown`, unless the region's node or this one is gone.
    pub(crate) async fn access(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        offset: u64,
        data: Data<'_>,
        share: Share,
        effects: &Effects,
    ) -> Result<(), Error> {
        let right = data.right();
        let result = self.access_in_pieces(mapping, offset, data, share, effects).await;
        result.map_err(|error| effects.error(right, error))
    }

    /// Does the work of [`access`](Self::access) with several pieces at once.
    async fn access_in_pieces(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        offset: u64,
        mut data: Data<'_>,
        share: Share,
        effects: &Effects,
    ) -> Result<(), Error> {
        let (right, len) = (data.right(), data.len());
        mapping.check(right, offset, len as u64)?;
        let pieces = mapping.pieces_at_once(self.chunk as u64 * self.config.window as u64);
        if mapping.run(offset) >= len as u64 || pieces == 1 {
            return self.access_in_order(mapping, offset, data, share, effects).await;
        }
        sometimes!("several pieces of a region moved at once");
        let mut at = offset;
        let next = || {
            // A piece of length 0 is no piece; the rest fails when it is located.
            let run = Some(mapping.run(at)).filter(|run| *run > 0).unwrap_or(u64::MAX);
            let part = data.take_front(usize::try_from(run).unwrap_or(usize::MAX));
            let (from, len) = (at, part.len());
            at += len as u64;
            (len > 0).then(|| self.access_in_order(mapping, from, part, share, effects))
        };
        in_window(pieces, next).await
    }

    /// Does the work of [`access`](Self::access) piece by piece.
    async fn access_in_order(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        offset: u64,
        mut data: Data<'_>,
        share: Share,
        effects: &Effects,
    ) -> Result<(), Error> {
        let (right, len) = (data.right(), data.len());
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (spot, epoch) = self.locate(mapping, right, at, (len - done) as u64).await?;
            let part = data.part(done, spot.run);
            let pass = Access { seen: (&mapping.gate, epoch), stamp: mapping.stamp.id(), share };
            let (node, incarnation) = spot.at;
            let stopped = if node == self.me {
                if self.lease.is_suspended() {
                    self.resumed().await?;
                }
                let mut part = part;
                let copied = self.copy_here(spot.addr, &mut part, (mapping, epoch));
                copied.map(|len| {
                    done += len;
                    effects.posted.store(true, Ordering::Relaxed);
                })
            } else {
                let mut moved = 0;
                let route = Route::Node(node, incarnation);
                let result = self.transfer(route, spot.addr, part, Some(pass), &mut moved, effects).await;
                done += moved;
                result
            };
            match stopped {
                // The location is looked up again if the mapping has been changed.
                Ok(()) | Err(TransferError::Changed) => {}
                Err(TransferError::For(Error::Freed)) => return Err(self.ended(mapping)),
                Err(TransferError::For(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies to or from this node's own memory while the mapping cannot change; returns the number of
    /// bytes.
    pub(crate) fn copy_here(
        &self,
        addr: IoAddr,
        data: &mut Data<'_>,
        (mapping, epoch): (&Mapping, Epoch),
    ) -> Result<usize, TransferError> {
        if !self.lease.may_begin() {
            return Err(if self.is_fenced() {
                TransferError::For(Error::LinkDown)
            } else {
                TransferError::Changed
            });
        }
        mapping.gate.enter(epoch).map_err(|shut| match shut {
            Shut::Closed => TransferError::For(self.ended(mapping)),
            Shut::Changed => TransferError::Changed,
        })?;
        let len = data.len();
        let copied = match data {
            Data::Write(d) => self.write_here(addr, d),
            Data::Read(d) => self.read_here(addr, d),
            Data::WriteOwn(d) => copy_pieces(addr, d, |here, own, len| self.copy_within_here(own, here, len)),
            Data::ReadOwn(d) => copy_pieces(addr, d, |here, own, len| self.copy_within_here(here, own, len)),
        };
        mapping.gate.exit();
        if copied.is_ok() {
            self.counters.bytes_copied.add(len as u64);
        }
        copied.map(|()| len).map_err(TransferError::For)
    }

    /// Does an atomic on the 8 bytes at `offset` of a region and returns the value before. Sets `issued` if
    /// it was posted.
    ///
    /// The node's own memory is accessed through its RNIC as well: an RNIC is atomic only against itself.
    pub(crate) async fn atomic(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        offset: u64,
        verb: Verb<'_>,
        share: Share,
        issued: &AtomicBool,
    ) -> Result<u64, Error> {
        mapping.check(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        loop {
            let (spot, epoch) = self.locate(mapping, Permissions::ATOMIC, offset, 8).await?;
            let pass = Access { seen: (&mapping.gate, epoch), stamp: mapping.stamp.id(), share };
            let conn = self.route(Route::Node(spot.at.0, spot.at.1)).await?;
            let qp_index = self.pick(&conn, share);
            let to = RemoteAddr { addr: spot.addr, key: conn.remote_key.rkey };
            let posted =
                self.resources.until(|| match self.try_post(&conn, qp_index, verb, to, Some(pass)) {
                    Err(NotPosted::Busy) => None,
                    other => Some(other),
                });
            let id = match posted.await {
                Ok(id) => id,
                Err(NotPosted::Revoked) => return Err(self.ended(mapping)),
                Err(NotPosted::Changed) => continue,
                Err(NotPosted::Invalid) => {
                    return Err(Error::Refused("the RNIC refused the request".into()));
                }
                // Nothing has been sent yet: another connection may be used.
                Err(NotPosted::ConnectionLost | NotPosted::Busy) => {
                    self.fail(&conn);
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                    continue;
                }
            };
            issued.store(true, Ordering::Relaxed);
            let mut flight = InFlight::new(self, id);
            (&mut flight).await;
            return match judge(flight.status()) {
                Ok(()) => {
                    let mut before = [0; 8];
                    flight.read(&mut before)?;
                    Ok(u64::from_ne_bytes(before))
                }
                Err(AttemptError::TransferError(TransferError::For(error))) => Err(error),
                Err(AttemptError::TransferError(TransferError::Changed)) => Err(Error::Unknown),
                Err(AttemptError::Connection | AttemptError::Lost) => {
                    self.fail(&conn);
                    if planted(Bug::AtomicTwice) {
                        continue;
                    }
                    Err(self.gone(conn.peer, conn.incarnation).unwrap_or(Error::Unknown))
                }
            };
        }
    }
}

/// Calls `copy` for each piece of a span, with the address from `addr` on that it belongs to, the address of
/// the piece, and its length.
fn copy_pieces(
    addr: IoAddr,
    span: &Span<'_>,
    copy: impl Fn(IoAddr, IoAddr, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut done = 0;
    for (own, len) in span.pieces() {
        copy(addr.checked_add(done).ok_or(Error::OutOfBounds)?, own, len)?;
        done += len;
    }
    Ok(())
}
