//! A user-space L2 switch for virtual machines: MAC learning, seeded faults, capture.
//!
//! A machine connects to a port in one of two ways. The latest connection takes the port over.
//!
//! - Shared memory (vhost-user, `-netdev vhost-user`): the fabric copies frames from the sender's transmit
//!   ring to the receiver's receive ring, so a frame wakes only one thread on its way. Virtual machines use
//!   this.
//! - A stream (`-netdev stream,server=off,addr.type=unix,addr.path=...`) carries frames in both directions,
//!   each preceded by its length (4 bytes, big-endian). It is for host programs and for machines that cannot
//!   share their memory.
//!
//! One thread moves all frames. It is on the path of every RDMA operation, so it forwards received frames
//! immediately, from the buffer into which they were read, and never waits for a slow port. Frames that such
//! a port does not accept are queued up to [`QUEUE_LIMIT`] bytes and dropped beyond. Between frames the
//! thread sleeps and leaves the processors to the machines.
//!
//! # Neighbours
//! [`netfault`] decides the faults of frames, `qemu` starts the machines, and `fabricport` connects
//! programs.

mod answer;
mod attention;
mod capture;
mod engine;
mod port;
mod stream;
mod vhost;

use anyhow::{Context, Result, anyhow};
use netfault::Faults;
use netfault::pcap::PcapWriter;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use capture::Capture;
use port::Port;
use vhost::{Ring, Side};

pub use port::{MAX_FRAME, PortCounters, QUEUE_LIMIT};

/// The configuration of a fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The number of ports, one per virtual machine.
    pub ports: usize,
    /// The directory for the ports' sockets. It must be short, because a Unix socket's path has at most 107
    /// bytes.
    pub dir: PathBuf,
    /// The faults injected into frames between two ports.
    pub faults: Faults,
    /// The seed that selects the frames to be faulted. Each port derives a random stream of its own from it.
    pub seed: u64,
    /// The file in which all frames are recorded, as received from their sender and before any fault.
    pub pcap: Option<PathBuf>,
}

impl FabricConfig {
    /// Returns the configuration of a fabric without faults and without a capture.
    #[must_use]
    pub fn plain(ports: usize, dir: &Path) -> Self {
        Self { ports, dir: dir.to_owned(), faults: Faults::default(), seed: 0, pcap: None }
    }
}

/// The way in which a machine connects to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plug {
    /// Shared memory, through this vhost-user socket.
    Memory(PathBuf),
    /// A stream of frames through the socket with this path.
    Stream(PathBuf),
}

impl Plug {
    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        match self {
            Self::Memory(socket) | Self::Stream(socket) => socket,
        }
    }
}

/// The counts of a fabric since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// The counts of each port.
    pub ports: Vec<PortCounters>,
    /// The faults, summed over all ports.
    pub faults: netfault::Counters,
}

/// A request to the switching thread.
enum Command {
    SetFaults(Faults),
    SetLink {
        port: usize,
        up: bool,
    },
    Counters(Sender<FabricCounters>),
    /// A machine's ring is set up and can be used.
    Attach {
        port: usize,
        generation: u64,
        side: Side,
        ring: Box<Ring>,
    },
    /// A machine's ring is about to change; the switching thread must return it.
    Detach {
        port: usize,
        generation: u64,
        side: Side,
        answer: Sender<Option<Box<Ring>>>,
    },
    /// A machine has closed its connection.
    Closed {
        port: usize,
        generation: u64,
    },
    Stop,
}

/// The sender of requests to the switching thread.
#[derive(Clone, Debug)]
struct Commands {
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Commands {
    fn send(&self, command: Command) -> Result<()> {
        self.sender.send(command).map_err(|_| anyhow!("the fabric has stopped"))?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).context("eventfd")?;
        Ok(())
    }

    /// Returns the eventfd that is readable when there are requests.
    fn wake(&self) -> &OwnedFd {
        &self.wake
    }
}

/// A running fabric. When it is dropped, it stops and removes its sockets.
#[derive(Debug)]
pub struct Fabric {
    /// The sockets for streams, by port.
    stream_sockets: Vec<PathBuf>,
    vhost_sockets: Vec<PathBuf>,
    commands: Commands,
    thread: Option<JoinHandle<Result<FabricCounters>>>,
}

/// The time limit for an answer of the switching thread. The thread never blocks, so this is only a
/// safeguard.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl Fabric {
    /// Creates the ports' sockets and starts the switching thread. Machines may connect as soon as this
    /// returns.
    pub fn start(config: &FabricConfig) -> Result<Self> {
        let paths = |kind| (0..config.ports).map(|n| config.dir.join(format!("port{n}.{kind}"))).collect();
        let (stream_sockets, vhost_sockets): (Vec<PathBuf>, Vec<PathBuf>) = (paths("sock"), paths("vhost"));
        let ports = stream_sockets.iter().zip(&vhost_sockets);
        let ports = ports.map(|(stream, vhost)| Ok(Port::new(listen(stream)?, listen(vhost)?)));
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let capture = config.pcap.as_deref().map(create_pcap).transpose()?.map(Capture::new);
        let (sender, inbox) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?);
        let commands = Commands { sender, wake };
        let engine =
            engine::Engine::new(ports, config.faults, config.seed, capture, inbox, commands.clone())?;
        let thread = std::thread::Builder::new()
            .name("fabric".into())
            .spawn(move || engine.run())
            .context("cannot start the fabric's thread")?;
        Ok(Self { stream_sockets, vhost_sockets, commands, thread: Some(thread) })
    }

    /// Returns the way in which a virtual machine connects to a port.
    ///
    /// # Panics
    /// Panics if there is no such port.
    #[must_use]
    pub fn plug(&self, port: usize) -> Plug {
        Plug::Memory(self.vhost_sockets[port].clone())
    }

    /// Returns the socket of a port for a stream of frames.
    ///
    /// # Panics
    /// Panics if there is no such port.
    #[must_use]
    pub fn socket(&self, port: usize) -> &Path {
        &self.stream_sockets[port]
    }

    /// Changes the faults of all frames that arrive from now on.
    pub fn set_faults(&self, faults: Faults) -> Result<()> {
        self.commands.send(Command::SetFaults(faults))
    }

    /// Plugs in or unplugs a port's cable. Frames to and from an unplugged port disappear.
    pub fn set_link(&self, port: usize, up: bool) -> Result<()> {
        self.commands.send(Command::SetLink { port, up })
    }

    /// Returns the counts since the start.
    pub fn counters(&self) -> Result<FabricCounters> {
        let (answer, receive) = channel();
        self.commands.send(Command::Counters(answer))?;
        receive.recv_timeout(ANSWER_WITHIN).map_err(|_| anyhow!("the fabric does not answer"))
    }

    /// Stops the fabric, completes the capture, and returns the counts.
    pub fn stop(mut self) -> Result<FabricCounters> {
        self.finish()
    }

    fn finish(&mut self) -> Result<FabricCounters> {
        let Some(thread) = self.thread.take() else { return Ok(FabricCounters::default()) };
        // The request fails only if the thread has ended by itself; then joining it returns the reason.
        let _ = self.commands.send(Command::Stop);
        let result = thread.join().map_err(|_| anyhow!("the fabric's thread panicked"))?;
        for socket in self.stream_sockets.iter().chain(&self.vhost_sockets) {
            let _ = std::fs::remove_file(socket);
        }
        result
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    listener.set_nonblocking(true).context("cannot create a socket non-blocking")?;
    Ok(listener)
}

fn create_pcap(path: &Path) -> Result<PcapWriter<File>> {
    File::create(path)
        .and_then(PcapWriter::new)
        .with_context(|| format!("cannot write the capture {}", path.display()))
}

#[cfg(test)]
mod tests;
