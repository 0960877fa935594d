//! An Ethernet port on the Unix stream socket of a fabric, as QEMU's `stream` netdev speaks it: each frame has its length
//! in front, 4 bytes, big-endian. Also answers who asks for the port's own address (ARP, ND).

use crate::Clock;
use crate::nic::Events;
use neighbour::{FRAME_MAX, Resolver, Traffic, classify};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use softroce::EthernetPort;
use std::io::{self, Read, Write};
use std::net::Ipv6Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs::{Gid, MacAddr};

/// The largest payload of a frame: that of the appliances' fabric, so that a RoCE packet carries 4096 bytes.
const MTU: usize = 4200;
/// Bytes of a frame's length.
const PREFIX: usize = 4;
/// No frame on a stream is longer: QEMU's own limit.
const LONGEST: usize = 4096 + 65536;
/// Bytes read at once, at least.
const READ: usize = 256 << 10;
/// Bytes that wait for the fabric before the port takes no more.
const QUEUE: usize = 1 << 20;

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The socket cannot be connected to.
    #[error("cannot connect to the fabric's socket {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system gives no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

/// The port. Once the fabric has closed the connection it takes and gives nothing.
#[derive(Debug)]
pub struct FabricPort {
    clock: Clock,
    mac: MacAddr,
    shared: Arc<Shared>,
    /// Received: `received[taken..]` waits.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
    /// To be sent: `out[sent..]`.
    out: Vec<u8>,
    sent: usize,
}

/// What the port shares with whoever waits for it or gives it an address.
#[derive(Debug)]
struct Shared {
    stream: UnixStream,
    /// The fabric has gone.
    closed: AtomicBool,
    /// The fabric takes nothing just now.
    full: AtomicBool,
    resolver: Mutex<Resolver>,
}

/// Where a port's address is set.
#[derive(Debug)]
pub(crate) struct Address(Arc<Shared>);

impl Address {
    /// The port answers for this address from now on.
    pub(crate) fn set(&self, gid: Gid) {
        // There is room for four.
        self.0.resolver.lock().add_own(Ipv6Addr::from(gid.0).to_canonical());
    }
}

/// The port's events.
#[derive(Debug)]
pub(crate) struct PortEvents(Arc<Shared>);

impl Events for PortEvents {
    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if !self.0.closed.load(Ordering::Relaxed) {
            let full = self.0.full.load(Ordering::Relaxed);
            let flags = if full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(&self.0.stream, flags));
        }
    }

    fn failed(&self) -> Option<&'static str> {
        self.0.closed.load(Ordering::Relaxed).then_some("the fabric's socket is lost")
    }
}

impl FabricPort {
    /// Connects to the fabric; the port gets a random Ethernet address, locally administered.
    pub(crate) fn connect(clock: Clock, path: &Path) -> Result<(Self, Address, PortEvents), PortError> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let stream = connected.map_err(|source| PortError::Connect { path: path.into(), source })?;
        let mut mac = [0; 6];
        getrandom::fill(&mut mac)?;
        mac[0] = mac[0] & 0xfc | 2;
        let mac = MacAddr(mac);
        let shared = Arc::new(Shared {
            stream,
            closed: AtomicBool::new(false),
            full: AtomicBool::new(false),
            resolver: Mutex::new(Resolver::new(mac)),
        });
        let port = Self {
            clock,
            mac,
            shared: shared.clone(),
            received: vec![0; READ + LONGEST],
            taken: 0,
            filled: 0,
            out: Vec::with_capacity(QUEUE + LONGEST),
            sent: 0,
        };
        Ok((port, Address(shared.clone()), PortEvents(shared)))
    }

    fn close(&self, why: &dyn std::fmt::Display) {
        if !self.shared.closed.swap(true, Ordering::Relaxed) {
            log::error!("the fabric's socket is lost: {why}");
        }
    }

    /// The range of the oldest whole frame that has been received.
    fn front(&self) -> Option<(usize, usize)> {
        let waiting = self.received.get(self.taken..self.filled)?;
        let len = u32::from_be_bytes(*waiting.first_chunk::<PREFIX>()?) as usize;
        if len == 0 || len > LONGEST {
            self.close(&format_args!("a frame of {len} bytes"));
            return None;
        }
        let begin = self.taken + PREFIX;
        (begin + len <= self.filled).then_some((begin, begin + len))
    }

    /// Reads once what has come; gives whether there is a whole frame.
    fn read(&mut self) -> bool {
        if self.shared.closed.load(Ordering::Relaxed) {
            return false;
        }
        self.received.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        let Some(room) = self.received.get_mut(self.filled..) else { return false };
        match (&self.shared.stream).read(room) {
            Ok(0) => self.close(&"closed by the fabric"),
            Ok(count) => self.filled += count,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => self.close(&error),
        }
        self.front().is_some()
    }

    fn write(&mut self) {
        while let Some(waiting) = self.out.get(self.sent..).filter(|waiting| !waiting.is_empty()) {
            match (&self.shared.stream).write(waiting) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.shared.full.store(true, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    self.close(&error);
                    break;
                }
            }
        }
        self.shared.full.store(false, Ordering::Relaxed);
        self.out.clear();
        self.sent = 0;
    }

    /// Answers questions for the port's address.
    fn answer(&mut self, begin: usize, end: usize) {
        let now = self.clock.now();
        let shared = self.shared.clone();
        let mut resolver = shared.resolver.lock();
        resolver.input(now, self.received.get(begin..end).unwrap_or_default());
        let mut frame = [0; FRAME_MAX];
        while let Some(len) = resolver.poll(now, &mut frame) {
            self.transmit(len, &mut |out| {
                out.copy_from_slice(frame.get(..len).unwrap_or_default());
                len
            });
        }
        self.write();
    }
}

impl EthernetPort for FabricPort {
    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        if !self.out.is_empty() {
            self.write();
        }
        let mut count = 0;
        while count < budget {
            let Some((begin, end)) = self.front() else {
                if count > 0 || !self.read() {
                    break;
                }
                continue;
            };
            self.taken = end;
            count += 1;
            let frame = self.received.get(begin..end).unwrap_or_default();
            match classify(frame) {
                Traffic::Roce => each(frame),
                Traffic::Neighbour => self.answer(begin, end),
                // There is no stack of the host's on this port.
                Traffic::Host => {}
            }
        }
        count
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        if self.shared.closed.load(Ordering::Relaxed) {
            // As with a cable that is out: what is sent is lost.
            fill(&mut vec![0; max_len]);
            return true;
        }
        if self.out.len() + PREFIX + max_len > QUEUE {
            return false;
        }
        let begin = self.out.len();
        self.out.resize(begin + PREFIX + max_len, 0);
        let Some((prefix, frame)) =
            self.out.get_mut(begin..).and_then(|new| new.split_at_mut_checked(PREFIX))
        else {
            return false;
        };
        let len = fill(frame).min(max_len);
        prefix.copy_from_slice(&u32::try_from(len).unwrap_or(0).to_be_bytes());
        self.out.truncate(if len == 0 { begin } else { begin + PREFIX + len });
        true
    }

    fn flush(&mut self) {
        self.write();
    }

    fn arm(&mut self) -> bool {
        self.front().is_some() || self.read()
    }
}
