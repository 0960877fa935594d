//! A served card: the card with its sockets to QEMU and to the fabric.

use super::cable::{Cable, Outside};
use crate::device::{Card, Host};
use crate::pci::PciCard;
use crate::trace::{Observer, Watch};
use crate::vfio::{Connection, Ended, Function};
use anyhow::{Context, Result, bail};
use fabricport::FrameStream;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of frames received from a fabric per turn.
const BUDGET: usize = 64;

/// The longest time that a second client waits for the card.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(2);

/// The destination of a port's cable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plug {
    /// The switch that all cards of the process share.
    #[default]
    Switch,
    /// A port of a fabric, by the path of its socket.
    Fabric(PathBuf),
}

/// The place of a card in the server: the card and its connections.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The socket to which QEMU connects. The server creates it.
    pub client: PathBuf,
    /// The cables of the card's ports, in order. Further ports are connected to the switch.
    pub plugs: Vec<Plug>,
}

/// A card with its client and cables.
pub(super) struct ServedCard {
    listener: UnixListener,
    path: PathBuf,
    client: Option<Connection>,
    /// A client that waits for the card, and its deadline.
    waiting: Option<(UnixStream, Instant)>,
    function: PciCard,
    cables: Vec<Cable>,
    observer: Arc<Observer>,
}

impl Drop for ServedCard {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ServedCard {
    /// Creates the client's socket and connects to fabrics. `plug` returns a port's end of the switch.
    pub(super) fn new(
        slot: Slot,
        card: Card,
        watch: Watch,
        mut plug: impl FnMut(usize) -> usize,
    ) -> Result<Self> {
        let name = slot.client.file_name().unwrap_or(slot.client.as_os_str()).to_string_lossy().into_owned();
        let ports = card.profile().ports.len();
        let mut plugs = slot.plugs.into_iter();
        let cables = (0..ports).map(|port| match plugs.next().unwrap_or_default() {
            Plug::Switch => Ok(Cable::Switch(plug(port))),
            Plug::Fabric(path) => Ok(Cable::Fabric(Box::new(Outside::new(FrameStream::connect(&path)?)))),
        });
        let cables = cables.collect::<Result<_>>()?;
        Ok(Self {
            listener: listen(&slot.client)?,
            path: slot.client,
            client: None,
            waiting: None,
            function: PciCard::new(card),
            cables,
            observer: Arc::new(Observer::new(name, watch)),
        })
    }

    /// Returns the card's observer.
    pub(super) const fn observer(&self) -> &Arc<Observer> {
        &self.observer
    }

    /// Returns the socket to which clients connect.
    pub(super) const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the connections to fabrics, by port.
    pub(super) fn fabrics(&self) -> impl Iterator<Item = (usize, &FrameStream)> {
        self.cables.iter().enumerate().filter_map(|(port, cable)| match cable {
            Cable::Fabric(outside) => Some((port, &outside.stream)),
            Cable::Out | Cable::Switch(_) => None,
        })
    }

    /// Returns a port's cable.
    pub(super) fn cable(&mut self, port: usize) -> Option<&mut Cable> {
        self.cables.get_mut(port)
    }

    /// Accepts a client, which then waits for [`admit`](Self::admit). A card has one client, and one more may
    /// wait; others are rejected by closing their connections.
    pub(super) fn accept(&mut self, index: usize) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if self.waiting.is_some() {
            log::warn!("card {index} is in use: a client is rejected");
        } else {
            self.waiting = Some((stream, Instant::now() + ADMISSION_TIMEOUT));
        }
    }

    /// Admits the waiting client once the former client has hung up. Returns its stream, which must be
    /// watched. A client that has waited for [`ADMISSION_TIMEOUT`] is rejected by closing its connection.
    ///
    /// The former client's last messages and its end may still be unread. Its socket may also outlive its
    /// process for a moment: QEMU watches sockets by io_uring, which releases them after the process has
    /// ended.
    pub(super) fn admit(&mut self, index: usize) -> Result<Option<&UnixStream>> {
        let Some((_, until)) = self.waiting else { return Ok(None) };
        if self.client.as_ref().is_some_and(|client| has_hung_up(client.stream())) {
            self.end_client();
        }
        if self.client.is_some() {
            if Instant::now() >= until {
                log::warn!("card {index} is in use: a second client is rejected");
                self.waiting = None;
            }
            return Ok(None);
        }
        let Some((stream, _)) = self.waiting.take() else { return Ok(None) };
        Ok(Some(self.client.insert(Connection::new(stream, Arc::clone(&self.observer))?).stream()))
    }

    /// Answers the client. While the client does not read its replies, the loop watches its socket for room.
    pub(super) fn serve(&mut self, index: usize, poller: &OwnedFd, token: u64) -> Result<()> {
        let Some(connection) = &mut self.client else { return Ok(()) };
        let wanted_room = connection.wants_room();
        if let Err(e) = connection.serve(&mut self.function) {
            if !matches!(e, Ended::Closed) {
                log::error!("card {index}: {e}");
            }
            self.end_client();
        } else if connection.wants_room() != wanted_room {
            let ready = if wanted_room { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
            epoll::modify(poller, connection.stream(), epoll::EventData::new_u64(token), ready)?;
        }
        Ok(())
    }

    fn end_client(&mut self) {
        if let Some(connection) = self.client.take() {
            self.function.reset(connection.client());
        }
    }

    /// Delivers a frame to a port. Without a client the frame is lost.
    pub(super) fn receive(&mut self, port: usize, frame: &[u8]) {
        if let Some(connection) = &self.client {
            self.function.card().receive(port, frame, connection.client());
        }
    }

    /// Receives frames from a fabric. If the fabric has closed the connection, the cable is unplugged.
    pub(super) fn receive_from_fabric(&mut self, index: usize, port: usize, poller: &OwnedFd) {
        let Self { client, function, cables, .. } = self;
        let Some(cable) = cables.get_mut(port) else { return };
        let Cable::Fabric(outside) = cable else { return };
        outside.stream.receive(BUDGET, &mut |frame| {
            if let Some(connection) = client {
                function.card().receive(port, frame, connection.client());
            }
        });
        let watch = outside.stream.watch();
        if watch.closed().is_some() {
            log::error!(
                "card {index} port {}: the fabric has closed the connection; the cable is unplugged",
                port + 1
            );
            let _ = epoll::delete(poller, watch.as_fd());
            *cable = Cable::Out;
            if let Some(connection) = client {
                function.card().set_cable(port, false, connection.client());
            }
        }
    }

    /// Returns the time in nanoseconds until the card needs [`progress`](Self::progress), or `None` if no
    /// timer runs.
    pub(super) fn nanoseconds_until_due(&mut self) -> Option<u64> {
        let now = self.client.as_ref()?.client().now();
        let due = self.function.card().next_deadline()?.saturating_since(now);
        Some(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs the card's timers and returns the frames that it sends, with their ports.
    pub(super) fn progress(&mut self) -> Vec<(usize, Vec<u8>)> {
        if let Some(connection) = &self.client {
            self.function.card().progress(connection.client());
        }
        self.function.card().take_outbox()
    }

    /// Sends frames to fabrics. While a fabric does not accept them, the loop watches its socket for room.
    pub(super) fn flush(&mut self, poller: &OwnedFd, token: impl Fn(usize) -> u64) -> Result<()> {
        for (port, cable) in self.cables.iter_mut().enumerate() {
            if let Cable::Fabric(outside) = cable
                && let Some(wants_room) = outside.flush()
            {
                let room = if wants_room { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let data = epoll::EventData::new_u64(token(port));
                epoll::modify(poller, outside.stream.watch().as_fd(), data, epoll::EventFlags::IN | room)?;
            }
        }
        Ok(())
    }
}

/// Returns whether the other end of the stream is closed, even if data is still to be read.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok()
        && fds.iter().any(|fd| fd.revents().intersects(PollFlags::RDHUP | PollFlags::HUP))
}

/// Creates a listening socket at a path that must not exist.
fn listen(path: &Path) -> Result<UnixListener> {
    if path.exists() {
        bail!("{} already exists", path.display());
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
