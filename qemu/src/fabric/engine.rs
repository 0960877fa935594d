//! The switching thread: waits for ports to have frames and moves them.

use super::learn::{MacTable, Verdict};
use super::port::{Disconnected, Front, MAX_FRAME, PREFIX, Port, front};
use super::{Command, FabricCounters};
use anyhow::{Context, Result};
use netfault::pcap::PcapWriter;
use netfault::{FaultQueue, Faults};
use rustix::event::{Timespec, epoll};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Read at most so much at a time: many frames per wake-up, and still in the second-level cache.
const BUFFER: usize = 256 * 1024;
/// A capture is brought up to date on disk at least this often while the fabric is awake or idle.
const PCAP_FLUSH_NS: u64 = 200_000_000;
const WAKE: u64 = u64::MAX;
/// Token of a port's listener: this plus the port; of its connection: the port.
const LISTENER: u64 = 1 << 32;

/// All that the switching thread owns.
pub struct Engine {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
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
}

struct Capture {
    pcap: PcapWriter<File>,
    /// Nanoseconds from 1970 to the fabric's start.
    epoch_ns: u64,
    flush_at: u64,
    dirty: bool,
}

impl Engine {
    pub fn new(
        listeners: Vec<UnixListener>,
        faults: Faults,
        seed: u64,
        pcap: Option<PcapWriter<File>>,
        inbox: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
        watch(&epoll, &*wake, WAKE)?;
        for (n, listener) in listeners.iter().enumerate() {
            watch(&epoll, listener, LISTENER + n as u64)?;
        }
        let links = (0..listeners.len() as u64).map(|n| FaultQueue::new(faults, mix(seed, n))).collect();
        let epoch_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| saturate(d.as_nanos()));
        Ok(Self {
            epoll,
            wake,
            inbox,
            outgoing: vec![Vec::new(); listeners.len()],
            ports: listeners.into_iter().map(Port::new).collect(),
            table: MacTable::default(),
            faulty: !faults.is_none(),
            links,
            capture: pcap.map(|pcap| Capture { pcap, epoch_ns, flush_at: 0, dirty: false }),
            started: Instant::now(),
            buffer: vec![0; BUFFER.max(2 * (MAX_FRAME + PREFIX))],
        })
    }

    /// Moves frames until told to stop.
    pub fn run(mut self) -> Result<FabricCounters> {
        // The kernel may round a timed wait up by this much (50 us unless set): delays are of that order.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut events = Vec::with_capacity(2 * self.ports.len() + 1);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        if self.obey()? {
                            return Ok(self.finish());
                        }
                    }
                    token if token >= LISTENER => self.accept((token - LISTENER) as usize)?,
                    token => self.serve(token as usize, event.flags)?,
                }
            }
            if self.faulty {
                self.deliver_due()?;
            }
            self.flush_capture(false)?;
        }
    }

    fn now(&self) -> u64 {
        saturate(self.started.elapsed().as_nanos())
    }

    /// How long nothing needs to be done unless a port or the owner asks for it.
    fn timeout(&self) -> Option<Timespec> {
        let due = self.links.iter().filter_map(FaultQueue::next_deadline).min();
        let flush = self.capture.as_ref().filter(|c| c.dirty).map(|c| c.flush_at);
        let until = due.into_iter().chain(flush).min()?;
        let wait = until.saturating_sub(self.now());
        Some(Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 })
    }

    /// Carries out the owner's commands; says whether to stop.
    fn obey(&mut self) -> Result<bool> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
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

    /// A machine connects. One that was connected before has been replaced (a restart).
    fn accept(&mut self, n: usize) -> Result<()> {
        let Ok((stream, _)) = self.ports[n].listener.accept() else { return Ok(()) };
        stream.set_nonblocking(true).context("cannot make a socket non-blocking")?;
        self.disconnect(n);
        watch(&self.epoll, &stream, n as u64)?;
        self.ports[n].stream = Some(stream);
        Ok(())
    }

    /// Closing the socket also takes it off the poller.
    fn disconnect(&mut self, n: usize) {
        self.ports[n].disconnect();
        self.table.forget(n);
    }

    fn serve(&mut self, n: usize, ready: epoll::EventFlags) -> Result<()> {
        if ready.contains(epoll::EventFlags::OUT) {
            if self.ports[n].send_waiting().is_err() {
                self.disconnect(n);
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
        let mut buffer = std::mem::take(&mut self.buffer);
        let filled = self.ports[n].read(&mut buffer);
        let moved = match filled {
            Ok(filled) => self.forward(n, &buffer[..filled]),
            Err(Disconnected) => {
                self.disconnect(n);
                Ok(())
            }
        };
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
                    self.ports[from].keep_partial(&read[at..]);
                    break;
                }
                Front::Invalid => {
                    self.ports[from].counters.protocol_errors += 1;
                    self.disconnect(from);
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
            capture.pcap.frame(capture.epoch_ns + now, frame).context("cannot write the capture")?;
            capture.dirty = true;
        }
        match self.table.switch(frame, from) {
            Verdict::Port(to) => self.pass(from, to, frame, range, now),
            Verdict::Flood => {
                for to in (0..self.ports.len()).filter(|to| *to != from) {
                    if self.ports[to].stream.is_some() {
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
            if self.ports[to].send(buffer, &self.outgoing[to]).is_err() {
                self.disconnect(to);
            }
            self.outgoing[to].clear();
            self.watch_for_room(to)?;
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

    /// Has the poller report room at a port exactly while something waits for it.
    fn watch_for_room(&mut self, n: usize) -> Result<()> {
        let port = &mut self.ports[n];
        let (Some(stream), waits) = (&port.stream, port.has_waiting()) else { return Ok(()) };
        if waits != port.watched_for_write {
            let out = if waits { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(n as u64);
            epoll::modify(&self.epoll, stream, data, epoll::EventFlags::IN | out).context("epoll_ctl")?;
            port.watched_for_write = waits;
        }
        Ok(())
    }

    fn flush_capture(&mut self, at_once: bool) -> Result<()> {
        if !self.capture.as_ref().is_some_and(|c| c.dirty) {
            return Ok(());
        }
        let now = self.now();
        let Some(capture) = &mut self.capture else { return Ok(()) };
        if at_once || now >= capture.flush_at {
            capture.pcap.flush().context("cannot write the capture")?;
            capture.flush_at = now + PCAP_FLUSH_NS;
            capture.dirty = false;
        }
        Ok(())
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, token: u64) -> Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN).context("epoll_ctl")
}

/// A seed for port `n`: one step of SplitMix64, so that neighbouring seeds and ports have nothing in common.
fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn saturate(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}
