//! The RNIC of this machine: what `nic=` asks for, of what there is.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv6Addr;
use softroce::SoftRoce;
use verbs::{Gid, Rnic};

use crate::boot::cmdline;
use crate::connectx3::{self, Card, NoCard};
use crate::mm::memory::PhysicalMemory;
use crate::net::port::{Port, RocePort};
use crate::random;
use crate::sync::IrqRawMutex;

/// What `nic=` asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A card that starts, or else the software.
    Auto,
    /// A card.
    Mlx4,
    /// The software.
    SoftRoce,
}

impl Wanted {
    /// What the command line says.
    pub fn asked() -> Result<Self, String> {
        match cmdline::get("nic").unwrap_or("auto") {
            "auto" => Ok(Self::Auto),
            "mlx4" => Ok(Self::Mlx4),
            "softroce" => Ok(Self::SoftRoce),
            other => Err(format!("nic={other}: want auto, mlx4 or softroce")),
        }
    }
}

/// The software RNIC of this kernel.
type Soft = SoftRoce<RocePort, IrqRawMutex>;

/// The RNIC, which has no address yet.
pub enum Fabric {
    /// A ConnectX-3.
    Card(Arc<Card>),
    /// The software, over an Ethernet port.
    Soft(Arc<Soft>, &'static Port),
}

impl Fabric {
    /// Starts what is wanted. `port`: where the software would be.
    pub async fn start(wanted: Wanted, port: Option<&'static Port>) -> Result<Self, String> {
        if !random::is_seeded() {
            return Err("no source of randomness for keys (RDRAND, RDSEED or virtio-rng)".to_owned());
        }
        if wanted != Wanted::SoftRoce {
            match connectx3::start().await {
                Ok(card) => return Ok(Self::Card(card)),
                Err(why) if wanted == Wanted::Mlx4 => return Err(format!("nic=mlx4: {why}")),
                Err(NoCard::Absent) => {}
                Err(why) => log::warn!("nic=auto takes softroce: {why}"),
            }
        }
        let port = port.ok_or("no network device for the fabric")?;
        let mut seed = [0; 16];
        random::fill(&mut seed);
        let config = softroce::Config::new(Gid([0; 16]), seed);
        let soft = SoftRoce::new(port.attach_rnic(), Arc::new(PhysicalMemory), config);
        log::info!("rnic softroce: over port {}", port.mac());
        Ok(Self::Soft(Arc::new(soft), port))
    }

    /// The RNIC itself.
    pub fn rnic(&self) -> Arc<dyn Rnic> {
        match self {
            Self::Card(card) => card.clone(),
            Self::Soft(soft, _) => soft.clone(),
        }
    }

    /// Gives it its address; to be called before queue pairs are connected.
    pub fn set_gid(&self, gid: Gid) -> Result<(), String> {
        let address = Ipv6Addr::from(gid.0).to_canonical();
        match self {
            Self::Card(card) => card.set_gid(gid).map_err(|e| format!("no address for the card: {e}"))?,
            Self::Soft(soft, port) => {
                soft.set_gid(gid);
                port.add_address(address);
            }
        }
        log::info!("rnic: GID {address}");
        Ok(())
    }

    /// The Ethernet port that the RNIC's address is at, also for IP. A card's own is not driven.
    pub fn port(&self) -> Option<&'static Port> {
        match self {
            Self::Card(_) => None,
            Self::Soft(_, port) => Some(port),
        }
    }
}
