//! The addresses of managers: `HOST[:PORT]`, separated by commas.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

/// The port of a manager, if none is named.
const PORT: u16 = 18500;
/// The greatest length of a name (RFC 1035, 2.3.4), and of a part of it.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(Ipv4Addr),
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
            Host::Address(address) => write!(f, "{address}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// The reason for which a text is no list of managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadEndpoint {
    /// A part is no host and port.
    Malformed(String),
    /// A part is an IPv6 address. Appliances reach managers by IPv4.
    IsIpv6(String),
}

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(part) => write!(f, "`{part}` is not ADDRESS:PORT or NAME:PORT"),
            Self::IsIpv6(part) => write!(f, "`{part}` is an IPv6 address, and appliances use IPv4"),
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

fn endpoint(part: &str) -> Result<Endpoint, BadEndpoint> {
    let is_ipv6 = |text: &str| text.trim_matches(['[', ']']).parse::<Ipv6Addr>().is_ok();
    let (host, port) = match part.rsplit_once(':') {
        _ if is_ipv6(part) => return Err(BadEndpoint::IsIpv6(part.into())),
        Some((host, _)) if is_ipv6(host) => return Err(BadEndpoint::IsIpv6(part.into())),
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)),
        None => (part, Some(PORT)),
    };
    let malformed = || BadEndpoint::Malformed(part.into());
    let port = port.ok_or_else(malformed)?;
    let host = match host.parse() {
        Ok(address) => Host::Address(address),
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
