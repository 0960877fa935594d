//! The RNICs of a Linux process.

use fabricport::{ConnectError, FabricPort, Watch};
use ibverbs::{IbvRnic, OpenError, Opened};
use platform::{Arena, IoAddr, Memory};
use rustix::event::{PollFd, PollFlags};
use softroce::SoftRoce;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use verbs::{Gid, MacAddr, Rnic};

/// The first address of the arena of a software RNIC, unlikely to be mistaken for another address.
const SOFT_BASE: IoAddr = IoAddr(1 << 40);
/// The largest payload of a frame, in bytes: that of the appliances' fabric, so that a RoCE packet carries
/// 4096 bytes.
const MTU: usize = 4200;

/// The events that the poller sleeps on.
pub trait Events: Send {
    /// Adds the descriptors that show that the RNIC has work.
    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);

    /// Returns the reason for which the RNIC is useless, if it is. The node ends then.
    fn failed(&self) -> Option<String> {
        None
    }
}

/// The reason for which there is no software RNIC.
#[derive(Debug, thiserror::Error)]
pub enum SoftroceError {
    /// The fabric cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The operating system has no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

/// An RNIC, the memory that peers may access, and the events to wait for.
pub struct Nic {
    pub(crate) rnic: Arc<dyn Rnic>,
    pub(crate) memory: Arc<dyn Memory>,
    /// The address of the RNIC; `None`: the manager assigns one.
    pub(crate) gid: Option<Gid>,
    pub(crate) assign: Box<dyn FnOnce(Gid) + Send>,
    pub(crate) events: Box<dyn Events>,
}

impl Nic {
    /// Returns the software RNIC over a port of a fabric, which is the Unix stream socket `socket`, with
    /// `memory` bytes for peers. The port gets a random Ethernet address, locally administered.
    ///
    /// # Errors
    /// If the socket cannot be connected, or there are no random bytes.
    pub fn softroce(socket: &Path, memory: u64) -> Result<Self, SoftroceError> {
        let mut mac = [0; 6];
        getrandom::fill(&mut mac)?;
        mac[0] = mac[0] & 0xfc | 2;
        let (port, handle) = FabricPort::connect(socket, MacAddr(mac), MTU)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let memory = Arc::new(Arena::new(SOFT_BASE, memory));
        let config = softroce::Config::new(Gid([0; 16]), random);
        let rnic = Arc::new(SoftRoce::<_, parking_lot::RawMutex>::new(port, memory.clone(), config));
        let assign = {
            let (rnic, handle) = (rnic.clone(), handle.clone());
            Box::new(move |gid: Gid| {
                rnic.set_gid(gid);
                // The port has room for four addresses.
                handle.add_address(Ipv6Addr::from(gid.0).to_canonical());
            })
        };
        Ok(Self { rnic, memory, gid: None, assign, events: Box::new(PortEvents(handle.watch().clone())) })
    }

    /// Returns the RNIC of the host that libibverbs offers, with `memory` bytes for peers, all locked.
    /// `device` is its name, and `address` one of its port; otherwise the first active ones are used.
    ///
    /// # Errors
    /// If there is none, or the memory cannot be registered.
    pub fn ibverbs(device: Option<String>, address: Option<IpAddr>, memory: u64) -> Result<Self, OpenError> {
        let options = ibverbs::Options { device, address, ..ibverbs::Options::new(memory) };
        let Opened { rnic, arena } = ibverbs::open(&options)?;
        let gid = Some(rnic.attributes().port.gid);
        let events = Box::new(DeviceEvents(rnic.clone()));
        // The address is that of the host and is not assigned.
        Ok(Self { rnic, memory: arena, gid, assign: Box::new(drop), events })
    }
}

/// The events of a port of a fabric.
struct PortEvents(Watch);

impl Events for PortEvents {
    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.0.closed().is_none() {
            let flags = if self.0.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(&self.0, flags));
        }
    }

    fn failed(&self) -> Option<String> {
        self.0.closed().map(|why| format!("the fabric's socket is lost: {why}"))
    }
}

/// The events of a device: completions, and changes of the port.
struct DeviceEvents(Arc<IbvRnic>);

impl Events for DeviceEvents {
    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let each = self.0.event_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        fds.extend(each);
    }
}
