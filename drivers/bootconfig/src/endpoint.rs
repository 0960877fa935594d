//! The addresses of managers: `HOST[:PORT]`, separated by commas. An IPv6 address is in brackets.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The port of a manager, if none is named.
const PORT: u16 = 18500;
/// The greatest length of a name (RFC 1035, 2.3.4), and of a part of it.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name, which DNS resolves.
    Name(String),
}

/// The host and port of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => write!(f, "{}", SocketAddr::new(*address, self.port)),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// The reason for which a text is no list of managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadEndpoint {
    /// A part is no host and port.
    Malformed(String),
    /// A part is an IPv6 address without brackets: the end of the address and a port look the same.
    Unbracketed(String),
    /// A part is an IPv6 address that no other host has: unspecified, loopback, multicast, or mapped from
    /// IPv4.
    NoHost(String),
}

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(part) => write!(f, "`{part}` is not ADDRESS:PORT, [IPV6]:PORT or NAME:PORT"),
            Self::Unbracketed(part) => write!(f, "`{part}` is an IPv6 address without brackets: [IPV6]:PORT"),
            Self::NoHost(part) => write!(f, "`{part}` is not the IPv6 address of another host"),
        }
    }
}

/// Returns true if `text` is a name of DNS, and no number: an address that is cut is no name.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        !label.is_empty() && label.len() <= LONGEST_LABEL && letters && !label.starts_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= LONGEST_NAME
        && text.split('.').all(is_label)
        && !text.rsplit('.').next().is_some_and(is_number)
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// Parses an IPv6 address in brackets, with or without a port.
fn ipv6_endpoint(part: &str) -> Result<Endpoint, BadEndpoint> {
    let parts = part.strip_prefix('[').and_then(|rest| rest.split_once(']')).and_then(|(host, rest)| {
        let port = if rest.is_empty() { PORT } else { port(rest.strip_prefix(':')?)? };
        Some((host.parse::<Ipv6Addr>().ok()?, port))
    });
    let (address, port) = parts.ok_or_else(|| BadEndpoint::Malformed(part.into()))?;
    if !is_host(address) {
        return Err(BadEndpoint::NoHost(part.into()));
    }
    Ok(Endpoint { host: Host::Address(address.into()), port })
}

/// Returns true for an IPv6 address that another host can have.
#[must_use]
pub fn is_host(address: Ipv6Addr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_special && address.to_ipv4_mapped().is_none()
}

fn endpoint(part: &str) -> Result<Endpoint, BadEndpoint> {
    if part.starts_with('[') {
        return ipv6_endpoint(part);
    }
    if part.parse::<Ipv6Addr>().is_ok() {
        return Err(BadEndpoint::Unbracketed(part.into()));
    }
    let (host, port) = match part.rsplit_once(':') {
        Some((host, _)) if host.parse::<Ipv6Addr>().is_ok() => {
            return Err(BadEndpoint::Unbracketed(part.into()));
        }
        Some((host, text)) => (host, port(text)),
        None => (part, Some(PORT)),
    };
    let malformed = || BadEndpoint::Malformed(part.into());
    let port = port.ok_or_else(malformed)?;
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => Host::Address(address.into()),
        Err(_) if is_name(host) => Host::Name(host.into()),
        Err(_) => return Err(malformed()),
    };
    Ok(Endpoint { host, port })
}

/// Parses a list of managers, in the order in which a node tries them.
///
/// # Errors
/// Names the part that is malformed.
pub fn endpoints(text: &str) -> Result<Vec<Endpoint>, BadEndpoint> {
    text.split(',').map(endpoint).collect()
}
