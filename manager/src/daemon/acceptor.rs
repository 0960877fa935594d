//! The task that accepts connections. Only this task waits when there are no descriptors left.

use super::connection::{self, Shared};
use super::door::Door;
use super::lobby::Origin;
use crate::core::ConnId;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The pause after a failure to accept.
const BACK_OFF: Duration = Duration::from_millis(50);

/// The task that accepts connections and starts a task for each.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: TcpListener,
    door: Arc<Door>,
    shared: Arc<Shared>,
    connections: JoinSet<()>,
    last: u64,
    /// A descriptor to give up when there are no others: with it a connection can be accepted and closed,
    /// instead of left without a reply.
    reserve: Option<File>,
}

impl Acceptor {
    pub(super) fn new(listener: TcpListener, door: Arc<Door>, shared: Arc<Shared>) -> Self {
        Self { listener, door, shared, connections: JoinSet::new(), last: 0, reserve: reserve() }
    }

    /// Accepts connections until the other end of `open` is dropped, and returns those that continue.
    pub(super) async fn run(mut self, mut open: oneshot::Receiver<()>) -> JoinSet<()> {
        loop {
            tokio::select! {
                _ = &mut open => break,
                Some(_) = self.connections.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, address)) => self.admit(stream, Origin::of(address.ip())),
                    Err(error) => self.fail(&error).await,
                },
            }
        }
        self.door.clear();
        self.connections
    }

    fn admit(&mut self, stream: TcpStream, origin: Origin) {
        self.last += 1;
        let pending = self.door.enter(origin);
        self.connections.spawn(connection::serve(stream, ConnId(self.last), pending, self.shared.clone()));
    }

    /// Handles a failure, most likely for lack of descriptors: frees one, and pauses.
    async fn fail(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        self.shared.log.stranger(&format!("cannot accept a connection: {error}"));
        self.door.evict();
        if self.reserve.take().is_some() {
            let accepted = timeout(Duration::ZERO, self.listener.accept()).await;
            self.reserve = reserve();
            match accepted {
                // A descriptor has become free in the meantime.
                Ok(Ok((stream, address))) if self.reserve.is_some() => {
                    return self.admit(stream, Origin::of(address.ip()));
                }
                // The close tells the connection that has waited longest that the daemon has no room.
                accepted => drop(accepted),
            }
        }
        sleep(BACK_OFF).await;
        if self.reserve.is_none() {
            self.reserve = reserve();
        }
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}
