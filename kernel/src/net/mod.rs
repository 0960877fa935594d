//! The network: ports, TCP on the management port and, on demand, on the fabric, the control connection, and the poller
//! that drives them.
//!
//! Which device is which port: `mgmt=` and `fabric=` name one by its Ethernet address or its place on the bus; without
//! them the first in the order of the bus is the management port and the second the fabric. A single device is both.

mod device;
pub mod fabric;
pub mod link;
mod listen;
pub mod port;
pub mod stack;
mod virtio;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::net::Ipv4Addr;
use core::pin::pin;
use core::task::Poll;
use platform::Instant;
use spin::Once;

use crate::arch::interrupts;
use crate::boot::cmdline;
use crate::exec::{self, Poller};
use crate::pci::{self, Message};
use crate::virtio::SetupError;
use crate::{mm, random, time};
use port::Port;
use stack::{Addressing, Ipv4Config, Stack};
use virtio::{Sizes, VirtioNet};

/// A machine with less memory gets short rings.
const SMALL: u64 = 96 << 20;

/// The machine's network, for as long as the kernel lives.
pub struct Net {
    /// All ports, in the order of the bus.
    ports: Vec<&'static Port>,
    /// The one that RDMA uses.
    pub fabric: Option<&'static Port>,
    /// TCP on the management port.
    pub stack: Option<&'static Stack>,
    /// TCP on the fabric port, where that is another and something has asked for it.
    fabric_stack: Once<&'static Stack>,
}

impl Net {
    /// TCP on the fabric port with that address; the first call makes it so.
    fn fabric_stack(&self, port: &'static Port, config: Ipv4Config) -> &'static Stack {
        self.fabric_stack.call_once(|| match self.stack.filter(|stack| core::ptr::eq(stack.port(), port)) {
            Some(shared) => {
                shared.add_address(config);
                shared
            }
            None => start_stack(port, Addressing::Static(config)),
        })
    }

    /// All stacks, each once.
    fn stacks(&self) -> impl Iterator<Item = &'static Stack> {
        let other = |stack: &&'static Stack| self.stack.is_none_or(|first| !core::ptr::eq(*stack, first));
        self.stack.into_iter().chain(self.fabric_stack.get().copied().filter(other))
    }
}

fn start_stack(port: &'static Port, addressing: Addressing) -> &'static Stack {
    let mut seed = [0; 8];
    random::fill(&mut seed);
    Box::leak(Box::new(Stack::start(port, addressing, u64::from_le_bytes(seed))))
}

/// The value of `future`, or `None` if it is not ready by `deadline`.
pub async fn with_deadline<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
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

/// Starts all network devices and, unless `stack` is false, TCP on the management port. Once, after [`pci::init`].
///
/// # Errors
/// What on the command line is wrong, for people. A device that does not start is said on the console and left out.
pub fn init(stack: bool) -> Result<&'static Net, String> {
    let addressing = addressing()?;
    let sizes =
        if mm::frames::totals().0 < SMALL { Sizes { rx: 128, tx: 64 } } else { Sizes { rx: 256, tx: 256 } };
    let mut found: Vec<(pci::Address, VirtioNet)> = Vec::new();
    for function in pci::functions().iter().filter(|f| virtio::is_network(f)) {
        let device = interrupts::allocate("virtio-net", Box::new(|| ()))
            .map_err(|_| SetupError::Vectors)
            .and_then(|irq| {
                let message = Message { address: irq.msi_address, data: irq.msi_data };
                VirtioNet::start(function, sizes, message)
            });
        match device {
            Ok(device) => {
                pci::claim(function.address, "virtio-net");
                found.push((function.address, device));
            }
            Err(e) => log::error!("pci {}: network device {e}", function.address),
        }
    }
    let mgmt = choose("mgmt", &found)?.unwrap_or(0);
    let fabric = choose("fabric", &found)?.unwrap_or_else(|| {
        let other = (0..found.len()).find(|i| *i != mgmt);
        other.unwrap_or(mgmt)
    });
    let ports: Vec<&'static Port> = found
        .into_iter()
        .enumerate()
        .map(|(i, (address, device))| {
            let name = match (i == mgmt, i == fabric) {
                (true, true) => "mgmt+fabric",
                (true, false) => "mgmt",
                (false, true) => "fabric",
                (false, false) => "spare",
            };
            let port: &'static Port = Box::leak(Box::new(Port::new(device)));
            log::info!("net {name}: {} at pci {address}, MTU {}", port.mac(), port.mtu());
            port
        })
        .collect();
    let (mgmt, fabric) = (ports.get(mgmt).copied(), ports.get(fabric).copied());
    let stack = mgmt.filter(|_| stack).map(|port| start_stack(port, addressing));
    let net: &'static Net = Box::leak(Box::new(Net { ports, fabric, stack, fabric_stack: Once::new() }));
    exec::register_poller(0, Box::new(NetPoller { net, armed: false }));
    Ok(net)
}

/// The device that `key` names on the command line.
fn choose(key: &'static str, found: &[(pci::Address, VirtioNet)]) -> Result<Option<usize>, String> {
    let Some(wanted) = cmdline::get(key).filter(|w| *w != "auto") else { return Ok(None) };
    let is = |(address, device): &(pci::Address, VirtioNet)| {
        format!("{}", device.mac).eq_ignore_ascii_case(wanted) || format!("{address}") == wanted
    };
    match found.iter().position(is) {
        Some(i) => Ok(Some(i)),
        None => Err(format!("{key}={wanted}: no network device has that address")),
    }
}

/// `ip=` and `gw=`.
fn addressing() -> Result<Addressing, String> {
    let gateway = match cmdline::get("gw") {
        None => None,
        Some(text) => Some(text.parse::<Ipv4Addr>().map_err(|_| format!("gw={text}: not an IPv4 address"))?),
    };
    let text = match cmdline::get("ip") {
        None | Some("dhcp") => return Ok(Addressing::Dhcp),
        Some(text) => text,
    };
    let parts = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse().ok()?, prefix.parse::<u8>().ok().filter(|p| (1..=32).contains(p))?))
    });
    let (address, prefix) = parts.ok_or_else(|| format!("ip={text}: want ADDRESS/PREFIX or dhcp"))?;
    Ok(Addressing::Static(Ipv4Config { address, prefix, gateway }))
}

/// Ports, stack and control connection, driven by core 0.
struct NetPoller {
    net: &'static Net,
    armed: bool,
}

impl NetPoller {
    /// Ports that no RNIC polls and arms.
    fn own_ports(&self) -> impl Iterator<Item = &'static Port> {
        self.net.ports.iter().copied().filter(|p| !p.has_rnic() || p.has_stack())
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
        for port in &self.net.ports {
            if !port.has_stack() {
                worked |= port.service(now);
            }
        }
        for stack in self.net.stacks() {
            worked |= stack.poll(now);
        }
        worked | link::service(now)
    }

    fn next_deadline(&self) -> Instant {
        let ports = self.net.ports.iter().filter_map(|p| p.next_deadline());
        let stacks = self.net.stacks().filter_map(Stack::next_deadline);
        ports.chain(stacks).chain(link::next_deadline()).min().unwrap_or(Instant::MAX)
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        // All of them, though the first may have frames already.
        self.own_ports().fold(false, |waits, port| port.arm() | waits)
    }
}

/// Now, plus `ms` milliseconds.
pub fn in_ms(ms: u64) -> Instant {
    time::now() + core::time::Duration::from_millis(ms)
}
