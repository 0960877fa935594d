//! The RNIC of this machine, selected by `nic=`.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv6Addr;
use platform::Memory;
use softroce::SoftRoce;
use verbs::{Gid, Rnic};

use super::pollers;
use crate::machine::{self, RemoteAccess};
use crate::mlx4::{self, Choice, DrivenCard, NoCard};
use crate::mm::memory::LentMemory;
use crate::net::Net;
use crate::net::port::{Port, RocePort};
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
        let wrong = || format!("nic={text}: want auto, softroce, mlx4 or mlx4:PCI-ADDRESS/PORT");
        choice.map(Self::Mlx4).ok_or_else(wrong)
    }

    /// Parses the text behind `mlx4`: `:ADDRESS`, `/PORT`, both or neither.
    fn card(text: &str) -> Option<Choice> {
        let (address, port) = match text.split_once('/') {
            Some((address, port)) => (address, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let address = match address {
            "" => None,
            address => Some(address.strip_prefix(':')?.parse().ok()?),
        };
        Some(Choice { address, port })
    }
}

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
        let rnic = Self::find(wanted, net).await?;
        pollers::register_rnic(rnic.rnic());
        Ok(rnic)
    }

    async fn find(wanted: Wanted, net: &'static Net) -> Result<Self, String> {
        if !random::is_seeded() {
            return Err("no source of randomness for keys (RDRAND, RDSEED or virtio-rng)".to_owned());
        }
        let choice = match wanted {
            Wanted::Auto => Some(Choice::default()),
            Wanted::Mlx4(choice) => Some(choice),
            Wanted::SoftRoce => None,
        };
        if let Some(choice) = choice {
            match mlx4::start(choice).await {
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

    /// Returns the Ethernet port that has the RNIC's address, also for IP. InfiniBand has none.
    pub(super) fn port(&self) -> Option<&'static Port> {
        match self {
            Self::Card(_, port) => *port,
            Self::Soft(_, port) => Some(port),
        }
    }
}
