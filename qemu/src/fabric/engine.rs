//! The switching thread: waits for ports to have frames and moves them.

use super::capture::Capture;
use super::port::{Front, MAX_FRAME, PREFIX, Peer, Port, SendError, front};
use super::stream::Stream;
use super::vhost::{self, Broken, Machine, Ring, Side};
use super::{Command, Commands, FabricCounters};
use anyhow::{Context, Result};
use netfault::switch::{MacTable, Verdict};
use netfault::{FaultQueue, Faults};
use rustix::event::{Timespec, epoll};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// Read at most so much at a time: many frames per wake-up, and still in the second-level cache.
const BUFFER: usize = 256 * 1024;
/// Batches taken from one machine's ring before the other ports have their turn.
const BATCHES: usize = 8;

/// What an event is about; the port stands in the lower half of its token.
const CONNECTION: u64 = 0;
const STREAM_LISTENER: u64 = 1;
const VHOST_LISTENER: u64 = 2;
const TRANSMIT_KICK: u64 = 3;
const RECEIVE_KICK: u64 = 4;
const WAKE: u64 = 5;

/// All that the switching thread owns.
pub struct Engine {
    epoll: OwnedFd,
    /// For the threads that serve connections.
    commands: Commands,
    inbox: Receiver<Command>,
    ports: Vec<Port>,
    table: MacTable,
    /// Whether frames take the way through `links` at all.
    faulty: bool,
    /// The faulty link behind each port, by the port a frame came from; remembers where each frame goes.
    links: Vec<FaultQueue<usize>>,
    capture: Option<Capture>,
    started: Instant,
    buffer: Vec<u8>,
    /// For each port, which parts of the buffer go to it.
    outgoing: Vec<Vec<Range<usize>>>,
    /// Ports whose rings were left with frames in them.
    unfinished: Vec<usize>,
    /// Connections so far.
    lives: u64,
}

impl Engine {
    pub fn new(
        ports: Vec<Port>,
        faults: Faults,
        seed: u64,
        capture: Option<Capture>,
        inbox: Receiver<Command>,
        commands: Commands,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
        watch(&epoll, commands.wake(), token(WAKE, 0), epoll::EventFlags::IN)?;
        for (n, port) in ports.iter().enumerate() {
            watch(&epoll, &port.stream_listener, token(STREAM_LISTENER, n), epoll::EventFlags::IN)?;
            watch(&epoll, &port.vhost_listener, token(VHOST_LISTENER, n), epoll::EventFlags::IN)?;
        }
        let links = (0..ports.len() as u64).map(|n| FaultQueue::new(faults, mix(seed, n))).collect();
        Ok(Self {
            epoll,
            commands,
            inbox,
            outgoing: vec![Vec::new(); ports.len()],
            ports,
            table: MacTable::default(),
            faulty: !faults.is_none(),
            links,
            capture,
            started: Instant::now(),
            buffer: vec![0; BUFFER.max(2 * (MAX_FRAME + PREFIX))],
            unfinished: Vec::new(),
            lives: 0,
        })
    }

    /// Moves frames until told to stop.
    pub fn run(mut self) -> Result<FabricCounters> {
        // The kernel may round a timed wait up by this much (50 us unless set): delays are of that order.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut events = Vec::with_capacity(4 * self.ports.len() + 1);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            for event in &events {
                let data = event.data.u64();
                let n = (data & u64::from(u32::MAX)) as usize;
                match data >> 32 {
                    WAKE => {
                        if self.obey()? {
                            return Ok(self.finish());
                        }
                    }
                    STREAM_LISTENER => self.accept_stream(n)?,
                    VHOST_LISTENER => self.accept_machine(n)?,
                    TRANSMIT_KICK => self.empty_ring(n)?,
                    RECEIVE_KICK => self.fill_ring(n)?,
                    _ => self.serve(n, event.flags)?,
                }
            }
            for n in std::mem::take(&mut self.unfinished) {
                self.empty_ring(n)?;
            }
            if self.faulty {
                self.deliver_due()?;
            }
            if self.capture.is_some() {
                self.flush_capture(false)?;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long nothing needs to be done unless a port or the owner asks for it.
    fn timeout(&self) -> Option<Timespec> {
        if !self.unfinished.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let due = self.links.iter().filter_map(FaultQueue::next_deadline).min();
        let flush = self.capture.as_ref().and_then(Capture::deadline);
        let until = due.into_iter().chain(flush).min()?;
        let wait = until.saturating_sub(self.now());
        Some(Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 })
    }

    /// Carries out what the owner and the threads of connections ask for; says whether to stop.
    fn obey(&mut self) -> Result<bool> {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.commands.wake(), &mut count);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::SetFaults(faults) => {
                    self.links.iter_mut().for_each(|link| link.set_faults(faults));
                    // Frames in flight keep the slow way open until a fabric without faults has delivered them.
                    self.faulty = !faults.is_none() || self.links.iter().any(|link| !link.is_empty());
                }
                Command::SetLink { port, up } => {
                    if let Some(port) = self.ports.get_mut(port) {
                        port.link = up;
                    }
                }
                Command::Counters(answer) => {
                    let _ = answer.send(self.counters());
                }
                Command::Attach { port, life, side, ring } => self.attach(port, life, side, ring)?,
                Command::Detach { port, life, side, answer } => {
                    // The thread may have given up waiting.
                    let _ = answer.send(self.detach(port, life, side)?);
                }
                Command::Gone { port, life } => {
                    if self.machine(port, life).is_some() {
                        self.disconnect(port)?;
                    }
                }
                Command::Stop => return Ok(true),
            }
        }
        Ok(false)
    }

    fn counters(&self) -> FabricCounters {
        let mut faults = netfault::Counters::default();
        self.links.iter().for_each(|link| faults += link.counters());
        FabricCounters { ports: self.ports.iter().map(|p| p.counters).collect(), faults }
    }

    fn finish(mut self) -> FabricCounters {
        // A capture's write error was reported when it happened; one at the very end costs the last records only.
        let _ = self.flush_capture(true);
        self.counters()
    }

    /// A machine connects by a stream. One that was connected before has been replaced (a restart).
    fn accept_stream(&mut self, n: usize) -> Result<()> {
        let Ok((socket, _)) = self.ports[n].stream_listener.accept() else { return Ok(()) };
        socket.set_nonblocking(true).context("cannot make a socket non-blocking")?;
        self.disconnect(n)?;
        watch(&self.epoll, &socket, token(CONNECTION, n), epoll::EventFlags::IN)?;
        self.ports[n].peer = Peer::Stream(Stream::new(socket));
        Ok(())
    }

    /// A machine connects that is going to share its memory. It replaces one that was connected before.
    fn accept_machine(&mut self, n: usize) -> Result<()> {
        let Ok((connection, _)) = self.ports[n].vhost_listener.accept() else { return Ok(()) };
        self.disconnect(n)?;
        self.lives += 1;
        let ours = connection.try_clone().context("cannot duplicate a socket")?;
        vhost::spawn(n, self.lives, connection, self.commands.clone()).context("cannot start a thread")?;
        self.ports[n].peer = Peer::Machine(Box::new(Machine::new(self.lives, ours)));
        Ok(())
    }

    /// The machine behind a port, if it is still that one.
    fn machine(&mut self, n: usize, life: u64) -> Option<&mut Machine> {
        match &mut self.ports.get_mut(n)?.peer {
            Peer::Machine(machine) if machine.life == life => Some(machine),
            _ => None,
        }
    }

    /// Puts a ring to use.
    fn attach(&mut self, n: usize, life: u64, side: Side, ring: Box<Ring>) -> Result<()> {
        if self.machine(n, life).is_none() {
            return Ok(());
        }
        self.detach(n, life, side)?;
        let kind = if side == Side::Transmit { TRANSMIT_KICK } else { RECEIVE_KICK };
        // Edge-triggered: each kick is an event, and the count is never read.
        watch(
            &self.epoll,
            &*ring.signals.kick,
            token(kind, n),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        ring.remind();
        if let Some(machine) = self.machine(n, life) {
            *machine.ring(side) = Some(ring);
        }
        // Kicks may have come before.
        if side == Side::Transmit { self.empty_ring(n) } else { self.fill_ring(n) }
    }

    /// Takes a ring out of use.
    fn detach(&mut self, n: usize, life: u64, side: Side) -> Result<Option<Box<Ring>>> {
        let Some(ring) = self.machine(n, life).and_then(|machine| machine.ring(side).take()) else {
            return Ok(None);
        };
        epoll::delete(&self.epoll, &*ring.signals.kick).context("epoll_ctl")?;
        Ok(Some(ring))
    }

    /// Gives up a ring in which something stands that cannot be.
    fn give_up(&mut self, n: usize, side: Side) -> Result<()> {
        if let Peer::Machine(machine) = &self.ports[n].peer {
            let life = machine.life;
            self.ports[n].counters.protocol_errors += 1;
            self.detach(n, life, side)?;
        }
        Ok(())
    }

    /// Lets go of the machine behind a port. Closing a socket also takes it off the poller.
    fn disconnect(&mut self, n: usize) -> Result<()> {
        if let Peer::Machine(machine) = &self.ports[n].peer {
            let life = machine.life;
            self.detach(n, life, Side::Receive)?;
            self.detach(n, life, Side::Transmit)?;
        }
        self.ports[n].peer = Peer::Absent;
        self.table.forget(n);
        Ok(())
    }

    /// A machine has given buffers while frames waited for some.
    fn fill_ring(&mut self, n: usize) -> Result<()> {
        let port = &mut self.ports[n];
        let Peer::Machine(machine) = &mut port.peer else { return Ok(()) };
        match machine.flush(&mut port.counters) {
            Ok(()) => Ok(()),
            Err(Broken) => self.give_up(n, Side::Receive),
        }
    }

    /// Moves the frames in a machine's transmit ring, until it is empty or others should have their turn.
    fn empty_ring(&mut self, n: usize) -> Result<()> {
        for _ in 0..BATCHES {
            match self.move_batch(n) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(BatchError::Broken) => return self.give_up(n, Side::Transmit),
                Err(BatchError::Failed(e)) => return Err(e),
            }
        }
        self.unfinished.push(n);
        Ok(())
    }

    /// Moves one batch; gives whether there may be more.
    fn move_batch(&mut self, n: usize) -> Result<bool, BatchError> {
        let port = &mut self.ports[n];
        let Peer::Machine(machine) = &mut port.peer else { return Ok(false) };
        let Some(ring) = &mut machine.transmit else { return Ok(false) };
        ring.ignore()?;
        let taken = ring.take(&mut self.buffer)?;
        port.counters.reads += 1;
        port.counters.dropped_invalid += taken.invalid;
        if taken.filled > 0 {
            let buffer = std::mem::take(&mut self.buffer);
            let moved = self.forward(n, &buffer[..taken.filled]);
            self.buffer = buffer;
            moved.map_err(BatchError::Failed)?;
        }
        // Forwarding may have ended this machine's connection.
        let Peer::Machine(machine) = &mut self.ports[n].peer else { return Ok(false) };
        let Some(ring) = &mut machine.transmit else { return Ok(false) };
        ring.call()?;
        Ok(!taken.empty || ring.listen()?)
    }

    fn serve(&mut self, n: usize, ready: epoll::EventFlags) -> Result<()> {
        let port = &mut self.ports[n];
        let Peer::Stream(stream) = &mut port.peer else { return Ok(()) };
        if ready.contains(epoll::EventFlags::OUT) {
            if stream.send_waiting(&mut port.counters).is_err() {
                return self.disconnect(n);
            }
            self.watch_for_room(n)?;
        }
        if ready.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.forward_from(n)?;
        }
        Ok(())
    }

    /// Reads once from a port and moves what came.
    fn forward_from(&mut self, n: usize) -> Result<()> {
        let port = &mut self.ports[n];
        let Peer::Stream(stream) = &mut port.peer else { return Ok(()) };
        let filled = stream.read(&mut self.buffer, &mut port.counters);
        let Ok(filled) = filled else { return self.disconnect(n) };
        let buffer = std::mem::take(&mut self.buffer);
        let moved = self.forward(n, &buffer[..filled]);
        self.buffer = buffer;
        moved
    }

    /// Moves the frames in what was read from port `from`.
    fn forward(&mut self, from: usize, read: &[u8]) -> Result<()> {
        let now = if self.faulty || self.capture.is_some() { self.now() } else { 0 };
        let mut at = 0;
        loop {
            match front(&read[at..]) {
                Front::Frame(len) => {
                    let end = at + PREFIX + len;
                    self.forward_frame(from, read, at..end, now)?;
                    at = end;
                }
                Front::Incomplete => {
                    if let Peer::Stream(stream) = &mut self.ports[from].peer {
                        stream.keep_partial(&read[at..]);
                    }
                    break;
                }
                Front::Invalid => {
                    self.ports[from].counters.protocol_errors += 1;
                    self.disconnect(from)?;
                    break;
                }
            }
        }
        self.send_outgoing(read)
    }

    /// Decides about the frame at `range` of `read`, prefix included, and notes where it goes.
    fn forward_frame(&mut self, from: usize, read: &[u8], range: Range<usize>, now: u64) -> Result<()> {
        let frame = &read[range.start + PREFIX..range.end];
        let port = &mut self.ports[from];
        port.counters.frames_in += 1;
        port.counters.bytes_in += frame.len() as u64;
        if !port.link {
            port.counters.dropped_down += 1;
            return Ok(());
        }
        if let Some(capture) = &mut self.capture {
            capture.frame(now, frame)?;
        }
        match self.table.switch(frame, from) {
            Verdict::Port(to) => self.pass(from, to, frame, range, now),
            Verdict::Flood => {
                for to in (0..self.ports.len()).filter(|to| *to != from) {
                    if self.ports[to].is_connected() {
                        self.pass(from, to, frame, range.clone(), now);
                    }
                }
            }
            Verdict::Drop => self.ports[from].counters.dropped_invalid += 1,
        }
        Ok(())
    }

    /// Lets a frame into the link from one port to another.
    fn pass(&mut self, from: usize, to: usize, frame: &[u8], range: Range<usize>, now: u64) {
        if self.faulty {
            self.links[from].push(to, frame.to_vec(), now);
        } else if self.ports[to].admit(frame.len()) {
            // Neighbours in the buffer with one destination are one piece.
            match self.outgoing[to].last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => self.outgoing[to].push(range),
            }
        }
    }

    /// Sends what of `buffer` was noted for each port.
    fn send_outgoing(&mut self, buffer: &[u8]) -> Result<()> {
        for to in 0..self.ports.len() {
            if self.outgoing[to].is_empty() {
                continue;
            }
            let sent = self.ports[to].send(buffer, &self.outgoing[to]);
            self.outgoing[to].clear();
            match sent {
                Ok(()) => self.watch_for_room(to)?,
                Err(SendError::Disconnected) => self.disconnect(to)?,
                Err(SendError::BrokenRing) => self.give_up(to, Side::Receive)?,
            }
        }
        Ok(())
    }

    /// Delivers the frames whose time has come.
    fn deliver_due(&mut self) -> Result<()> {
        let now = self.now();
        let mut staged = Vec::new();
        for n in 0..self.links.len() {
            while let Some((to, frame)) = self.links[n].pop(now) {
                if self.ports[to].admit(frame.len()) {
                    let start = staged.len();
                    // A frame was taken with a 4-byte length, so its length fits one.
                    staged.extend(u32::try_from(frame.len()).unwrap_or(0).to_be_bytes());
                    staged.extend(frame);
                    self.outgoing[to].push(start..staged.len());
                }
            }
        }
        self.send_outgoing(&staged)
    }

    /// Has the poller report room at a stream's port exactly while something waits for it.
    fn watch_for_room(&mut self, n: usize) -> Result<()> {
        let Peer::Stream(stream) = &mut self.ports[n].peer else { return Ok(()) };
        let waits = stream.has_waiting();
        if waits != stream.watched_for_write {
            let out = if waits { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(token(CONNECTION, n));
            epoll::modify(&self.epoll, &stream.socket, data, epoll::EventFlags::IN | out)
                .context("epoll_ctl")?;
            stream.watched_for_write = waits;
        }
        Ok(())
    }

    fn flush_capture(&mut self, at_once: bool) -> Result<()> {
        let now = self.now();
        self.capture.as_mut().map_or(Ok(()), |capture| capture.flush(now, at_once))
    }
}

/// Why a batch was not moved.
enum BatchError {
    /// The ring is to blame.
    Broken,
    /// The fabric cannot go on.
    Failed(anyhow::Error),
}

impl From<Broken> for BatchError {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

fn token(kind: u64, port: usize) -> u64 {
    kind << 32 | port as u64
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, token: u64, events: epoll::EventFlags) -> Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), events).context("epoll_ctl")
}

/// A seed for port `n`: one step of SplitMix64, so that neighbouring seeds and ports have nothing in common.
fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
