//! A user-space L2 switch for virtual machines: MAC learning, seeded faults, capture.
//!
//! Each port is a Unix socket that a QEMU connects to with `-netdev stream,server=off,addr.type=unix,addr.path=...`; on
//! it, frames go both ways with their length in front (4 bytes, big-endian). One thread moves all frames: it is on the
//! path of every RDMA operation, so it forwards what it reads at once, straight from the buffer it was read into, with
//! one gathering write per destination, and never waits for a slow port: what such a port has not taken is queued up to
//! [`QUEUE_LIMIT`] bytes and dropped beyond.

mod engine;
mod learn;
mod port;

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

/// What a fabric has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// By port.
    pub ports: Vec<PortCounters>,
    /// Faults, summed over all ports.
    pub faults: netfault::Counters,
}

/// What the owner tells the switching thread.
enum Command {
    SetFaults(Faults),
    SetLink { port: usize, up: bool },
    Counters(Sender<FabricCounters>),
    Stop,
}

/// A running fabric. Stops, and removes its sockets, when dropped.
#[derive(Debug)]
pub struct Fabric {
    sockets: Vec<PathBuf>,
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<FabricCounters>>>,
}

/// How long the switching thread may take to answer a question; it never waits, so this is only a guard.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl Fabric {
    /// Makes the ports' sockets and starts the switching thread. Machines may connect as soon as this returns.
    pub fn start(config: &FabricConfig) -> Result<Self> {
        let sockets: Vec<PathBuf> =
            (0..config.ports).map(|n| config.dir.join(format!("port{n}.sock"))).collect();
        let listeners = sockets.iter().map(|path| listen(path)).collect::<Result<Vec<_>>>()?;
        let pcap = config.pcap.as_deref().map(create_pcap).transpose()?;
        let (commands, inbox) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?);
        let engine =
            engine::Engine::new(listeners, config.faults, config.seed, pcap, inbox, Arc::clone(&wake))?;
        let thread = std::thread::Builder::new()
            .name("fabric".into())
            .spawn(move || engine.run())
            .context("cannot start the fabric's thread")?;
        Ok(Self { sockets, commands, wake, thread: Some(thread) })
    }

    /// The socket of a port, for QEMU to connect to.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn socket(&self, port: usize) -> &Path {
        &self.sockets[port]
    }

    /// Changes the faults of all frames that arrive from now on.
    pub fn set_faults(&self, faults: Faults) -> Result<()> {
        self.tell(Command::SetFaults(faults))
    }

    /// Plugs a port's cable in or pulls it: frames to and from a port without cable disappear.
    pub fn set_link(&self, port: usize, up: bool) -> Result<()> {
        self.tell(Command::SetLink { port, up })
    }

    /// What the fabric has done so far.
    pub fn counters(&self) -> Result<FabricCounters> {
        let (answer, receive) = channel();
        self.tell(Command::Counters(answer))?;
        receive.recv_timeout(ANSWER_WITHIN).map_err(|_| anyhow!("the fabric does not answer"))
    }

    /// Stops, completes the capture, and says what happened.
    pub fn stop(mut self) -> Result<FabricCounters> {
        self.finish()
    }

    fn tell(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| anyhow!("the fabric has stopped"))?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).context("eventfd")?;
        Ok(())
    }

    fn finish(&mut self) -> Result<FabricCounters> {
        let Some(thread) = self.thread.take() else { return Ok(FabricCounters::default()) };
        // Refused only if the thread has ended by itself, and then joining says why.
        let _ = self.tell(Command::Stop);
        let result = thread.join().map_err(|_| anyhow!("the fabric's thread panicked"))?;
        for socket in &self.sockets {
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
