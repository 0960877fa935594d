//! Reads and writes of any length, cut into chunks of which several are under way; atomics.

use super::{Flight, NotPosted, Verb};
use crate::Error;
use crate::conn::{Conn, RPC_LANE};
use crate::node::Node;
use crate::region::Mapping;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::IoAddr;
use proto::{Incarnation, NodeId};
use verbs::{RemoteAddr, Status};

/// Most chunks under way for one transfer.
const MAX_WINDOW: usize = 8;

/// After a connection failed, before another is tried: a peer that cannot be reached is not asked without pause.
pub(crate) const RECONNECT_PAUSE: Duration = Duration::from_millis(1);

/// Which connections a transfer may use.
#[derive(Clone, Copy)]
pub(crate) enum Route<'a> {
    /// Any to that life of that node, one after the other if they fail.
    Node(NodeId, Incarnation),
    /// Only this one, and the queue pair of RPC: the memory at the other end is lent for a call, whose reply is to come
    /// behind all that was posted.
    Conn(&'a Arc<Conn>),
}

/// What is transferred.
pub(crate) enum Data<'a> {
    Write(&'a [u8]),
    Read(&'a mut [u8]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Write(d) => d.len(),
            Self::Read(d) => d.len(),
        }
    }
}

/// How an attempt on one connection ended.
pub(super) enum Lost {
    /// The connection failed: the rest may be tried on another.
    Connection,
    /// For good.
    For(Error),
}

/// What a completion's status means for the operation.
pub(super) fn judge(status: Status) -> Result<(), Lost> {
    match status {
        Status::Success => Ok(()),
        Status::RemoteAccessError | Status::RemoteInvalidRequest => {
            Err(Lost::For(Error::Refused("the peer's RNIC refused the access".into())))
        }
        Status::LocalProtectionError | Status::LocalLengthError => {
            Err(Lost::For(Error::Refused("the RNIC refused local memory".into())))
        }
        _ => Err(Lost::Connection),
    }
}

impl Node {
    async fn route(self: &Arc<Self>, route: Route<'_>) -> Result<Arc<Conn>, Error> {
        match route {
            Route::Node(node, life) => {
                let conn = self.connection(node).await?;
                if conn.incarnation != life {
                    return Err(Error::NodeDown(node));
                }
                self.ops.lock().remember(&conn);
                Ok(conn)
            }
            Route::Conn(conn) if conn.is_shut() => Err(Error::Unknown),
            Route::Conn(conn) => Ok(conn.clone()),
        }
    }

    /// Moves all of `data` from or to `remote` onwards. `issued` tells whether some of it was ever posted.
    pub(crate) async fn transfer(
        self: &Arc<Self>,
        route: Route<'_>,
        remote: IoAddr,
        mut data: Data<'_>,
        mapping: Option<&Arc<Mapping>>,
        issued: &AtomicBool,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < data.len() {
            let conn = self.route(route).await?;
            // All chunks in order on one queue pair.
            let lane = match route {
                Route::Node(..) => conn.pick(),
                Route::Conn(_) => RPC_LANE,
            };
            match self.attempt((&conn, lane), remote, &mut data, &mut done, mapping, issued).await {
                Ok(()) => {}
                Err(Lost::For(error)) => return Err(error),
                Err(Lost::Connection) => {
                    self.fail(&conn);
                    if matches!(route, Route::Conn(_)) {
                        return Err(Error::Unknown);
                    }
                    self.counters.retries.add(1);
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// As [`transfer`](Self::transfer), on one queue pair; `done` counts the bytes whose chunks have completed.
    async fn attempt(
        &self,
        (conn, lane): (&Arc<Conn>, usize),
        remote: IoAddr,
        data: &mut Data<'_>,
        done: &mut usize,
        mapping: Option<&Arc<Mapping>>,
        issued: &AtomicBool,
    ) -> Result<(), Lost> {
        let mut flights: [Option<(Flight<'_>, usize)>; MAX_WINDOW] = [const { None }; MAX_WINDOW];
        let window = self.config.window.min(MAX_WINDOW);
        let (mut first, mut count, mut next) = (0, 0, *done);
        loop {
            while count < window && next < data.len() {
                let len = (data.len() - next).min(self.chunk);
                let Some(to) = remote.checked_add(next as u64) else {
                    return Err(Lost::For(Error::OutOfBounds));
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
                let post = || match self.try_post(conn, lane, verb, to, mapping, false) {
                    Err(NotPosted::Busy) => None,
                    other => Some(other),
                };
                // Whoever has chunks under way does not wait for more room, or all could wait for each other.
                let posted = match post() {
                    Some(posted) => posted,
                    None if count > 0 => break,
                    None => self.resources.until(post).await,
                };
                let id = posted.map_err(|why| match why {
                    NotPosted::Revoked => Lost::For(Error::Freed),
                    NotPosted::Invalid => Lost::For(Error::Refused("the RNIC refused the request".into())),
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
            let (status, lent) = flight.await;
            judge(status)?;
            if let (Data::Read(into), Some(addr)) = (&mut *data, lent.addr()) {
                let into = into.get_mut(*done..*done + *len).unwrap_or_default();
                self.platform
                    .memory()
                    .read(addr, into)
                    .map_err(|e| Lost::For(Error::Refused(alloc::format!("{e}"))))?;
            }
            *done += *len;
            flights[first] = None;
            first = (first + 1) % MAX_WINDOW;
            count -= 1;
        }
    }

    /// An atomic at `remote`: gives the value before.
    pub(crate) async fn atomic(
        self: &Arc<Self>,
        route: Route<'_>,
        remote: IoAddr,
        verb: Verb<'_>,
        mapping: &Arc<Mapping>,
        issued: &AtomicBool,
    ) -> Result<u64, Error> {
        loop {
            let conn = self.route(route).await?;
            let lane = conn.pick();
            let to = RemoteAddr { addr: remote, key: conn.remote_key.rkey };
            let posted =
                self.resources.until(|| match self.try_post(&conn, lane, verb, to, Some(mapping), false) {
                    Err(NotPosted::Busy) => None,
                    other => Some(other),
                });
            let id = match posted.await {
                Ok(id) => id,
                Err(NotPosted::Revoked) => return Err(Error::Freed),
                Err(NotPosted::Invalid) => {
                    return Err(Error::Refused("the RNIC refused the request".into()));
                }
                // Nothing has left yet: another connection may take it.
                Err(NotPosted::ConnectionLost | NotPosted::Busy) => {
                    self.fail(&conn);
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                    continue;
                }
            };
            issued.store(true, Ordering::Relaxed);
            let (status, lent) = Flight::new(self, id).await;
            return match judge(status) {
                Ok(()) => {
                    let mut before = [0; 8];
                    let addr = lent.addr().ok_or(Error::Unknown)?;
                    self.platform.memory().read(addr, &mut before).map_err(|_| Error::Unknown)?;
                    Ok(u64::from_ne_bytes(before))
                }
                Err(Lost::For(error)) => Err(error),
                Err(Lost::Connection) => {
                    self.fail(&conn);
                    Err(self.gone(conn.peer, conn.incarnation).unwrap_or(Error::Unknown))
                }
            };
        }
    }
}
