//! The IPv6 addresses of a port: that of its link, and one by the advertisements of routers or from the
//! settings. The port's resolver receives the advertisements.

use core::net::{IpAddr, Ipv6Addr};
use neighbour::{Advertised, link_local};
use platform::{Instant, NetworkError};
use smoltcp::wire::{IpAddress, IpCidr, Ipv6Cidr};
use verbs::MacAddr;

use super::Inner;
use crate::net::addressing::{Ipv6Addressing, Ipv6Config};
use crate::net::port::{Inner as PortInner, Port};

/// The length of the prefix of addresses on a link.
const LINK_PREFIX: u8 = 64;

/// The IPv6 addresses of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ipv6 {
    /// The address of the link; `None` if the port has no IPv6.
    link: Option<Ipv6Addr>,
    /// The other address, and the router.
    config: Option<Ipv6Config>,
}

impl Ipv6 {
    /// Returns all addresses with their networks.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpCidr> {
        let config = self.config.and_then(|config| Some(Ipv6Cidr::new(config.address?, config.prefix)));
        let link = self.link.map(|link| Ipv6Cidr::new(link, LINK_PREFIX));
        config.into_iter().chain(link).map(IpCidr::Ipv6)
    }

    /// Returns the router for other networks.
    pub(super) fn gateway(&self) -> Option<Ipv6Addr> {
        self.config.and_then(|config| config.gateway)
    }

    /// Returns the address from which the port reaches `remote`.
    fn source(&self, remote: Ipv6Addr) -> Option<Ipv6Addr> {
        if remote.is_unicast_link_local() {
            return self.link;
        }
        self.config.and_then(|config| config.address)
    }
}

impl Inner {
    /// Adds the address of the link and the fixed address, or makes the resolver request one from routers.
    pub(super) fn start_ipv6(
        &mut self,
        port: &Port,
        below: &mut PortInner,
        addressing: Ipv6Addressing,
        now: Instant,
    ) {
        let link = link_local(port.mac());
        match addressing {
            Ipv6Addressing::Off => return,
            Ipv6Addressing::Auto => below.resolver.autoconfigure(now),
            Ipv6Addressing::Static(config) => {
                if let Some(address) = config.address {
                    below.resolver.add_probed(address);
                }
                self.ipv6.config = Some(config);
            }
        }
        below.resolver.add_probed(link);
        self.ipv6.link = Some(link);
        self.apply_addresses();
    }

    /// Takes the address and the router that routers advertise, if they are others than before.
    pub(super) fn poll_ipv6(&mut self, below: &mut PortInner) {
        if let Some((address, other)) = below.resolver.take_duplicate() {
            self.drop_duplicate(address, other);
        }
        let Some(Advertised { address, prefix, router }) = below.resolver.advertised() else { return };
        let config = Some(Ipv6Config { address, prefix, gateway: router });
        if self.ipv6.config == config {
            return;
        }
        let before = self.ipv6.config.and_then(|config| config.address);
        if before != address {
            if let Some(before) = before {
                below.resolver.remove_own(before.into());
            }
            if let Some(address) = address {
                below.resolver.add_probed(address);
            }
        }
        self.ipv6.config = config;
        self.apply_addresses();
    }

    /// Stops using an address that another node has.
    fn drop_duplicate(&mut self, address: Ipv6Addr, other: MacAddr) {
        log::error!("the IPv6 address {address} is not used: the node with MAC address {other} has it, too");
        if self.ipv6.link == Some(address) {
            self.ipv6 = Ipv6::default();
        } else if let Some(config) = &mut self.ipv6.config {
            config.address = config.address.filter(|own| *own != address);
        }
        self.apply_addresses();
    }

    /// Returns the address from which the port reaches `remote`; `None` if the stack may choose.
    ///
    /// # Errors
    /// If the port has no such address.
    pub(super) fn source(&self, remote: IpAddr) -> Result<Option<IpAddress>, NetworkError> {
        match remote {
            IpAddr::V4(_) => self.config.map(|_| None),
            IpAddr::V6(remote) => self.ipv6.source(remote).map(|source| Some(IpAddress::Ipv6(source))),
        }
        .ok_or(NetworkError::NoAddress)
    }
}
