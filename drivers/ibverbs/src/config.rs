//! The options of the driver, and the errors of opening it.

use std::io;
use std::net::IpAddr;

/// The choice of a device, and the memory to register with it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The RDMA device, by its name in `rdma link` [default: the first one with an active port that fits the
    /// other options].
    pub device: Option<String>,
    /// The network interface of the port [default: any].
    pub netdev: Option<String>,
    /// The IP address in the port's GID [default: an IPv4 address of the port before any other].
    pub address: Option<IpAddr>,
    /// The size of the arena, in bytes. All of it is locked in memory, and peers may reach it.
    pub arena_bytes: u64,
    /// True if the arena is in huge pages, which the system must have reserved (`vm.nr_hugepages`).
    pub huge_pages: bool,
}

impl Options {
    /// Makes options for any device and address, and an arena of `arena_bytes` bytes in ordinary pages.
    #[must_use]
    pub fn new(arena_bytes: u64) -> Self {
        Self { device: None, netdev: None, address: None, arena_bytes, huge_pages: false }
    }
}

/// The reason for which there is no usable RNIC.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The program was built without the driver.
    #[error("this program was built without libibverbs: build it with the feature ibverbs/libibverbs")]
    NotBuilt,
    /// The library is not on this machine.
    #[error("libibverbs.so.1 cannot be loaded: install it (Debian: apt-get install ibverbs-providers)")]
    NoLibrary,
    /// The kernel has no RDMA subsystem, or does not offer it to processes.
    #[error("the kernel has no RDMA for processes: is ib_uverbs loaded?")]
    NoKernelSupport,
    /// There is no RDMA device.
    #[error("no RDMA device: is rdma_rxe loaded? `rdma link add rxe0 type rxe netdev eth0` makes one")]
    NoDevice,
    /// There is no RDMA device of the requested name.
    #[error("no RDMA device {name}; there are: {present}")]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// The names of the present devices.
        present: String,
    },
    /// No port of the examined devices has a link.
    #[error("no port of {devices} is active: is the network interface below it up?")]
    NoActivePort {
        /// The examined devices.
        devices: String,
    },
    /// No active port has a suitable GID.
    #[error("no active port of {devices} has a GID for {wanted}; it has: {present}")]
    NoGid {
        /// The examined devices.
        devices: String,
        /// The requested address or interface.
        wanted: String,
        /// The present GIDs.
        present: String,
    },
    /// The memory of the arena could not be mapped.
    #[error("cannot get {bytes} bytes of memory for the arena: {source}")]
    Arena {
        /// The requested size, in bytes.
        bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The arena could not be registered.
    #[error(
        "cannot register {bytes} bytes with {device}: {source} (is the limit of locked memory, `ulimit -l`, too low?)"
    )]
    Register {
        /// The requested size, in bytes.
        bytes: u64,
        /// The device.
        device: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Another call failed.
    #[error("{device}: {call} failed: {source}")]
    Call {
        /// The device.
        device: String,
        /// The call.
        call: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}
