//! The RNIC of this machine, selected by `nic=`.

use ::mlx4::{Layer, Vlan};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::Memory;
use softroce::SoftRoce;
use verbs::{Gid, Rnic};

use super::pollers;
use crate::machine::{self, RemoteAccess};
use crate::mlx4::{self, Choice, DrivenCard, NoCard};
use crate::mm::memory::LentMemory;
use crate::net::port::{Port, RocePort};
use crate::net::{self, Net};
use crate::power::{self, Code};
use crate::sync::IrqRawMutex;
use crate::{cmdline, exec, random};

/// The value of `nic=`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A ConnectX-3 if one starts, otherwise softroce.
    Auto,
    Mlx4(Choice),
    /// The software RNIC, softroce.
    SoftRoce,
}

impl Wanted {
    /// Parses `nic=`.
    pub(super) fn from_command_line() -> Result<Self, String> {
        let text = cmdline::get("nic").unwrap_or("auto");
        match text {
            "auto" => return Ok(Self::Auto),
            "softroce" => return Ok(Self::SoftRoce),
            _ => {}
        }
        let choice = text.strip_prefix("mlx4").and_then(Self::card);
        let wrong = || format!("nic={text}: want auto, softroce, mlx4 or mlx4:PCI-ADDRESS/PORT:LAYER");
        choice.map(Self::Mlx4).ok_or_else(wrong)
    }

    /// Parses the text behind `mlx4`: `:ADDRESS`, `/PORT` or `/PORT:LAYER`, both or neither.
    fn card(text: &str) -> Option<Choice> {
        let (address, port) = match text.split_once('/') {
            Some((address, port)) => (address, Some(port)),
            None => (text, None),
        };
        let (port, layer) = match port.map(|port| port.split_once(':').unwrap_or((port, ""))) {
            None => (None, None),
            Some((port, layer)) => (Some(port.parse().ok()?), Self::layer(layer)?),
        };
        let address = match address {
            "" => None,
            address => Some(address.strip_prefix(':')?.parse().ok()?),
        };
        Some(Choice { address, port, layer })
    }

    /// Parses a layer, or no layer. Returns `None` if it is neither.
    fn layer(text: &str) -> Option<Option<Layer>> {
        match text {
            "" => Some(None),
            "ib" => Some(Some(Layer::InfiniBand)),
            "eth" => Some(Some(Layer::Ethernet)),
            _ => None,
        }
    }
}

/// The longest time for a card's link to come up, if another RNIC can take its place.
const LINK_LIMIT: Duration = Duration::from_secs(60);
/// The permitted values of `mtu=`: the least of IPv4, and the largest of ConnectX-3 cards.
const MTUS: RangeInclusive<u16> = 576..=9978;

/// Parses `link_s=`, `mtu=`, `vlan=`, `partition=`, and `mgmt=` for a port of the card.
/// `is_auto` is true if the node has another RNIC than a card.
fn card_network(is_auto: bool) -> Result<mlx4::Network, String> {
    let link_within = match cmdline::get("link_s") {
        None => is_auto.then_some(LINK_LIMIT),
        Some(text) => {
            let seconds = text.parse().map_err(|_| format!("link_s={text}: want a number of seconds"))?;
            Some(Duration::from_secs(seconds))
        }
    };
    let text = cmdline::get("mtu").unwrap_or("1500");
    let mtu = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
    let wrong = || format!("mtu={text}: want a number from {} to {}", MTUS.start(), MTUS.end());
    let management = net::management_of_card().transpose()?;
    Ok(mlx4::Network {
        link_within,
        mtu: mtu.ok_or_else(wrong)?,
        vlan: vlan()?,
        partition: partition()?,
        management,
    })
}

/// Parses `vlan=`.
fn vlan() -> Result<Option<Vlan>, String> {
    let Some(text) = cmdline::get("vlan") else { return Ok(None) };
    let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
    let vlan = id.parse().ok().zip(priority.parse().ok()).and_then(|(id, level)| Vlan::new(id, level));
    vlan.map(Some).ok_or_else(|| format!("vlan={text}: want VLAN (1 to 4094) or VLAN:PRIORITY (0 to 7)"))
}

/// Parses `partition=`: a number or P_Key, in hexadecimal form behind `0x`.
fn partition() -> Result<Option<u16>, String> {
    /// The bit of a P_Key for full membership, which the port's table tells.
    const FULL: u16 = 0x8000;
    let Some(text) = cmdline::get("partition") else { return Ok(None) };
    let number = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().map(|number| number & !FULL).filter(|number| (1..0x7fff).contains(number));
    number.map(Some).ok_or_else(|| format!("partition={text}: want a number from 1 to 0x7ffe"))
}

/// True once an RNIC was started.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The software RNIC of this kernel.
type Soft = SoftRoce<RocePort, IrqRawMutex>;

/// The RNIC of this node, before or after it gets its address.
pub(super) enum NodeRnic {
    /// A ConnectX-3, and its port as an Ethernet port if the card is on Ethernet.
    Card(Box<DrivenCard>, Option<&'static Port>),
    /// The software RNIC, over an Ethernet port.
    Soft(Arc<Soft>, &'static Port),
}

impl NodeRnic {
    /// Starts the wanted RNIC, polled by core 0, and adds a card's port to the network.
    pub(super) async fn start(wanted: Wanted, net: &'static Net) -> Result<Self, String> {
        STARTED.store(true, Ordering::Relaxed);
        let rnic = Self::find(wanted, net).await?;
        pollers::register_rnic(rnic.rnic());
        Ok(rnic)
    }

    /// Returns true if an RNIC was started, with or without success.
    pub(super) fn was_started() -> bool {
        STARTED.load(Ordering::Relaxed)
    }

    async fn find(wanted: Wanted, net: &'static Net) -> Result<Self, String> {
        if !random::is_seeded() {
            return Err("no source of randomness for keys (RDRAND, RDSEED or virtio-rng)".to_owned());
        }
        let card_network = card_network(wanted == Wanted::Auto)?;
        let choice = match wanted {
            Wanted::Auto => Some(Choice::default()),
            Wanted::Mlx4(choice) => Some(choice),
            Wanted::SoftRoce => None,
        };
        if let Some(choice) = choice {
            match mlx4::start(choice, card_network).await {
                Ok(driven) => {
                    let port = net.attach_card(driven.address(), &driven.card);
                    return Ok(Self::Card(driven.into(), port));
                }
                Err(why) if wanted != Wanted::Auto => {
                    return Err(format!("nic={}: {why}", cmdline::get("nic").unwrap_or("auto")));
                }
                Err(NoCard::Absent) => {}
                Err(why) => log::warn!("nic=auto uses softroce: {why}"),
            }
        }
        let port = net.fabric.ok_or("no network device for the fabric")?;
        let mut seed = [0; 16];
        random::fill(&mut seed);
        let config = softroce::Config::new(Gid([0; 16]), seed);
        let memory: Arc<dyn Memory> = match machine::remote_access() {
            RemoteAccess::Arena(arena) => arena.clone(),
            RemoteAccess::Lendable | RemoteAccess::Physical => Arc::new(LentMemory),
        };
        let soft = SoftRoce::new(port.attach_rnic(), memory, config);
        log::info!("rnic softroce: over port {}", port.mac());
        Ok(Self::Soft(Arc::new(soft), port))
    }

    /// Watches a card's health from now on. If the card cannot be used any more, `farewell` runs with the
    /// reason before the machine ends.
    pub(super) fn watch<F>(&self, farewell: impl FnOnce(String) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let Self::Card(driven, _) = self else { return };
        let driven = (**driven).clone();
        let watch = async move {
            let why = driven.watch().await;
            log::error!("this node ends: {why}");
            farewell(why).await;
            power::exit(Code::Refused);
        };
        exec::spawn_on(0, "card", watch).detach();
    }

    pub(super) fn rnic(&self) -> Arc<dyn Rnic> {
        match self {
            Self::Card(driven, _) => driven.card.clone(),
            Self::Soft(soft, _) => soft.clone(),
        }
    }

    /// Sets the RNIC's address. Call before queue pairs are connected.
    pub(super) fn set_gid(&self, gid: Gid) -> Result<(), String> {
        let address = Ipv6Addr::from(gid.0).to_canonical();
        match self {
            Self::Card(driven, _) => {
                driven.card.set_gid(gid).map_err(|e| format!("no address for the card: {e}"))?;
            }
            Self::Soft(soft, _) => soft.set_gid(gid),
        }
        if let Some(port) = self.port() {
            port.add_address(address);
        }
        log::info!("rnic: GID {address}");
        Ok(())
    }

    /// Returns the address of `rdma_ip=`, or `None` if the manager assigns one. An address by DHCP is waited
    /// for.
    ///
    /// # Errors
    /// A line for the user: the value is malformed, or the RNIC has no Ethernet port.
    pub(super) async fn own_address(&self, network: &'static Net) -> Result<Option<Gid>, String> {
        let text = cmdline::get("rdma_ip").unwrap_or("manager");
        if text == "manager" {
            return Ok(None);
        }
        let port = self.port().ok_or_else(|| format!("rdma_ip={text}: the port is on InfiniBand"))?;
        let address = match text {
            "dhcp" => network.lease_on(port).await,
            _ => text.parse::<Ipv4Addr>().ok().filter(is_unicast).ok_or_else(|| {
                format!("rdma_ip={text}: want manager, dhcp or the IPv4 address of one node")
            })?,
        };
        Ok(Some(Gid(address.to_ipv6_mapped().octets())))
    }

    /// Stops a card permanently, before another kernel is entered.
    pub(super) fn shut_down(&self) {
        if let Self::Card(driven, _) = self {
            driven.card.shut_down();
            log::info!("rnic mlx4: the card is shut down");
        }
    }

    /// Returns the Ethernet port that has the RNIC's address, also for IP. InfiniBand has none.
    pub(super) fn port(&self) -> Option<&'static Port> {
        match self {
            Self::Card(_, port) => *port,
            Self::Soft(_, port) => Some(port),
        }
    }
}

fn is_unicast(address: &Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_broadcast() || address.is_loopback())
}
