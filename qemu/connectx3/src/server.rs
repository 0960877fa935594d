//! The event loop: many cards, each with a client on one socket and a port of a fabric on another.

use crate::device::{Card, Host};
use crate::pci::PciCard;
use crate::vfio::{Connection, Ended, Function};
use anyhow::{Context, Result, bail};
use fabricport::FrameStream;
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Frames taken from a fabric before other cards have their turn.
const BUDGET: usize = 64;
/// Frames that wait for a fabric before more are dropped, as a switch would.
const QUEUE: usize = 4096;

/// Where a card is plugged in.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Where QEMU connects to; made here.
    pub client: PathBuf,
    /// The port of a fabric; absent: the cable is out.
    pub fabric: Option<PathBuf>,
}

/// What one of a card's descriptors means: which card, and which of its sockets.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Client,
    Fabric,
}

impl Source {
    const ALL: [Self; 3] = [Self::Listener, Self::Client, Self::Fabric];

    fn token(self, card: usize) -> u64 {
        (card * Self::ALL.len() + self as usize) as u64
    }

    fn of(token: u64) -> Option<(usize, Self)> {
        let token = usize::try_from(token).ok()?;
        Some((token / Self::ALL.len(), *Self::ALL.get(token % Self::ALL.len())?))
    }
}

/// A card and its sockets.
struct Seat {
    listener: UnixListener,
    path: PathBuf,
    client: Option<Connection>,
    function: PciCard,
    fabric: Option<FrameStream>,
    /// Frames that the fabric has not taken yet.
    waiting: VecDeque<Vec<u8>>,
    watches_for_room: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves cards until the process ends.
pub struct Server {
    poller: OwnedFd,
    seats: Vec<Seat>,
}

impl Server {
    /// Plugs cards in. QEMU can connect from the return on.
    pub fn new(cards: Vec<(Slot, Card)>) -> Result<Self> {
        let mut server = Self { poller: epoll::create(epoll::CreateFlags::CLOEXEC)?, seats: Vec::new() };
        for (index, (slot, card)) in cards.into_iter().enumerate() {
            let listener = listen(&slot.client)?;
            server.watch(listener.as_fd(), Source::Listener.token(index), epoll::EventFlags::IN)?;
            let fabric = match &slot.fabric {
                None => None,
                Some(path) => {
                    let stream = FrameStream::connect(path)?;
                    let token = Source::Fabric.token(index);
                    server.watch(stream.watch().as_fd(), token, epoll::EventFlags::IN)?;
                    Some(stream)
                }
            };
            server.seats.push(Seat {
                listener,
                path: slot.client,
                client: None,
                function: PciCard::new(card),
                fabric,
                waiting: VecDeque::new(),
                watches_for_room: false,
            });
        }
        Ok(server)
    }

    fn watch(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<()> {
        epoll::add(&self.poller, fd, epoll::EventData::new_u64(token), flags)?;
        Ok(())
    }

    /// Handles what comes, until `stop` says so; it is asked after each event.
    pub fn run(&mut self, stop: impl Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        while !stop() {
            events.clear();
            let wait = self.wait();
            match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("the event loop"),
            }
            for event in &events {
                let Some((card, source)) = Source::of(event.data.u64()) else { continue };
                match source {
                    Source::Listener => self.accept(card)?,
                    Source::Client => self.serve(card),
                    Source::Fabric => self.receive(card),
                }
            }
            for card in 0..self.seats.len() {
                self.progress(card)?;
            }
        }
        Ok(())
    }

    /// How long nothing is due.
    fn wait(&mut self) -> Timespec {
        const LONGEST: core::time::Duration = core::time::Duration::from_millis(500);
        let dues = self.seats.iter_mut().filter_map(|seat| {
            let now = seat.client.as_ref()?.client().now();
            Some(seat.function.card().next_deadline()?.saturating_since(now))
        });
        let wait = dues.min().unwrap_or(LONGEST).min(LONGEST);
        Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn accept(&mut self, card: usize) -> Result<()> {
        let Some(seat) = self.seats.get_mut(card) else { return Ok(()) };
        // A second client of a card is turned away by the close of its connection.
        let Ok((stream, _)) = seat.listener.accept() else { return Ok(()) };
        if seat.client.is_some() {
            log::warn!("card {card} is in use: a second client is turned away");
            return Ok(());
        }
        let connection = Connection::new(stream)?;
        let token = Source::Client.token(card);
        epoll::add(
            &self.poller,
            connection.stream(),
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN,
        )?;
        seat.client = Some(connection);
        Ok(())
    }

    fn serve(&mut self, card: usize) {
        let Some(seat) = self.seats.get_mut(card) else { return };
        let Some(connection) = &mut seat.client else { return };
        if let Err(e) = connection.serve(&mut seat.function) {
            if !matches!(e, Ended::Closed) {
                log::error!("card {card}: {e}");
            }
            seat.function.reset(connection.client());
            seat.client = None;
        }
    }

    fn receive(&mut self, card: usize) {
        let Some(seat) = self.seats.get_mut(card) else { return };
        let Some(fabric) = &mut seat.fabric else { return };
        let function = &mut seat.function;
        match &seat.client {
            // Nobody at home: the frames are lost.
            None => {
                fabric.receive(BUDGET, &mut |_| ());
            }
            Some(connection) => {
                fabric.receive(BUDGET, &mut |frame| {
                    function.card().receive(0, frame, connection.client());
                });
            }
        }
        if fabric.watch().closed().is_some() {
            log::error!("card {card}: the fabric has gone: the cable is out");
            let _ = epoll::delete(&self.poller, fabric.watch().as_fd());
            seat.fabric = None;
        }
    }

    /// Timers, and frames out.
    fn progress(&mut self, card: usize) -> Result<()> {
        let Some(seat) = self.seats.get_mut(card) else { return Ok(()) };
        let Some(connection) = &seat.client else { return Ok(()) };
        seat.function.card().progress(connection.client());
        let frames = seat.function.card().take_outbox().into_iter().filter(|(port, _)| *port == 0);
        let Some(fabric) = &mut seat.fabric else { return Ok(()) };
        for (_, frame) in frames {
            if seat.waiting.len() < QUEUE {
                seat.waiting.push_back(frame);
            }
        }
        while let Some(frame) = seat.waiting.front() {
            if !fabric.send(frame) {
                break;
            }
            seat.waiting.pop_front();
        }
        fabric.flush();
        let wants_room = fabric.watch().wants_write();
        if wants_room != seat.watches_for_room {
            seat.watches_for_room = wants_room;
            let room = if wants_room { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let token = epoll::EventData::new_u64(Source::Fabric.token(card));
            epoll::modify(&self.poller, fabric.watch().as_fd(), token, epoll::EventFlags::IN | room)?;
        }
        Ok(())
    }
}

/// A new socket at a path where nothing is.
fn listen(path: &Path) -> Result<UnixListener> {
    if path.exists() {
        bail!("{} exists already", path.display());
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
