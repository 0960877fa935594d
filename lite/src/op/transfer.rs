//! Reads and writes of any length, cut into chunks of which several are in flight; atomics.

use super::{Flight, NotPosted, Pass, Verb};
use crate::conn::{Conn, RPC_LANE};
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::qos::Share;
use crate::region::Mapping;
use crate::sometimes::sometimes;
use crate::wait::{Epoch, Shut};
use crate::{Error, Permissions};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::IoAddr;
use proto::{Incarnation, NodeId};
use verbs::{RemoteAddr, Status};

/// The most chunks in flight for one transfer.
const MAX_WINDOW: usize = 8;

/// The pause after a failed connection, so that an unreachable peer is not asked all the time.
pub(crate) const RECONNECT_PAUSE: Duration = Duration::from_millis(1);

/// The connections that a transfer may use.
#[derive(Clone, Copy)]
pub(crate) enum Route<'a> {
    /// Any connection to that incarnation of that node; if one fails, the next.
    Node(NodeId, Incarnation),
    /// Only this connection, and its queue pair of RPC: the peer's memory is lent for a call, whose reply
    /// must follow everything that was posted.
    Conn(&'a Arc<Conn>),
}

/// The data of a transfer.
pub(crate) enum Data<'a> {
    Write(&'a [u8]),
    Read(&'a mut [u8]),
}

impl Data<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Write(d) => d.len(),
            Self::Read(d) => d.len(),
        }
    }

    /// Returns at most `len` bytes of it from `at`.
    fn part(&mut self, at: usize, len: u64) -> Data<'_> {
        let end = at + usize::try_from(len).unwrap_or(usize::MAX).min(self.len() - at);
        match self {
            Self::Write(d) => Data::Write(d.get(at..end).unwrap_or_default()),
            Self::Read(d) => Data::Read(d.get_mut(at..end).unwrap_or_default()),
        }
    }

    /// Returns the error of a transfer that finds no connection for its rest. `issued`: some of it may have
    /// arrived.
    fn unreached(&self, error: Error, issued: &AtomicBool) -> Error {
        match (self, error) {
            (_, error @ (Error::NodeDown(_) | Error::LinkDown)) => error,
            (Self::Write(_), _) if issued.load(Ordering::Relaxed) => Error::Unknown,
            (_, error) => error,
        }
    }

    /// Returns the right that the mapping must have.
    pub(crate) fn right(&self) -> Permissions {
        match self {
            Self::Write(_) => Permissions::WRITE,
            Self::Read(_) => Permissions::READ,
        }
    }
}

/// The reason for which a transfer stopped before its end.
pub(crate) enum Stop {
    /// The mapping has been changed: the rest may be tried again at the new location.
    Changed,
    /// A final error.
    For(Error),
}

/// The reason for which an attempt on one connection ended.
pub(crate) enum Lost {
    /// The connection failed: the rest may be tried on another one.
    Connection,
    /// See [`Stop`].
    Stop(Stop),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Stop(Stop::For(error))
    }
}

/// Returns the meaning of a completion's status for the operation.
pub(crate) fn judge(status: Status) -> Result<(), Lost> {
    match status {
        Status::Success => Ok(()),
        Status::RemoteAccessError | Status::RemoteInvalidRequest => {
            Err(Error::Refused("the peer's RNIC refused the access".into()).into())
        }
        Status::LocalProtectionError | Status::LocalLengthError => {
            Err(Error::Refused("the RNIC refused local memory".into()).into())
        }
        _ => Err(Lost::Connection),
    }
}

impl Node {
    pub(super) async fn route(self: &Arc<Self>, route: Route<'_>) -> Result<Arc<Conn>, Error> {
        match route {
            Route::Node(node, life) => {
                let conn = self.connection(node).await?;
                if conn.incarnation != life {
                    return Err(Error::NodeDown(node));
                }
                self.ops.lock().links.remember(&conn);
                Ok(conn)
            }
            Route::Conn(conn) if conn.is_shut() => Err(Error::Unknown),
            Route::Conn(conn) => Ok(conn.clone()),
        }
    }

    /// Moves all of `data` to or from a region, from `offset`, piece by piece. Sets `issued` if some of it
    /// was ever posted, or copied here.
    pub(crate) async fn access(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        offset: u64,
        mut data: Data<'_>,
        share: Share,
        issued: &AtomicBool,
    ) -> Result<(), Error> {
        let (right, len) = (data.right(), data.len());
        mapping.check(right, offset, len as u64)?;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (spot, epoch) = self.locate(mapping, right, at, (len - done) as u64).await?;
            let part = data.part(done, spot.run);
            let pass = Pass { seen: (mapping, epoch), share };
            let (node, life) = spot.at;
            let stopped = if node == self.me {
                if self.lease.is_suspended() {
                    self.resumed().await?;
                }
                let mut part = part;
                let copied = self.copy_here(spot.addr, &mut part, (mapping, epoch));
                copied.map(|len| {
                    done += len;
                    issued.store(true, Ordering::Relaxed);
                })
            } else {
                let mut moved = 0;
                let route = Route::Node(node, life);
                let result = self.transfer(route, spot.addr, part, Some(pass), &mut moved, issued).await;
                done += moved;
                result
            };
            match stopped {
                // The location is looked up again if the mapping has been changed.
                Ok(()) | Err(Stop::Changed) => {}
                Err(Stop::For(Error::Freed)) => return Err(self.ended(mapping)),
                Err(Stop::For(error)) => return Err(error),
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
    ) -> Result<usize, Stop> {
        if !self.lease.may_begin() {
            return Err(if self.is_fenced() { Stop::For(Error::LinkDown) } else { Stop::Changed });
        }
        mapping.gate.enter(epoch).map_err(|shut| match shut {
            Shut::Closed => Stop::For(self.ended(mapping)),
            Shut::Changed => Stop::Changed,
        })?;
        let len = data.len();
        let copied = match data {
            Data::Write(d) => self.write_here(addr, d),
            Data::Read(d) => self.read_here(addr, d),
        };
        mapping.gate.exit();
        copied.map(|()| len).map_err(Stop::For)
    }

    /// Moves all of `data` over one connection whose peer lends the memory at `remote`.
    pub(crate) async fn transfer_lent(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        remote: IoAddr,
        data: Data<'_>,
        issued: &AtomicBool,
    ) -> Result<(), Error> {
        match self.transfer(Route::Conn(conn), remote, data, None, &mut 0, issued).await {
            Ok(()) => Ok(()),
            Err(Stop::For(error)) => Err(error),
            Err(Stop::Changed) => Err(Error::Unknown),
        }
    }

    /// Moves all of `data` to or from `remote`; `done` counts the bytes moved. Sets `issued` if some of it
    /// was ever posted.
    async fn transfer(
        self: &Arc<Self>,
        route: Route<'_>,
        remote: IoAddr,
        mut data: Data<'_>,
        pass: Option<Pass<'_>>,
        done: &mut usize,
        issued: &AtomicBool,
    ) -> Result<(), Stop> {
        while *done < data.len() {
            let conn = self.route(route).await.map_err(|error| Stop::For(data.unreached(error, issued)))?;
            // All chunks go in order on one queue pair.
            let lane = match route {
                Route::Node(..) => conn.pick(pass.map_or(Share::All, |p| p.share)),
                Route::Conn(_) => RPC_LANE,
            };
            match self.attempt((&conn, lane), remote, &mut data, done, pass, issued).await {
                Ok(()) => {}
                Err(Lost::Stop(stop)) => return Err(stop),
                Err(Lost::Connection) => {
                    self.fail(&conn);
                    if matches!(route, Route::Conn(_)) {
                        return Err(Stop::For(Error::Unknown));
                    }
                    sometimes!("a transfer went on over a new connection");
                    self.counters.retries.add(1);
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Does the work of [`transfer`](Self::transfer) on one queue pair; `done` counts the bytes whose
    /// chunks have completed.
    async fn attempt(
        &self,
        (conn, lane): (&Arc<Conn>, usize),
        remote: IoAddr,
        data: &mut Data<'_>,
        done: &mut usize,
        pass: Option<Pass<'_>>,
        issued: &AtomicBool,
    ) -> Result<(), Lost> {
        let mut flights: [Option<(Flight<'_>, usize)>; MAX_WINDOW] = [const { None }; MAX_WINDOW];
        let window = self.config.window.min(MAX_WINDOW);
        let (mut first, mut count, mut next) = (0, 0, *done);
        loop {
            self.look_at_lease(self.platform.now());
            while count < window && next < data.len() {
                let len = (data.len() - next).min(self.chunk);
                let Some(to) = remote.checked_add(next as u64) else {
                    return Err(Error::OutOfBounds.into());
                };
                let verb = match data {
                    Data::Write(d) => Verb::Write {
                        head: d.get(next..next + len).unwrap_or_default(),
                        tail: &[],
                        imm: None,
                    },
                    Data::Read(_) => Verb::Read { len: len as u32 },
                };
                let to = RemoteAddr { addr: to, key: conn.remote_key.rkey };
                let post = || match self.try_post(conn, lane, verb, to, pass, false) {
                    Err(NotPosted::Busy) => None,
                    other => Some(other),
                };
                // A task with chunks in flight does not wait for more room, or all tasks could wait for
                // each other.
                let posted = match post() {
                    // The chunks in flight were posted before the change, and count.
                    Some(Err(NotPosted::Changed)) | None if count > 0 => break,
                    Some(posted) => posted,
                    None => self.resources.until(post).await,
                };
                let id = posted.map_err(|why| match why {
                    NotPosted::Revoked => Error::Freed.into(),
                    NotPosted::Changed => Lost::Stop(Stop::Changed),
                    NotPosted::Invalid => Error::Refused("the RNIC refused the request".into()).into(),
                    NotPosted::ConnectionLost | NotPosted::Busy => Lost::Connection,
                })?;
                issued.store(true, Ordering::Relaxed);
                if let Some(place) = flights.get_mut((first + count) % MAX_WINDOW) {
                    *place = Some((Flight::new(self, id), len));
                }
                count += 1;
                next += len;
            }
            let oldest = flights.get_mut(first).and_then(Option::as_mut);
            let Some((flight, len)) = oldest else { return Ok(()) };
            (&mut *flight).await;
            judge(flight.status())?;
            if let Data::Read(into) = &mut *data {
                flight.read(into.get_mut(*done..*done + *len).unwrap_or_default())?;
            }
            *done += *len;
            flights[first] = None;
            first = (first + 1) % MAX_WINDOW;
            count -= 1;
        }
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
            let pass = Pass { seen: (mapping, epoch), share };
            let conn = self.route(Route::Node(spot.at.0, spot.at.1)).await?;
            let lane = conn.pick(share);
            let to = RemoteAddr { addr: spot.addr, key: conn.remote_key.rkey };
            let posted =
                self.resources.until(|| match self.try_post(&conn, lane, verb, to, Some(pass), false) {
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
            let mut flight = Flight::new(self, id);
            (&mut flight).await;
            return match judge(flight.status()) {
                Ok(()) => {
                    let mut before = [0; 8];
                    flight.read(&mut before)?;
                    Ok(u64::from_ne_bytes(before))
                }
                Err(Lost::Stop(Stop::For(error))) => Err(error),
                Err(Lost::Stop(Stop::Changed)) => Err(Error::Unknown),
                Err(Lost::Connection) => {
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
