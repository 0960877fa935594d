//! The network: ports, TCP on the management port and, on demand, on the fabric, and the poller that drives
//! them.
//!
//! `mgmt=` and `fabric=` select a virtio device by its Ethernet address or its PCI address. By default the
//! first on the bus is the management port and the second the fabric. A single device is both. The RDMA port
//! of a card is the management port if `mgmt=` names it, or if there is no virtio device. `mgmt=mlx4/PORT`
//! names a port of the card by its number; a port other than that of RDMA is in use for it then.

mod addressing;
mod card;
mod device;
#[cfg(feature = "perftest")]
pub(crate) mod fabric;
#[cfg(feature = "perftest")]
mod listen;
mod nic;
pub(crate) mod port;
pub(crate) mod stack;
mod virtio;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::net::Ipv4Addr;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use mlx4::FramePort;
use neighbour::link_local;
use platform::Instant;
use spin::Once;

use crate::arch::interrupts;
use crate::exec::{self, Poller};
use crate::mlx4::Card;
use crate::pci::{self, Message};
use crate::virtio::SetupError;
use crate::{cmdline, mm, random, time};
use addressing::{Addressing, Ipv4Addressing, Ipv4Config, Ipv6Addressing};
use nic::Nic;
use port::Port;
use stack::Stack;
use virtio::Sizes;

/// Machines with less memory get short rings.
const SMALL: u64 = 96 << 20;

/// The time after which the console says that there is no lease for RDMA, and until it says so again.
const LEASE_SAID: Duration = Duration::from_secs(5);
const LEASE_SAID_AGAIN: Duration = Duration::from_secs(60);

/// The machine's network, for as long as the kernel lives.
pub(crate) struct Net {
    /// Ports of virtio devices, in the order of the bus.
    ports: Vec<&'static Port>,
    /// The port of the card that is the RNIC.
    card: Once<&'static Port>,
    /// Another port of that card, for the management network alone.
    second: Once<&'static Port>,
    /// The port that RDMA in software uses.
    pub fabric: Option<&'static Port>,
    /// The sources of the management port's addresses, if TCP is wanted there.
    addressing: Option<Addressing>,
    /// TCP on the management port.
    stack: Once<&'static Stack>,
    /// TCP on the fabric port, if that is another port and TCP was requested there.
    fabric_stack: Once<&'static Stack>,
}

impl Net {
    /// Returns all ports.
    fn ports(&self) -> impl Iterator<Item = &'static Port> {
        self.ports.iter().copied().chain(self.card.get().copied()).chain(self.second.get().copied())
    }

    /// Returns TCP on the management port. Call once all devices exist.
    ///
    /// # Errors
    /// A line for the user: there is no such port.
    pub(crate) fn management(&self) -> Result<&'static Stack, String> {
        let missing = || match wanted("mgmt") {
            Some(address) => format!("mgmt={address}: no network device has that address"),
            None => "no network device for the management network".into(),
        };
        self.stack.get().copied().ok_or_else(missing)
    }

    /// Adds the ports of a card that are in use and on Ethernet: they answer for their addresses. One becomes
    /// the management port if no other port is. Returns the port of RDMA.
    pub(crate) fn attach_card(&self, address: pci::Address, card: &Arc<Card>) -> Option<&'static Port> {
        if let Some(nic) = card::start(card, FramePort::Second) {
            let port = *self.second.call_once(|| leak("mgmt", address, nic));
            self.manage(port);
            self.join_groups(card, FramePort::Second);
        }
        let nic = card::start(card, FramePort::Rdma)?;
        let is_named = match management_of_card() {
            Some(Ok(number)) => Some(number == card.identity().port),
            _ => is_named("mgmt", address, &nic),
        };
        let is_management = is_named.unwrap_or(self.stack.get().is_none());
        let name = if is_management { "mgmt+rdma" } else { "rdma" };
        let port = *self.card.call_once(|| leak(name, address, nic));
        if is_management {
            self.manage(port);
            self.join_groups(card, FramePort::Rdma);
        }
        Some(port)
    }

    /// Makes a port of the card, if it is the management port, receive the groups of its IPv6 addresses. An
    /// advertised address has the group of that of the link.
    fn join_groups(&self, card: &Card, port: FramePort) {
        let Some(addressing) = self.addressing else { return };
        let mac = match card.frame_port(port) {
            Some((mac, _)) if addressing.ipv6 != Ipv6Addressing::Off => mac,
            _ => return,
        };
        let fixed = match addressing.ipv6 {
            Ipv6Addressing::Static(config) => config.address,
            _ => None,
        };
        for address in [link_local(mac)].into_iter().chain(fixed) {
            for group in neighbour::groups(address) {
                if let Err(why) = card.join_group(port, group) {
                    log::error!("net mgmt: cannot receive frames to {group}: {why}");
                }
            }
        }
    }

    /// Makes a port the management port, unless TCP is not wanted or another port is.
    fn manage(&self, port: &'static Port) {
        if let Some(addressing) = self.addressing {
            self.stack.call_once(|| start_stack(port, addressing));
        }
    }

    /// Returns TCP on the fabric port with this address, which the first call configures.
    #[cfg_attr(not(feature = "perftest"), expect(dead_code, reason = "perftest alone has TCP on the fabric"))]
    fn fabric_stack(&self, port: &'static Port, config: Ipv4Config) -> &'static Stack {
        self.fabric_stack.call_once(|| {
            match self.stack.get().copied().filter(|stack| core::ptr::eq(stack.port(), port)) {
                Some(shared) => {
                    shared.add_address(config);
                    shared
                }
                None => start_stack(port, Ipv4Addressing::Static(config).into()),
            }
        })
    }

    /// Waits until `port` has an address by DHCP, and returns it. The management port's address counts, also
    /// if it is fixed.
    pub(crate) async fn lease_on(&self, port: &'static Port) -> Ipv4Addr {
        let shared = self.stack.get().copied().filter(|stack| core::ptr::eq(stack.port(), port));
        let start = || *self.fabric_stack.call_once(|| start_stack(port, Ipv4Addressing::Dhcp.into()));
        let stack = shared.unwrap_or_else(start);
        let mut said_at = time::now() + LEASE_SAID;
        loop {
            if let Some(config) = with_deadline(said_at, stack.configured()).await {
                return config.address;
            }
            log::error!("rdma_ip=dhcp: no DHCP server answers on port {}; has it a link?", port.mac());
            said_at = time::now() + LEASE_SAID_AGAIN;
        }
    }

    /// Returns all stacks, each once.
    fn stacks(&self) -> impl Iterator<Item = &'static Stack> {
        let first = self.stack.get().copied();
        let other = move |stack: &&'static Stack| first.is_none_or(|first| !core::ptr::eq(*stack, first));
        first.into_iter().chain(self.fabric_stack.get().copied().filter(other))
    }
}

/// Allocates a port that is never freed.
fn leak(name: &str, address: pci::Address, nic: Nic) -> &'static Port {
    let port: &'static Port = Box::leak(Box::new(Port::new(nic)));
    log::info!("net {name}: {} at pci {address}, MTU {}", port.mac(), port.mtu());
    port
}

fn start_stack(port: &'static Port, addressing: Addressing) -> &'static Stack {
    let mut seed = [0; 8];
    random::fill(&mut seed);
    Box::leak(Box::new(Stack::start(port, addressing, u64::from_le_bytes(seed))))
}

/// Returns the value of `future`, or `None` if it is not ready by `deadline`.
pub(crate) async fn with_deadline<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timeout = pin!(exec::sleep_until(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        timeout.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Starts all virtio network devices and, unless `stack` is false, TCP on the management port, if that is one
/// of them. Call once, after [`pci::init`].
///
/// # Errors
/// A line for the user that says what is wrong on the command line. A device that does not start is reported
/// on the console and skipped.
pub(crate) fn init(stack: bool) -> Result<&'static Net, String> {
    let addressing = addressing::of_settings()?;
    let sizes =
        if mm::frames::totals().0 < SMALL { Sizes { rx: 128, tx: 64 } } else { Sizes { rx: 256, tx: 256 } };
    let mut found: Vec<(pci::Address, Nic)> = Vec::new();
    for function in pci::functions().iter().filter(|f| virtio::is_network(f)) {
        let device = interrupts::allocate("virtio-net", Box::new(|| ()))
            .map_err(|_| SetupError::Vectors)
            .and_then(|irq| {
                let message = Message { address: irq.msi_address, data: irq.msi_data };
                virtio::start(function, sizes, message)
            });
        match device {
            Ok(device) => {
                pci::claim(function.address, "virtio-net");
                found.push((function.address, device));
            }
            Err(e) => log::error!("pci {}: network device {e}", function.address),
        }
    }
    // A device that is not here may be the card's.
    let mgmt = match wanted("mgmt") {
        Some(_) => position("mgmt", &found),
        None => (!found.is_empty()).then_some(0),
    };
    let fabric = match wanted("fabric") {
        Some(address) => {
            let named = position("fabric", &found);
            Some(
                named
                    .ok_or_else(|| format!("fabric={address}: no virtio network device has that address"))?,
            )
        }
        None => (0..found.len()).find(|i| Some(*i) != mgmt).or(mgmt),
    };
    let port = |(i, (address, nic))| {
        let name = match (Some(i) == mgmt, Some(i) == fabric) {
            (true, true) => "mgmt+fabric",
            (true, false) => "mgmt",
            (false, true) => "fabric",
            (false, false) => "spare",
        };
        leak(name, address, nic)
    };
    let ports: Vec<&'static Port> = found.into_iter().enumerate().map(port).collect();
    let at = |index: Option<usize>| ports.get(index?).copied();
    let (mgmt, fabric) = (at(mgmt), at(fabric));
    let addressing = stack.then_some(addressing);
    let net = Net {
        ports,
        card: Once::new(),
        second: Once::new(),
        fabric,
        addressing,
        stack: Once::new(),
        fabric_stack: Once::new(),
    };
    if let (Some(port), Some(addressing)) = (mgmt, addressing) {
        net.stack.call_once(|| start_stack(port, addressing));
    }
    let net: &'static Net = Box::leak(Box::new(net));
    exec::register_poller(0, Box::new(NetPoller { net, armed: false }));
    Ok(net)
}

/// Returns the device that `key` of the command line names, if any.
fn wanted(key: &'static str) -> Option<&'static str> {
    cmdline::get(key).filter(|wanted| *wanted != "auto")
}

/// Returns the number of the card's port that `mgmt=mlx4/PORT` names, or `None` if `mgmt=` names another
/// device.
///
/// # Errors
/// A line for the user: the number is malformed.
pub(crate) fn management_of_card() -> Option<Result<u8, String>> {
    let number = wanted("mgmt")?.strip_prefix("mlx4/")?;
    let wrong = || format!("mgmt=mlx4/{number}: want the number of a port of the card, from 1");
    Some(number.parse().ok().filter(|number| *number > 0).ok_or_else(wrong))
}

/// Returns true if `key` of the command line names this device, or `None` if it names none.
fn is_named(key: &'static str, address: pci::Address, nic: &Nic) -> Option<bool> {
    let wanted = wanted(key)?;
    Some(format!("{}", nic.mac).eq_ignore_ascii_case(wanted) || format!("{address}") == wanted)
}

/// Returns the index of the device that `key` of the command line names.
fn position(key: &'static str, found: &[(pci::Address, Nic)]) -> Option<usize> {
    found.iter().position(|(address, nic)| is_named(key, *address, nic) == Some(true))
}

/// Drives ports and stacks, on core 0.
struct NetPoller {
    net: &'static Net,
    armed: bool,
}

impl NetPoller {
    /// Returns the ports that no RNIC polls and arms.
    fn own_ports(&self) -> impl Iterator<Item = &'static Port> {
        self.net.ports().filter(|p| !p.has_rnic() || p.has_stack())
    }
}

impl Poller for NetPoller {
    fn name(&self) -> &'static str {
        "net"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        if core::mem::take(&mut self.armed) {
            self.own_ports().for_each(Port::disarm);
        }
        let mut worked = false;
        for port in self.net.ports() {
            if !port.has_stack() {
                worked |= port.service(now);
            }
        }
        for stack in self.net.stacks() {
            worked |= stack.poll(now);
        }
        worked
    }

    fn next_deadline(&self) -> Instant {
        let ports = self.net.ports().filter_map(Port::next_deadline);
        let stacks = self.net.stacks().filter_map(Stack::next_deadline);
        ports.chain(stacks).min().unwrap_or(Instant::MAX)
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        // All ports must be armed, even if the first has frames already.
        self.own_ports().fold(false, |waits, port| port.arm() | waits)
    }
}
