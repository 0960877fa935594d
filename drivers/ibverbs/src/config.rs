//! What to open, and why it could not be opened.

use std::io;
use std::net::IpAddr;

/// Which device to use, and how much memory to lend to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The RDMA device, as `rdma link` names it [default: the first with an active port that the other options fit].
    pub device: Option<String>,
    /// The network interface that the port must belong to [default: any].
    pub netdev: Option<String>,
    /// The IP address that the port's GID must be made of [default: an IPv4 address of the port before any other].
    pub address: Option<IpAddr>,
    /// Bytes of the arena, all of which is locked in memory and which peers may reach.
    pub arena_bytes: u64,
    /// Whether the arena lies in huge pages, which the system must have set aside (`vm.nr_hugepages`).
    pub huge_pages: bool,
}

impl Options {
    /// Any device and address, for an arena of so many bytes in ordinary pages.
    #[must_use]
    pub fn new(arena_bytes: u64) -> Self {
        Self { device: None, netdev: None, address: None, arena_bytes, huge_pages: false }
    }
}

/// Why there is no RNIC to use.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The program was built without the driver.
    #[error("this program was built without libibverbs: build it with the feature ibverbs/libibverbs")]
    NotBuilt,
    /// The library is not on this machine.
    #[error("libibverbs.so.1 cannot be loaded: install it (Debian: apt-get install ibverbs-providers)")]
    NoLibrary,
    /// The kernel has no RDMA subsystem, or does not give it to processes.
    #[error("the kernel has no RDMA for processes: is ib_uverbs loaded?")]
    NoKernelSupport,
    /// There is no RDMA device at all.
    #[error("no RDMA device: is rdma_rxe loaded? `rdma link add rxe0 type rxe netdev eth0` makes one")]
    NoDevice,
    /// There is none of the name asked for.
    #[error("no RDMA device {name}; there are: {present}")]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        present: String,
    },
    /// No port of the devices looked at has a link.
    #[error("no port of {devices} is active: is the network interface below it up?")]
    NoActivePort {
        /// The devices looked at.
        devices: String,
    },
    /// No active port has a GID as asked for.
    #[error("no active port of {devices} has a GID for {wanted}; it has: {present}")]
    NoGid {
        /// The devices looked at.
        devices: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// The arena could not be had.
    #[error("cannot get {bytes} bytes of memory for the arena: {source}")]
    Arena {
        /// How much was asked for.
        bytes: u64,
        /// Why not.
        source: io::Error,
    },
    /// The arena could not be registered.
    #[error(
        "cannot register {bytes} bytes with {device}: {source} (is the limit of locked memory, `ulimit -l`, too low?)"
    )]
    Register {
        /// How much was asked for.
        bytes: u64,
        /// With which device.
        device: String,
        /// Why not.
        source: io::Error,
    },
    /// Some other call failed.
    #[error("{device}: {call} failed: {source}")]
    Call {
        /// On which device.
        device: String,
        /// The call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}
