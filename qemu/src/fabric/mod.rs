//! A user-space L2 switch for virtual machines: MAC learning, seeded faults, capture.
//!
//! A machine connects to a port in one of two ways, and the latest to connect has the port:
//!
//! - It shares its memory (vhost-user, `-netdev vhost-user`): frames are copied out of its transmit ring and into the
//!   receiver's receive ring here, so a crossing wakes one thread. What virtual machines use.
//! - By a stream (`-netdev stream,server=off,addr.type=unix,addr.path=...`), on which frames go both ways with their
//!   length in front (4 bytes, big-endian). For host programs, and whatever cannot share its memory.
//!
//! One thread moves all frames: it is on the path of every RDMA operation, so it forwards what it takes at once, straight
//! from the buffer it was read into, and never waits for a slow port: what such a port has not taken is queued up to
//! [`QUEUE_LIMIT`] bytes and dropped beyond. Between frames it sleeps, and leaves the processors to the machines.

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

/// What a fabric is to be.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Number of ports, one per virtual machine.
    pub ports: usize,
    /// Where the ports' sockets are made. Short: a Unix socket's path has at most 107 bytes.
    pub dir: PathBuf,
    /// What happens to frames between two ports.
    pub faults: Faults,
    /// Decides which frames the faults hit. Each port derives its own random stream from it.
    pub seed: u64,
    /// Where all frames are recorded, as they came in from their sender and before any fault.
    pub pcap: Option<PathBuf>,
}

/// How a machine is connected to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plug {
    /// It shares its memory, by this vhost-user socket.
    Memory(PathBuf),
    /// By a stream of frames on this socket.
    Stream(PathBuf),
}

impl Plug {
    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        match self {
            Self::Memory(socket) | Self::Stream(socket) => socket,
        }
    }
}

/// What a fabric has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// By port.
    pub ports: Vec<PortCounters>,
    /// Faults, summed over all ports.
    pub faults: netfault::Counters,
}

/// What the switching thread is told.
enum Command {
    SetFaults(Faults),
    SetLink {
        port: usize,
        up: bool,
    },
    Counters(Sender<FabricCounters>),
    /// A machine's ring is set up.
    Attach {
        port: usize,
        life: u64,
        side: Side,
        ring: Box<Ring>,
    },
    /// A machine's ring is to be changed: it is wanted back.
    Detach {
        port: usize,
        life: u64,
        side: Side,
        answer: Sender<Option<Box<Ring>>>,
    },
    /// A machine has gone.
    Gone {
        port: usize,
        life: u64,
    },
    Stop,
}

/// The way to tell the switching thread something.
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

    /// Readable when there is something in the inbox.
    fn wake(&self) -> &OwnedFd {
        &self.wake
    }
}

/// A running fabric. Stops, and removes its sockets, when dropped.
#[derive(Debug)]
pub struct Fabric {
    /// By port.
    stream_sockets: Vec<PathBuf>,
    vhost_sockets: Vec<PathBuf>,
    commands: Commands,
    thread: Option<JoinHandle<Result<FabricCounters>>>,
}

/// How long the switching thread may take to answer a question; it never waits, so this is only a guard.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl Fabric {
    /// Makes the ports' sockets and starts the switching thread. Machines may connect as soon as this returns.
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

    /// How a virtual machine connects to a port.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn plug(&self, port: usize) -> Plug {
        Plug::Memory(self.vhost_sockets[port].clone())
    }

    /// The socket of a port for a stream of frames.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn socket(&self, port: usize) -> &Path {
        &self.stream_sockets[port]
    }

    /// Changes the faults of all frames that arrive from now on.
    pub fn set_faults(&self, faults: Faults) -> Result<()> {
        self.commands.send(Command::SetFaults(faults))
    }

    /// Plugs a port's cable in or pulls it: frames to and from a port without cable disappear.
    pub fn set_link(&self, port: usize, up: bool) -> Result<()> {
        self.commands.send(Command::SetLink { port, up })
    }

    /// What the fabric has done so far.
    pub fn counters(&self) -> Result<FabricCounters> {
        let (answer, receive) = channel();
        self.commands.send(Command::Counters(answer))?;
        receive.recv_timeout(ANSWER_WITHIN).map_err(|_| anyhow!("the fabric does not answer"))
    }

    /// Stops, completes the capture, and says what happened.
    pub fn stop(mut self) -> Result<FabricCounters> {
        self.finish()
    }

    fn finish(&mut self) -> Result<FabricCounters> {
        let Some(thread) = self.thread.take() else { return Ok(FabricCounters::default()) };
        // Refused only if the thread has ended by itself, and then joining says why.
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
    listener.set_nonblocking(true).context("cannot make a socket non-blocking")?;
    Ok(listener)
}

fn create_pcap(path: &Path) -> Result<PcapWriter<File>> {
    File::create(path)
        .and_then(PcapWriter::new)
        .with_context(|| format!("cannot write the capture {}", path.display()))
}

#[cfg(test)]
mod tests;
