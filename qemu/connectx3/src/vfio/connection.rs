//! A connection to one client (a QEMU) of one PCI function: receives messages and answers each.

use super::irq::{self, Interrupts};
use super::message::{Body, Command, Errno, HEADER, Header, MAX_MESSAGE};
use super::ram::GuestMemory;
use crate::device::{DmaError, Host, Observation};
use crate::trace::Observer;
use platform::Instant;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A region of the function, by its VFIO index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionIndex {
    /// A base address register: the value is the number of the first 32-bit register, 0 to 5.
    Bar(u8),
    /// The configuration space.
    Config,
}

impl RegionIndex {
    const COUNT: u32 = 9;
    const CONFIG: u32 = 7;

    fn from_index(index: u32) -> Option<Self> {
        match index {
            0..=5 => Some(Self::Bar(index as u8)),
            Self::CONFIG => Some(Self::Config),
            _ => None,
        }
    }
}

/// The properties of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The length in bytes; 0 if the function does not have the region.
    pub len: u64,
}

/// The PCI function that is served. Accesses are within the region's length.
pub trait Function {
    /// Returns the properties of a region.
    fn region(&self, index: RegionIndex) -> Region;
    /// Handles a read by the client.
    fn read(&mut self, index: RegionIndex, offset: u64, buf: &mut [u8], client: &Client);
    /// Handles a write by the client.
    fn write(&mut self, index: RegionIndex, offset: u64, data: &[u8], client: &Client);
    /// Handles a reset by the client, or the end of its connection.
    fn reset(&mut self, client: &Client);
}

/// The client's resources that the function uses.
#[derive(Debug)]
pub struct Client {
    started: std::time::Instant,
    /// The memory of the client's guest.
    pub memory: GuestMemory,
    /// The client's interrupts.
    pub interrupts: Interrupts,
    observer: Arc<Observer>,
}

impl Host for Client {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.memory.read(addr, buf)
    }
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.memory.write(addr, data)
    }
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError> {
        self.memory.word(addr, |place| place.store(u64::from_ne_bytes(word), Ordering::Release))
    }
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError> {
        self.memory.word(addr, |place| place.fetch_add(add, Ordering::AcqRel))
    }
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError> {
        self.memory.word(addr, |place| {
            place
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|before| before)
        })
    }
    fn now(&self) -> Instant {
        let ns = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
    fn msix_enabled(&self) -> bool {
        self.interrupts.msix_enabled()
    }
    fn message(&self, vector: u16) {
        self.interrupts.message(vector);
    }
    fn set_intx(&self, asserted: bool) {
        self.interrupts.level(asserted);
    }
    fn observe(&self, what: &Observation<'_>) {
        self.observer.observe(what, self.now(), |addr, buf| self.memory.read(addr, buf).is_ok());
    }
}

/// The reason why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The client has closed the connection.
    #[error("the client has left")]
    Closed,
    /// The client has violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The socket has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A connection to a client.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    client: Client,
    /// The buffer for reads from the socket.
    buffer: Box<[u8]>,
    received: Vec<u8>,
    /// The number of bytes of the stream before `received`.
    consumed: u64,
    /// Descriptors, each with the position in the stream up to which bytes were received with them. QEMU
    /// sends a message together with its descriptors, and the kernel ends a read behind them, so they belong
    /// to the message around that position.
    descriptors: VecDeque<(u64, Vec<OwnedFd>)>,
    /// Replies for which the socket had no room.
    replies: Vec<u8>,
    /// True if messages wait in `received` until replies have been sent.
    behind: bool,
}

/// The number of pending reply bytes from which on no message is answered.
const MAX_PENDING_REPLIES: usize = 64 << 10;
/// The length of a read, in bytes.
const READ: usize = 64 << 10;
/// The maximum number of descriptors in one message, which QEMU learns and accepts.
const MAX_FDS: usize = 8;
/// The maximum number of descriptors that wait for their messages. The process's limit applies to all cards
/// together.
const MAX_WAITING_FDS: usize = 8 * MAX_FDS;

impl Connection {
    /// Serves a client that has just connected. `observer` records the interactions.
    pub fn new(stream: UnixStream, observer: Arc<Observer>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            client: Client {
                started: std::time::Instant::now(),
                memory: GuestMemory::default(),
                interrupts: Interrupts::default(),
                observer,
            },
            buffer: vec![0; READ].into(),
            received: Vec::new(),
            consumed: 0,
            descriptors: VecDeque::new(),
            replies: Vec::new(),
            behind: false,
        })
    }

    /// Returns the socket, to wait on.
    pub const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the client's resources.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Receives and answers messages, while the client reads the answers. Call it when the client's socket is
    /// ready: for writing if [`wants_room`](Self::wants_room) is true, otherwise for reading.
    pub fn serve(&mut self, function: &mut dyn Function) -> Result<(), Ended> {
        self.send()?;
        self.answer_received(function)?;
        let open = self.wants_room() || self.receive()?;
        self.answer_received(function)?;
        self.send()?;
        if open { Ok(()) } else { Err(Ended::Closed) }
    }

    /// Returns whether the client must read replies first. Until then nothing more is read from it.
    pub const fn wants_room(&self) -> bool {
        self.behind || !self.replies.is_empty()
    }

    /// Answers messages until too many replies are pending.
    fn answer_received(&mut self, function: &mut dyn Function) -> Result<(), Ended> {
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        self.behind = false;
        while let Some(front) = received.get(at..).and_then(|rest| rest.first_chunk::<HEADER>()) {
            let header = Header::parse(front);
            let size = header.size as usize;
            if !(HEADER..=MAX_MESSAGE).contains(&size) {
                return Err(Ended::Protocol("a message of an impossible size"));
            }
            let Some(body) = received.get(at + HEADER..at + size) else { break };
            if self.replies.len() >= MAX_PENDING_REPLIES {
                self.behind = true;
                break;
            }
            let start = self.consumed + at as u64;
            let fds = self.take_descriptors(start + size as u64);
            at += size;
            if !header.reply {
                let result = self.answer(&header, body, fds, function);
                if !header.no_reply {
                    self.replies.extend_from_slice(&header.reply(&result));
                }
            }
        }
        self.received = received;
        self.received.drain(..at);
        self.consumed += at as u64;
        Ok(())
    }

    /// Reads once, so that a busy client does not starve the others. Returns whether the client is still
    /// connected.
    fn receive(&mut self) -> Result<bool, Ended> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut self.buffer)];
        let n = match recvmsg(&self.stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(true),
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(e) => return Err(Ended::Io(e.into())),
        };
        self.received.extend_from_slice(&self.buffer[..n]);
        let position = self.consumed + self.received.len() as u64;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.descriptors.push_back((position, fds.collect()));
            }
        }
        if self.descriptors.iter().map(|(_, fds)| fds.len()).sum::<usize>() > MAX_WAITING_FDS {
            return Err(Ended::Protocol("more descriptors than messages can have"));
        }
        Ok(n > 0)
    }

    /// Returns the descriptors of the message that ends at a position.
    fn take_descriptors(&mut self, end: u64) -> Vec<OwnedFd> {
        let mut taken = Vec::new();
        while let Some((_, fds)) = self.descriptors.pop_front_if(|(position, _)| *position <= end) {
            taken.extend(fds);
        }
        taken
    }

    /// Sends replies while the socket has room.
    fn send(&mut self) -> Result<(), Ended> {
        while !self.replies.is_empty() {
            match send(&self.stream, &self.replies, SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.replies.drain(..n)),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(Ended::Closed),
                Err(e) => return Err(Ended::Io(e.into())),
            }
        }
        Ok(())
    }

    fn answer(
        &mut self,
        header: &Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
        function: &mut dyn Function,
    ) -> Result<Vec<u8>, Errno> {
        let mut body = Body(body);
        match header.command().ok_or(Errno::UNSUPPORTED)? {
            Command::Version => version(&mut body),
            Command::DmaMap => self.dma_map(&mut body, &fds),
            Command::DmaUnmap => self.dma_unmap(&mut body),
            Command::GetInfo => Ok(words(&[16, FLAG_RESET | FLAG_PCI, RegionIndex::COUNT, IRQ_KINDS])),
            Command::GetRegionInfo => region_info(&mut body, function),
            Command::GetIrqInfo => irq_info(&mut body),
            Command::SetIrqs => {
                let (_, flags, index) = (body.u32()?, body.u32()?, body.u32()?);
                let (start, count) = (body.u32()?, body.u32()?);
                self.client.interrupts.set(flags, index, start, count, fds).map(|()| Vec::new())
            }
            Command::RegionRead => self.region_read(&mut body, function),
            Command::RegionWrite => {
                let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()?);
                let data = body.bytes(count as usize)?;
                self.region_write(offset, index, data, function)?;
                Ok(access(offset, index, count, &[]))
            }
            Command::RegionWriteMulti => {
                for _ in 0..body.u64()? {
                    let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()?);
                    let data = body.bytes(8)?.get(..count as usize).ok_or(Errno::INVALID)?;
                    self.region_write(offset, index, data, function)?;
                }
                Ok(Vec::new())
            }
            Command::Reset => {
                function.reset(&self.client);
                Ok(Vec::new())
            }
        }
    }

    fn dma_map(&mut self, body: &mut Body<'_>, fds: &[OwnedFd]) -> Result<Vec<u8>, Errno> {
        const WRITE: u32 = 1 << 1;
        let (_, flags) = (body.u32()?, body.u32()?);
        let (offset, addr, len) = (body.u64()?, body.u64()?, body.u64()?);
        // Memory without a descriptor is ROM or another device's BAR, which DMA does not need to reach.
        if let Some(fd) = fds.first() {
            self.client.memory.map(addr, len, fd, offset, flags & WRITE != 0)?;
        }
        Ok(Vec::new())
    }

    fn dma_unmap(&mut self, body: &mut Body<'_>) -> Result<Vec<u8>, Errno> {
        const ALL: u32 = 1 << 1;
        let (argsz, flags) = (body.u32()?, body.u32()?);
        let (addr, len) = (body.u64()?, body.u64()?);
        if flags & ALL != 0 {
            self.client.memory.unmap_all();
        } else {
            self.client.memory.unmap(addr, len);
        }
        let mut reply = words(&[argsz, flags]);
        reply.extend_from_slice(&addr.to_le_bytes());
        reply.extend_from_slice(&len.to_le_bytes());
        Ok(reply)
    }

    fn region_read(&mut self, body: &mut Body<'_>, function: &mut dyn Function) -> Result<Vec<u8>, Errno> {
        let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()?);
        let region = within(function, index, offset, count)?;
        let mut data = vec![0; count as usize];
        function.read(region, offset, &mut data, &self.client);
        Ok(access(offset, index, count, &data))
    }

    fn region_write(
        &mut self,
        offset: u64,
        index: u32,
        data: &[u8],
        function: &mut dyn Function,
    ) -> Result<(), Errno> {
        let region = within(function, index, offset, data.len() as u32)?;
        function.write(region, offset, data, &self.client);
        Ok(())
    }
}

const FLAG_RESET: u32 = 1;
const FLAG_PCI: u32 = 1 << 1;
/// The number of interrupt kinds: INTx, MSI, MSI-X, error, request.
const IRQ_KINDS: u32 = 5;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns the header of a region access followed by its data.
fn access(offset: u64, index: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + data.len());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(data);
    out
}

/// Returns the region of an access. Fails if the access extends beyond the region or has an invalid size.
fn within(function: &dyn Function, index: u32, offset: u64, count: u32) -> Result<RegionIndex, Errno> {
    let region = RegionIndex::from_index(index).ok_or(Errno::INVALID)?;
    let end = offset.checked_add(u64::from(count)).ok_or(Errno::INVALID)?;
    if end > function.region(region).len || count as usize > MAX_MESSAGE - 4096 {
        return Err(Errno::INVALID);
    }
    Ok(region)
}

/// Negotiates the version: accepts any minor version of major version 0, and answers with version 0.0.
fn version(body: &mut Body<'_>) -> Result<Vec<u8>, Errno> {
    let (major, _minor) = (body.u16()?, body.u16()?);
    if major != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let mut reply = vec![0; 4];
    reply.extend_from_slice(
        format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{},\"write_multiple\":true}}}}\0",
            1 << 20
        )
        .as_bytes(),
    );
    Ok(reply)
}

fn region_info(body: &mut Body<'_>, function: &dyn Function) -> Result<Vec<u8>, Errno> {
    const READ: u32 = 1;
    const WRITE: u32 = 1 << 1;
    let (_, _, index) = (body.u32()?, body.u32()?, body.u32()?);
    if index >= RegionIndex::COUNT {
        return Err(Errno::INVALID);
    }
    let len = RegionIndex::from_index(index).map_or(0, |region| function.region(region).len);
    let mut reply = words(&[32, if len > 0 { READ | WRITE } else { 0 }, index, 0]);
    reply.extend_from_slice(&len.to_le_bytes());
    reply.extend_from_slice(&0u64.to_le_bytes());
    Ok(reply)
}

fn irq_info(body: &mut Body<'_>) -> Result<Vec<u8>, Errno> {
    const EVENTFD: u32 = 1;
    const MASKABLE: u32 = 1 << 1;
    const AUTOMASKED: u32 = 1 << 2;
    let (_, _, index) = (body.u32()?, body.u32()?, body.u32()?);
    // Without NORESIZE the client can add vectors one by one and keep the existing ones.
    let (flags, count) = match index {
        irq::INTX => (EVENTFD | MASKABLE | AUTOMASKED, 1),
        irq::MSIX => (EVENTFD, irq::VECTORS),
        i if i < IRQ_KINDS => (0, 0),
        _ => return Err(Errno::INVALID),
    };
    Ok(words(&[16, flags, index, count]))
}
