//! The sources of a port's addresses: `ip=` and `gw=` for IPv4, `ip6=` and `gw6=` for IPv6.

use alloc::format;
use alloc::string::String;
use bootconfig::is_host;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::cmdline;

/// The sources of a port's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addressing {
    pub ipv4: Ipv4Addressing,
    pub ipv6: Ipv6Addressing,
}

/// The source of a port's IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv4Addressing {
    /// The port has no IPv4 address.
    Off,
    /// DHCP.
    Dhcp,
    /// A fixed address.
    Static(Ipv4Config),
}

/// The source of a port's IPv6 address, in addition to that of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6Addressing {
    /// The port has no IPv6 address at all.
    Off,
    /// The advertisements of routers.
    Auto,
    /// A fixed address.
    Static(Ipv6Config),
}

/// An IPv4 address and its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Config {
    pub address: Ipv4Addr,
    /// The length of the network's prefix, in bits.
    pub prefix: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv4Addr>,
}

/// An IPv6 address and its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6Config {
    /// The address, if the port has another one than that of its link.
    pub address: Option<Ipv6Addr>,
    /// The length of the network's prefix, in bits.
    pub prefix: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv6Addr>,
}

impl From<Ipv4Addressing> for Addressing {
    /// Returns addressing by IPv4 alone.
    fn from(ipv4: Ipv4Addressing) -> Self {
        Self { ipv4, ipv6: Ipv6Addressing::Off }
    }
}

/// Parses `ip=`, `gw=`, `ip6=` and `gw6=`.
///
/// # Errors
/// A line for the user: a value is malformed, or leaves the port without any address.
pub(super) fn of_settings() -> Result<Addressing, String> {
    let all = Addressing { ipv4: ipv4()?, ipv6: ipv6()? };
    if all == Addressing::from(Ipv4Addressing::Off) {
        return Err("ip=off ip6=off: the management port needs an address".into());
    }
    Ok(all)
}

fn ipv4() -> Result<Ipv4Addressing, String> {
    let gateway = match cmdline::get("gw") {
        None => None,
        Some(text) => Some(text.parse::<Ipv4Addr>().map_err(|_| format!("gw={text}: not an IPv4 address"))?),
    };
    let text = match cmdline::get("ip") {
        None | Some("dhcp") => return Ok(Ipv4Addressing::Dhcp),
        Some("off") => return Ok(Ipv4Addressing::Off),
        Some(text) => text,
    };
    let parts = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse().ok()?, prefix.parse::<u8>().ok().filter(|p| (1..=32).contains(p))?))
    });
    let (address, prefix) =
        parts.ok_or_else(|| format!("ip={text}: want ADDRESS/PREFIX (IPv6: ip6=), dhcp or off"))?;
    Ok(Ipv4Addressing::Static(Ipv4Config { address, prefix, gateway }))
}

fn ipv6() -> Result<Ipv6Addressing, String> {
    let gateway = match cmdline::get("gw6") {
        None => None,
        Some(text) => {
            let router = text.parse().ok().filter(|router| is_host(*router));
            Some(router.ok_or_else(|| format!("gw6={text}: not the IPv6 address of a router"))?)
        }
    };
    let text = cmdline::get("ip6").unwrap_or("auto");
    let source = match text {
        "auto" => Ipv6Addressing::Auto,
        "off" => Ipv6Addressing::Off,
        _ => {
            let parts = text.split_once('/').and_then(|(address, prefix)| {
                let address = address.parse().ok().filter(|address| is_host(*address))?;
                Some((address, prefix.parse::<u8>().ok().filter(|p| (1..=128).contains(p))?))
            });
            let (address, prefix) =
                parts.ok_or_else(|| format!("ip6={text}: want ADDRESS/PREFIX, auto or off"))?;
            Ipv6Addressing::Static(Ipv6Config { address: Some(address), prefix, gateway })
        }
    };
    match (source, gateway) {
        (Ipv6Addressing::Static(_), _) | (_, None) => Ok(source),
        (_, Some(gateway)) => Err(format!("gw6={gateway}: needs ip6=ADDRESS/PREFIX")),
    }
}
