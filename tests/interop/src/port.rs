//! An Ethernet port on a fabric's Unix socket, as QEMU's `stream` netdev speaks it: each frame has its length in front,
//! 4 bytes, big-endian. It answers who asks for the port's addresses itself.

use anyhow::{Context, Result};
use neighbour::{FRAME_MAX, Resolver, Traffic, classify};
use platform::Instant;
use softroce::EthernetPort;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::MacAddr;

/// Bytes of a frame's length.
const PREFIX: usize = 4;
/// Bytes that wait for the fabric before the port takes no more.
const QUEUE: usize = 1 << 20;
const READ: usize = 256 << 10;

/// The port. A fabric that has gone is a cable that is out.
pub struct FabricPort {
    stream: UnixStream,
    mac: MacAddr,
    mtu: usize,
    resolver: Resolver,
    started: std::time::Instant,
    received: Vec<u8>,
    waiting: Vec<u8>,
    frames: Frames,
}

/// RoCE frames in and out so far.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    pub received: Arc<AtomicU64>,
    pub sent: Arc<AtomicU64>,
}

impl FabricPort {
    /// Connects to a fabric's port. Also gives what to wait at for frames, and the frame counts.
    pub fn connect(
        socket: &Path,
        mac: MacAddr,
        mtu: usize,
        addresses: &[IpAddr],
    ) -> Result<(Self, UnixStream, Frames)> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to the fabric at {}", socket.display()))?;
        stream.set_nonblocking(true)?;
        let mut resolver = Resolver::new(mac);
        for address in addresses {
            resolver.add_own(*address);
        }
        let (events, frames) = (stream.try_clone()?, Frames::default());
        let port = Self {
            stream,
            mac,
            mtu,
            resolver,
            started: std::time::Instant::now(),
            received: Vec::new(),
            waiting: Vec::new(),
            frames: frames.clone(),
        };
        Ok((port, events, frames))
    }

    /// The end of the first frame in what was received, if it is whole.
    fn front(&self, at: usize) -> Option<usize> {
        let waiting = self.received.get(at..)?;
        let len = u32::from_be_bytes(*waiting.first_chunk()?) as usize;
        (waiting.len() >= PREFIX + len).then_some(at + PREFIX + len)
    }

    fn read(&mut self) {
        let kept = self.received.len();
        self.received.resize(kept + READ, 0);
        let count = self.stream.read(self.received.get_mut(kept..).unwrap_or_default()).unwrap_or(0);
        self.received.truncate(kept + count);
    }

    fn write(&mut self) {
        match self.stream.write(&self.waiting) {
            Ok(count) => drop(self.waiting.drain(..count)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.waiting.clear(),
        }
    }

    fn answer(&mut self, question: &[u8]) {
        let now = Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.resolver.input(now, question);
        let mut frame = [0; FRAME_MAX];
        while let Some(len) = self.resolver.poll(now, &mut frame) {
            let answer = frame.get(..len).unwrap_or_default();
            self.waiting.extend(u32::try_from(len).unwrap_or(0).to_be_bytes());
            self.waiting.extend_from_slice(answer);
        }
        self.write();
    }
}

impl EthernetPort for FabricPort {
    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        if !self.waiting.is_empty() {
            self.write();
        }
        self.read();
        let (mut at, mut count) = (0, 0);
        while count < budget {
            let Some(end) = self.front(at) else { break };
            let frame = self.received.get(at + PREFIX..end).unwrap_or_default();
            match classify(frame) {
                Traffic::Roce => {
                    self.frames.received.fetch_add(1, Ordering::Relaxed);
                    each(frame);
                }
                Traffic::Neighbour => {
                    let question = frame.to_vec();
                    self.answer(&question);
                }
                Traffic::Host => {}
            }
            (at, count) = (end, count + 1);
        }
        self.received.drain(..at);
        count
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        if self.waiting.len() + PREFIX + max_len > QUEUE {
            self.write();
            return false;
        }
        let begin = self.waiting.len();
        self.waiting.resize(begin + PREFIX + max_len, 0);
        let new = self.waiting.get_mut(begin..).unwrap_or_default();
        let Some((prefix, frame)) = new.split_at_mut_checked(PREFIX) else { return false };
        let len = fill(frame).min(max_len);
        prefix.copy_from_slice(&u32::try_from(len).unwrap_or(0).to_be_bytes());
        self.waiting.truncate(if len == 0 { begin } else { begin + PREFIX + len });
        self.frames.sent.fetch_add(u64::from(len > 0), Ordering::Relaxed);
        true
    }

    fn flush(&mut self) {
        self.write();
    }

    fn arm(&mut self) -> bool {
        self.read();
        self.front(0).is_some()
    }
}
