//! The switching thread: waits for frames at the ports and moves them.

use super::attention::Attention;
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

/// The maximum length of a read in bytes: many frames per wake-up, and still within the second-level cache.
const BUFFER: usize = 256 * 1024;
/// The maximum number of batches moved from one machine's ring per turn.
const BATCHES: usize = 8;

/// The subject of an event, in the upper half of its token. The lower half contains the port.
const CONNECTION: u64 = 0;
const STREAM_LISTENER: u64 = 1;
const VHOST_LISTENER: u64 = 2;
const TRANSMIT_KICK: u64 = 3;
const RECEIVE_KICK: u64 = 4;
const WAKE: u64 = 5;

/// The state of the switching thread.
pub(crate) struct Engine {
    epoll: OwnedFd,
    /// The sender of commands, for the threads that serve connections.
    commands: Commands,
    inbox: Receiver<Command>,
    ports: Vec<Port>,
    table: MacTable,
    /// True while frames pass through `links`.
    faulty: bool,
    /// The faulty links, by the port from which frames come. Each frame is stored with its destination port.
    links: Vec<FaultQueue<usize>>,
    capture: Option<Capture>,
    started: Instant,
    buffer: Vec<u8>,
    /// For each port, the parts of the buffer that go to it.
    outgoing: Vec<Vec<Range<usize>>>,
    /// Ports whose rings still contained frames at the end of their turn, or are looked at without a kick.
    unfinished: Vec<usize>,
    attention: Attention,
    /// The number of connections of machines so far.
    generations: u64,
}

impl Engine {
    pub(crate) fn new(
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
            attention: Attention::new(),
            generations: 0,
        })
    }

    /// Moves frames until the thread is told to stop.
    pub(crate) fn run(mut self) -> Result<FabricCounters> {
        // By default the kernel may round a timed wait up by 50 us, which is of the order of the delays here.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut events = Vec::with_capacity(4 * self.ports.len() + 1);
        loop {
            events.clear();
            let timeout = self.timeout();
            if self.unfinished.is_empty() {
                self.attention.end();
            }
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            for event in &events {
                let data = event.data.u64();
                let n = (data & u64::from(u32::MAX)) as usize;
                match data >> 32 {
                    WAKE => {
                        if self.handle_requests()? {
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

    /// Returns the time for which nothing is due unless a port or the owner has a request.
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

    /// Executes the requests of the owner and of the connections' threads. Returns whether to stop.
    fn handle_requests(&mut self) -> Result<bool> {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.commands.wake(), &mut count);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::SetFaults(faults) => {
                    self.links.iter_mut().for_each(|link| link.set_faults(faults));
                    // A fabric without faults uses the links until the frames in them have been delivered.
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
                Command::Attach { port, generation, side, ring } => {
                    self.attach(port, generation, side, ring)?;
                }
                Command::Detach { port, generation, side, answer } => {
                    // The requesting thread may have stopped waiting.
                    let _ = answer.send(self.detach(port, generation, side)?);
                }
                Command::Closed { port, generation } => {
                    if self.machine(port, generation).is_some() {
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
        // A write error of the capture was reported when it happened; an error here loses only the last
        // records.
        let _ = self.flush_capture(true);
        self.counters()
    }

    /// Accepts a machine's stream connection, which replaces the port's previous connection, for example
    /// after a restart.
    fn accept_stream(&mut self, n: usize) -> Result<()> {
        let Ok((socket, _)) = self.ports[n].stream_listener.accept() else { return Ok(()) };
        socket.set_nonblocking(true).context("cannot create a socket non-blocking")?;
        self.disconnect(n)?;
        watch(&self.epoll, &socket, token(CONNECTION, n), epoll::EventFlags::IN)?;
        self.ports[n].peer = Peer::Stream(Stream::new(socket));
        Ok(())
    }

    /// Accepts the connection of a machine that will share its memory. It replaces the port's previous
    /// connection.
    fn accept_machine(&mut self, n: usize) -> Result<()> {
        let Ok((connection, _)) = self.ports[n].vhost_listener.accept() else { return Ok(()) };
        self.disconnect(n)?;
        self.generations += 1;
        let ours = connection.try_clone().context("cannot duplicate a socket")?;
        vhost::spawn(n, self.generations, connection, self.commands.clone())
            .context("cannot start a thread")?;
        self.ports[n].peer = Peer::Machine(Box::new(Machine::new(self.generations, ours)));
        self.count_machines();
        Ok(())
    }

    /// Returns the machine at a port, if it is still the same connection.
    fn machine(&mut self, n: usize, generation: u64) -> Option<&mut Machine> {
        match &mut self.ports.get_mut(n)?.peer {
            Peer::Machine(machine) if machine.generation == generation => Some(machine),
            _ => None,
        }
    }

    /// Starts to use a ring.
    fn attach(&mut self, n: usize, generation: u64, side: Side, ring: Box<Ring>) -> Result<()> {
        if self.machine(n, generation).is_none() {
            return Ok(());
        }
        self.detach(n, generation, side)?;
        let kind = if side == Side::Transmit { TRANSMIT_KICK } else { RECEIVE_KICK };
        // The event is edge-triggered: each kick is an event, and the count is never read.
        watch(
            &self.epoll,
            &*ring.signals.kick,
            token(kind, n),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        ring.remind();
        if let Some(machine) = self.machine(n, generation) {
            *machine.ring(side) = Some(ring);
        }
        // Kicks may have come before the ring was watched.
        if side == Side::Transmit { self.empty_ring(n) } else { self.fill_ring(n) }
    }

    /// Stops using a ring and returns it.
    fn detach(&mut self, n: usize, generation: u64, side: Side) -> Result<Option<Box<Ring>>> {
        let Some(ring) = self.machine(n, generation).and_then(|machine| machine.ring(side).take()) else {
            return Ok(None);
        };
        epoll::delete(&self.epoll, &*ring.signals.kick).context("epoll_ctl")?;
        Ok(Some(ring))
    }

    /// Stops using a ring with invalid contents.
    fn give_up(&mut self, n: usize, side: Side) -> Result<()> {
        if let Peer::Machine(machine) = &self.ports[n].peer {
            let generation = machine.generation;
            self.ports[n].counters.protocol_errors += 1;
            self.detach(n, generation, side)?;
        }
        Ok(())
    }

    /// Closes the connection of the machine at a port. Closing a socket also removes it from the poller.
    fn disconnect(&mut self, n: usize) -> Result<()> {
        if let Peer::Machine(machine) = &self.ports[n].peer {
            let generation = machine.generation;
            self.detach(n, generation, Side::Receive)?;
            self.detach(n, generation, Side::Transmit)?;
        }
        self.ports[n].peer = Peer::Absent;
        self.table.forget(n);
        self.count_machines();
        Ok(())
    }

    fn count_machines(&mut self) {
        let is_machine = |port: &&Port| matches!(port.peer, Peer::Machine(_));
        self.attention.set_machines(self.ports.iter().filter(is_machine).count());
    }

    /// Delivers waiting frames after a machine has provided buffers.
    fn fill_ring(&mut self, n: usize) -> Result<()> {
        let port = &mut self.ports[n];
        let Peer::Machine(machine) = &mut port.peer else { return Ok(()) };
        match machine.flush(&mut port.counters) {
            Ok(()) => Ok(()),
            Err(Broken) => self.give_up(n, Side::Receive),
        }
    }

    /// Moves the frames in a machine's transmit ring until it is empty or the port's turn ends.
    fn empty_ring(&mut self, n: usize) -> Result<()> {
        for _ in 0..BATCHES {
            match self.move_batch(n) {
                Ok(Turn::Continues) => {}
                Ok(Turn::Ends) => return Ok(()),
                Ok(Turn::Repeats) => break,
                Err(BatchError::Broken) => return self.give_up(n, Side::Transmit),
                Err(BatchError::Failed(e)) => return Err(e),
            }
        }
        self.look_again(n);
        Ok(())
    }

    /// Looks at a machine's ring in the next turn, whether or not the machine sends a kick.
    fn look_again(&mut self, n: usize) {
        if !self.unfinished.contains(&n) {
            self.unfinished.push(n);
        }
    }

    /// Moves one batch of frames.
    fn move_batch(&mut self, n: usize) -> Result<Turn, BatchError> {
        let port = &mut self.ports[n];
        let Peer::Machine(machine) = &mut port.peer else { return Ok(Turn::Ends) };
        let Some(ring) = &mut machine.transmit else { return Ok(Turn::Ends) };
        ring.ignore()?;
        let taken = ring.take(&mut self.buffer)?;
        port.counters.reads += u64::from(taken.frames > 0);
        port.counters.dropped_invalid += taken.invalid;
        if taken.filled > 0 {
            machine.answer.came();
            self.attention.note(taken.frames, Instant::now);
            let buffer = std::mem::take(&mut self.buffer);
            let moved = self.forward(n, &buffer[..taken.filled]);
            self.buffer = buffer;
            moved.map_err(BatchError::Failed)?;
        }
        // Forwarding may have ended this machine's connection.
        let Peer::Machine(machine) = &mut self.ports[n].peer else { return Ok(Turn::Ends) };
        let Some(ring) = &mut machine.transmit else { return Ok(Turn::Ends) };
        ring.call()?;
        Ok(match taken.empty {
            false => Turn::Continues,
            true if self.attention.is_paid(Instant::now) || machine.answer.is_awaited(Instant::now) => {
                Turn::Repeats
            }
            true if ring.listen()? => Turn::Continues,
            true => Turn::Ends,
        })
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

    /// Reads once from a port's stream and moves the frames.
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

    /// Moves the frames in data that was read from port `from`.
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

    /// Decides the destination of the frame at `range` of `read`, which includes the prefix, and records it.
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

    /// Passes a frame to the faulty link between two ports.
    fn pass(&mut self, from: usize, to: usize, frame: &[u8], range: Range<usize>, now: u64) {
        if self.faulty {
            self.links[from].push(to, frame.to_vec(), now);
        } else if self.ports[to].admit(frame.len()) {
            // Adjacent parts of the buffer with the same destination are joined.
            match self.outgoing[to].last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => self.outgoing[to].push(range),
            }
        }
    }

    /// Sends the recorded parts of `buffer` to each port.
    fn send_outgoing(&mut self, buffer: &[u8]) -> Result<()> {
        for to in 0..self.ports.len() {
            if self.outgoing[to].is_empty() {
                continue;
            }
            let sent = self.ports[to].send(buffer, &self.outgoing[to]);
            self.outgoing[to].clear();
            match sent {
                Ok(()) => {
                    self.watch_for_room(to)?;
                    self.expect_answer(to);
                }
                Err(SendError::Disconnected) => self.disconnect(to)?,
                Err(SendError::BrokenRing) => self.give_up(to, Side::Receive)?,
            }
        }
        Ok(())
    }

    /// Looks for the answer to frames that a port has received, if its machine shares its memory.
    fn expect_answer(&mut self, n: usize) {
        if let Peer::Machine(machine) = &mut self.ports[n].peer
            && machine.answer.expect(Instant::now)
        {
            self.look_again(n);
        }
    }

    /// Delivers the frames whose delay has ended.
    fn deliver_due(&mut self) -> Result<()> {
        let now = self.now();
        let mut staged = Vec::new();
        for n in 0..self.links.len() {
            while let Some((to, frame)) = self.links[n].pop(now) {
                if self.ports[to].admit(frame.len()) {
                    let start = staged.len();
                    // The frame was received with a 4-byte length, so its length fits one.
                    staged.extend(u32::try_from(frame.len()).unwrap_or(0).to_be_bytes());
                    staged.extend(frame);
                    self.outgoing[to].push(start..staged.len());
                }
            }
        }
        self.send_outgoing(&staged)
    }

    /// Watches a stream for room while, and only while, data waits for it.
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

/// The continuation of a port's turn after a batch.
enum Turn {
    /// There may be more frames.
    Continues,
    /// The ring is empty, and is looked at again without a kick.
    Repeats,
    /// The ring is empty, and the machine sends a kick with the next frame; or there is no ring.
    Ends,
}

/// The reason why a batch was not moved.
enum BatchError {
    /// The ring has invalid contents.
    Broken,
    /// The fabric cannot continue.
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

/// Returns a seed for port `n`: one step of SplitMix64, so that neighbouring seeds and ports are unrelated.
fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
