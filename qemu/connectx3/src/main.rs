//! `cx3`: emulated ConnectX-3 cards for QEMU. One process, one event loop, a socket for each card.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::Parser;
use connectx3::device::{Card, Host, Profile};
use connectx3::pci::PciCard;
use connectx3::vfio::{Connection, Ended, Function};
use rustix::event::{Timespec, epoll};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use verbs::MacAddr;

/// Serves emulated ConnectX-3 Pro cards to QEMU (`-device vfio-user-pci`).
#[derive(Parser)]
struct Options {
    /// A socket for each card; QEMU connects to it once, at its start.
    #[arg(required = true)]
    sockets: Vec<PathBuf>,
}

/// A card and who uses it.
struct Seat {
    listener: UnixListener,
    connection: Option<Connection>,
    function: PciCard,
}

fn main() -> Result<()> {
    env_logger::init();
    let options = Options::parse();
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut seats = Vec::new();
    for (index, path) in options.sockets.iter().enumerate() {
        if path.exists() {
            bail!("{} exists already", path.display());
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        watch(&poller, listener.as_fd(), 2 * index)?;
        let mac = MacAddr([0x00, 0x02, 0xc9, 0x00, 0x00, index as u8 + 1]);
        seats.push(Seat { listener, connection: None, function: PciCard::new(Card::new(Profile::pro(mac))) });
    }
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        let now = seats.iter().find_map(|seat| seat.connection.as_ref()).map(|c| c.client().now());
        let due = seats.iter_mut().filter_map(|seat| seat.function.card().next_deadline()).min();
        let wait = due.zip(now).map(|(due, now)| {
            let wait = due.saturating_since(now);
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
        });
        match epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            let token = event.data.u64() as usize;
            let Some(seat) = seats.get_mut(token / 2) else { continue };
            if token.is_multiple_of(2) {
                if let Ok((stream, _)) = seat.listener.accept()
                    && seat.connection.is_none()
                {
                    let connection = Connection::new(stream)?;
                    watch(&poller, connection.stream().as_fd(), token + 1)?;
                    seat.connection = Some(connection);
                }
            } else if let Some(connection) = &mut seat.connection
                && let Err(e) = connection.serve(&mut seat.function)
            {
                if !matches!(e, Ended::Closed) {
                    log::error!("card {}: {e}", token / 2);
                }
                seat.function.reset(connection.client());
                seat.connection = None;
            }
            exchange(&mut seats, token / 2);
        }
        for from in 0..seats.len() {
            exchange(&mut seats, from);
        }
    }
}

/// Gives the frames of a card to all others, and theirs in answer to it, until there are none.
fn exchange(seats: &mut [Seat], from: usize) {
    let mut senders = vec![from];
    while let Some(from) = senders.pop() {
        let Some(seat) = seats.get_mut(from) else { continue };
        let Some(connection) = &seat.connection else { continue };
        seat.function.card().progress(connection.client());
        let frames = seat.function.card().take_outbox();
        for (to, seat) in seats.iter_mut().enumerate().filter(|(to, _)| *to != from) {
            let Some(connection) = &seat.connection else { continue };
            for (port, frame) in &frames {
                seat.function.card().receive(*port, frame, connection.client());
            }
            if !frames.is_empty() {
                senders.push(to);
            }
        }
    }
}

fn watch(poller: impl AsFd, fd: impl AsFd, token: usize) -> Result<()> {
    epoll::add(poller, fd, epoll::EventData::new_u64(token as u64), epoll::EventFlags::IN)?;
    Ok(())
}
