//! Reads and writes of any length, cut into chunks of which several are in flight.

use crate::base::own::{Elements, Hold, Span};
use crate::base::qos::Share;
use crate::sometimes::sometimes;
use crate::transport::conn::Conn;
use crate::transport::connect::Connections;
use crate::transport::op::{Access, InFlight, NotPosted, Verb};
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
    /// Any connection to the incarnation of the node. If one connection fails, the transfer goes on over the
    /// next.
    Node(NodeId, Incarnation),
    /// Only this connection, and the queue pair of RPC of this shard: the peer's memory is lent for a call,
    /// whose reply must follow everything that was posted.
    Conn(&'a Arc<Conn>, usize),
}

/// The data of a transfer.
pub(crate) enum Data<'a> {
    Write(&'a [u8]),
    Read(&'a mut [u8]),
    /// A write from memory of the application, without a copy.
    WriteOwn(Span<'a>),
    /// A read into memory of the application, without a copy.
    ReadOwn(Span<'a>),
}

/// One work request of a transfer.
enum Chunk<'a> {
    Bounced(Verb<'a>),
    Own(Elements, &'a Hold),
}

impl<'a> Data<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Write(d) => d.len(),
            Self::Read(d) => d.len(),
            Self::WriteOwn(d) | Self::ReadOwn(d) => d.len() as usize,
        }
    }

    /// Removes at most `len` bytes from the front and returns them.
    pub(crate) fn take_front(&mut self, len: usize) -> Data<'a> {
        let len = len.min(self.len());
        match self {
            Self::Write(d) => {
                let (front, rest) = d.split_at(len);
                *d = rest;
                Data::Write(front)
            }
            Self::Read(d) => {
                let (front, rest) = core::mem::take(d).split_at_mut(len);
                *d = rest;
                Data::Read(front)
            }
            Self::WriteOwn(d) => Data::WriteOwn(take_front(d, len)),
            Self::ReadOwn(d) => Data::ReadOwn(take_front(d, len)),
        }
    }

    /// Returns the part of the data from byte `at`, of at most `len` bytes.
    pub(crate) fn part(&mut self, at: usize, len: u64) -> Data<'_> {
        let end = at + usize::try_from(len).unwrap_or(usize::MAX).min(self.len() - at);
        match self {
            Self::Write(d) => Data::Write(d.get(at..end).unwrap_or_default()),
            Self::Read(d) => Data::Read(d.get_mut(at..end).unwrap_or_default()),
            Self::WriteOwn(d) => Data::WriteOwn(d.part(at as u64, len)),
            Self::ReadOwn(d) => Data::ReadOwn(d.part(at as u64, len)),
        }
    }

    /// Returns the next work request from byte `at` on, of at most `len` bytes and `elements` elements, and
    /// its length.
    fn chunk(&self, at: usize, len: usize, elements: usize) -> (Chunk<'_>, usize) {
        let len = len.min(self.len() - at);
        match self {
            Self::Write(d) => {
                let head = d.get(at..at + len).unwrap_or_default();
                (Chunk::Bounced(Verb::Write { head, tail: &[], imm: None }), len)
            }
            Self::Read(_) => (Chunk::Bounced(Verb::Read { len: len as u32 }), len),
            Self::WriteOwn(d) | Self::ReadOwn(d) => {
                let elements = d.elements(at as u64, len, elements);
                let len = elements.len as usize;
                (Chunk::Own(elements, d.hold), len)
            }
        }
    }

    /// Returns the error of a transfer that finds no connection for its rest.
    fn unreached(&self, error: Error, effects: &Effects) -> Error {
        if effects.posted.load(Ordering::Relaxed) { doubtful(self.right(), error) } else { error }
    }

    /// Returns the right that the mapping must have.
    pub(crate) fn right(&self) -> Permissions {
        match self {
            Self::Write(_) | Self::WriteOwn(_) => Permissions::WRITE,
            Self::Read(_) | Self::ReadOwn(_) => Permissions::READ,
        }
    }
}

fn take_front<'a>(span: &mut Span<'a>, len: usize) -> Span<'a> {
    let front = span.part(0, len as u64);
    *span = span.part(len as u64, u64::MAX);
    front
}

/// The effects that a transfer may have had although it has not succeeded.
#[derive(Default)]
pub(crate) struct Effects {
    /// True if a part of the transfer was ever posted, or copied within this node.
    pub(crate) posted: AtomicBool,
    /// True if the outcome of a part was lost with its connection: the part may have happened, and may still
    /// happen.
    lost: AtomicBool,
}

impl Effects {
    /// Returns the effects of a transfer that an earlier attempt posted and lost.
    pub(crate) fn of_lost() -> Self {
        Self { posted: AtomicBool::new(true), lost: AtomicBool::new(true) }
    }

    /// Returns the error of a transfer with these effects that ends with `error`. `right` is the one that the
    /// transfer needs.
    pub(crate) fn error(&self, right: Permissions, error: Error) -> Error {
        if self.lost.load(Ordering::Relaxed) { doubtful(right, error) } else { error }
    }
}

/// Returns the error of a transfer that may have had an effect, and ends with `error`. A read has none that
/// can be seen.
fn doubtful(right: Permissions, error: Error) -> Error {
    match error {
        Error::NodeDown(_) | Error::LinkDown => error,
        _ if right == Permissions::READ => error,
        _ => Error::Unknown,
    }
}

/// The reason for which a transfer stopped before its end.
pub(crate) enum TransferError {
    /// The mapping has been changed: the rest may be tried again at the new location.
    Changed,
    /// The transfer failed with this error, and is not tried again.
    For(Error),
}

/// The reason for which an attempt on one connection ended.
pub(crate) enum AttemptError {
    /// The connection failed, and the outcome of nothing was lost with it. The rest may be tried on another
    /// connection.
    Connection,
    /// The connection failed after a work request had been posted, which may have been carried out. It may be
    /// tried on another connection if a second time does no harm.
    Lost,
    /// The attempt ended with an error that a new connection does not cure.
    TransferError(TransferError),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::TransferError(TransferError::For(error))
    }
}

/// Returns the meaning of a completion's status for the operation.
pub(crate) fn judge(status: Status) -> Result<(), AttemptError> {
    match status {
        Status::Success => Ok(()),
        Status::RemoteAccessError | Status::RemoteInvalidRequest => {
            Err(Error::Refused("the peer's RNIC refused the access".into()).into())
        }
        Status::LocalProtectionError | Status::LocalLengthError => {
            Err(Error::Refused("the RNIC refused local memory".into()).into())
        }
        _ => Err(AttemptError::Lost),
    }
}

impl Connections {
    pub(crate) async fn route(self: &Arc<Self>, route: Route<'_>) -> Result<Arc<Conn>, Error> {
        match route {
            Route::Node(node, incarnation) => {
                let conn = self.connection(node).await?;
                if conn.incarnation != incarnation {
                    return Err(Error::NodeDown(node));
                }
                self.remember(&conn);
                Ok(conn)
            }
            Route::Conn(conn, _) if conn.is_shut() => Err(Error::Unknown),
            Route::Conn(conn, _) => Ok(conn.clone()),
        }
    }

    /// Moves all of `data` over the queue pair of RPC that a shard has of a connection, whose peer lends the
    /// memory at `remote`.
    pub(crate) async fn transfer_lent(
        self: &Arc<Self>,
        (conn, shard): (&Arc<Conn>, usize),
        remote: IoAddr,
        data: Data<'_>,
    ) -> Result<(), Error> {
        match self.transfer(Route::Conn(conn, shard), remote, data, None, &mut 0, &Effects::default()).await {
            Ok(()) => Ok(()),
            Err(TransferError::For(error)) => Err(error),
            Err(TransferError::Changed) => Err(Error::Unknown),
        }
    }

    /// Moves all of `data` to or from `remote`; `done` counts the bytes moved.
    pub(crate) async fn transfer(
        self: &Arc<Self>,
        route: Route<'_>,
        remote: IoAddr,
        mut data: Data<'_>,
        pass: Option<Access<'_>>,
        done: &mut usize,
        effects: &Effects,
    ) -> Result<(), TransferError> {
        while *done < data.len() {
            let conn = self
                .route(route)
                .await
                .map_err(|error| TransferError::For(data.unreached(error, effects)))?;
            // All chunks go in order on one queue pair.
            let qp_index = match route {
                Route::Node(..) => self.pick(&conn, pass.map_or(Share::All, |p| p.share)),
                Route::Conn(_, shard) => conn.group.lanes.rpc(shard),
            };
            match self.attempt((&conn, qp_index), remote, &mut data, done, pass, effects).await {
                Ok(()) => {}
                Err(AttemptError::TransferError(stop)) => return Err(stop),
                Err(why @ (AttemptError::Connection | AttemptError::Lost)) => {
                    if matches!(why, AttemptError::Lost) {
                        effects.lost.store(true, Ordering::Relaxed);
                    }
                    self.fail(&conn);
                    if matches!(route, Route::Conn(..)) {
                        return Err(TransferError::For(Error::Unknown));
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
        (conn, qp_index): (&Arc<Conn>, usize),
        remote: IoAddr,
        data: &mut Data<'_>,
        done: &mut usize,
        pass: Option<Access<'_>>,
        effects: &Effects,
    ) -> Result<(), AttemptError> {
        let mut flights: [Option<(InFlight<'_>, usize)>; MAX_WINDOW] = [const { None }; MAX_WINDOW];
        let window = self.config.window.min(MAX_WINDOW);
        let (mut first, mut count, mut next) = (0, 0, *done);
        loop {
            self.look_at_lease(self.platform.now());
            while count < window && next < data.len() {
                let (chunk, len) = data.chunk(next, self.chunk, self.max_sge);
                let Some(to) = remote.checked_add(next as u64).filter(|_| len > 0) else {
                    return Err(Error::OutOfBounds.into());
                };
                let (to, right) = (RemoteAddr { addr: to, key: conn.remote_key.rkey }, data.right());
                let post = || {
                    let posted = match &chunk {
                        Chunk::Bounced(verb) => self.try_post(conn, qp_index, *verb, to, pass),
                        Chunk::Own(elements, hold) => {
                            self.try_post_own(conn, qp_index, (right, elements, hold), to, pass)
                        }
                    };
                    (posted != Err(NotPosted::Busy)).then_some(posted)
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
                    NotPosted::Changed => AttemptError::TransferError(TransferError::Changed),
                    NotPosted::Invalid => Error::Refused("the RNIC refused the request".into()).into(),
                    NotPosted::ConnectionLost | NotPosted::Busy if count > 0 => AttemptError::Lost,
                    NotPosted::ConnectionLost | NotPosted::Busy => AttemptError::Connection,
                })?;
                effects.posted.store(true, Ordering::Relaxed);
                if let Chunk::Bounced(verb) = chunk {
                    self.counters.bytes_copied.add(self.bounce_len(verb).unwrap_or(0) as u64);
                }
                if let Some(place) = flights.get_mut((first + count) % MAX_WINDOW) {
                    *place = Some((InFlight::new(self, id), len));
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
}
