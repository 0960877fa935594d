//! Stateless autoconfiguration of a port (RFC 4862) by the advertisements of routers (RFC 4861).
//!
//! In addition to the address of its link, the port has one address with the first prefix that a router
//! advertises, and one router. The resolver asks whether another node has the same address.

use crate::frame::{ICMPV6, Writer, checksum, multicast, u16_at, v6_at};
use core::net::Ipv6Addr;
use core::time::Duration;
use platform::Instant;
use verbs::MacAddr;

/// The time between the first two solicitations (RFC 4861, 10), which doubles up to the longest.
const FIRST_INTERVAL: Duration = Duration::from_secs(4);
const LONGEST_INTERVAL: Duration = Duration::from_secs(64);
/// The lifetime below which no advertisement shortens that of an address (RFC 4862, 5.5.3).
const PROTECTED: Duration = Duration::from_secs(2 * 60 * 60);
const SOLICITATION: u8 = 133;
pub(crate) const ADVERTISEMENT: u8 = 134;
/// The kinds of options: the sender's Ethernet address, and a prefix.
const SOURCE: u8 = 1;
const PREFIX: u8 = 3;
/// The group of all routers.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Returns the address of a port on its link: fe80::/64 and the port's Ethernet address (RFC 4291, app. A).
#[must_use]
pub fn link_local(mac: MacAddr) -> Ipv6Addr {
    with_prefix(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), mac)
}

fn with_prefix(prefix: Ipv6Addr, mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let identifier = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(identifier))
}

/// The settings of a port that routers advertise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advertised {
    /// The address.
    pub address: Option<Ipv6Addr>,
    /// The length of the prefix of the addresses that are reached without a router: 64, or 128 if the router
    /// advertises that no other address is.
    pub prefix: u8,
    /// The router for other networks, by its address on the link.
    pub router: Option<Ipv6Addr>,
}

/// An address, and the end of its lifetime.
#[derive(Clone, Copy, Debug)]
struct Leased {
    address: Ipv6Addr,
    until: Instant,
}

/// The state of the autoconfiguration of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Autoconfiguration {
    mac: MacAddr,
    /// The next solicitation, as long as no router has answered, and the time to the one after it.
    ask: Option<(Instant, Duration)>,
    address: Option<Leased>,
    prefix: u8,
    router: Option<Leased>,
    /// The address that another node has.
    refused: Option<Ipv6Addr>,
}

impl Autoconfiguration {
    /// Begins with a solicitation at `now`.
    pub(crate) const fn new(mac: MacAddr, now: Instant) -> Self {
        let ask = Some((now, FIRST_INTERVAL));
        Self { mac, ask, address: None, prefix: 64, router: None, refused: None }
    }

    /// Returns the present settings.
    pub(crate) fn advertised(&self) -> Advertised {
        let address = |leased: Option<Leased>| leased.map(|leased| leased.address);
        Advertised { address: address(self.address), prefix: self.prefix, router: address(self.router) }
    }

    /// Ends the use of an address that another node has. That of the link ends everything, because all others
    /// contain the same Ethernet address.
    pub(crate) fn refuse(&mut self, address: Ipv6Addr) {
        self.refused = Some(address);
        if address == link_local(self.mac) {
            (self.address, self.router, self.ask) = (None, None, None);
        } else {
            self.address = self.address.filter(|known| known.address != address);
        }
    }

    /// Handles a frame. All but right advertisements are ignored.
    pub(crate) fn input(&mut self, now: Instant, frame: &[u8]) {
        if self.refused == Some(link_local(self.mac)) {
            return;
        }
        if let Some((router, body)) = parse(frame) {
            self.hear(now, router, body);
        }
    }

    fn hear(&mut self, now: Instant, router: Ipv6Addr, body: &[u8]) -> Option<()> {
        let lifetime = Duration::from_secs(u16_at(body, 6)?.into());
        if self.router.is_none_or(|known| known.address == router) {
            let leased = Leased { address: router, until: now + lifetime };
            self.router = (!lifetime.is_zero()).then_some(leased);
        }
        let mut rest = body.get(16..)?;
        while let Some((option, next)) = first_option(rest) {
            self.hear_prefix(now, option);
            rest = next;
        }
        if self.router.is_some() || self.address.is_some() {
            self.ask = None;
        }
        Some(())
    }

    /// Handles the option with a prefix (RFC 4861, 4.6.2).
    fn hear_prefix(&mut self, now: Instant, option: &[u8]) -> Option<()> {
        const ON_LINK: u8 = 0x80;
        const AUTONOMOUS: u8 = 0x40;
        let [PREFIX, 4, 64, flags, a, b, c, d, e, f, g, h, ..] = *option else { return None };
        let (valid, preferred) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let prefix = v6_at(option, 16)?;
        let prefix = Ipv6Addr::from_bits(prefix.to_bits() & !u128::from(u64::MAX));
        let is_usable = !prefix.is_unicast_link_local() && !prefix.is_multicast() && !prefix.is_unspecified();
        if flags & AUTONOMOUS == 0 || preferred > valid || !is_usable {
            return None;
        }
        let address = with_prefix(prefix, self.mac);
        if self.refused == Some(address) {
            return None;
        }
        let until = now + Duration::from_secs(valid.into());
        let until = match self.address {
            None if valid > 0 => until,
            Some(known) if known.address == address => until.max(known.until.min(now + PROTECTED)),
            _ => return None,
        };
        self.address = Some(Leased { address, until });
        self.prefix = if flags & ON_LINK == 0 { 128 } else { 64 };
        Some(())
    }

    /// Ends what is no longer valid. Writes a solicitation if it is due, and returns its length.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        let had_any = self.router.is_some() || self.address.is_some();
        self.router = self.router.filter(|router| now < router.until);
        self.address = self.address.filter(|address| now < address.until);
        if had_any && self.router.is_none() && self.address.is_none() {
            self.ask = Some((now, FIRST_INTERVAL));
        }
        let (at, interval) = self.ask.filter(|(at, _)| *at <= now)?;
        self.ask = Some((at.max(now) + interval, (interval * 2).min(LONGEST_INTERVAL)));
        Some(solicitation(self.mac, out))
    }

    /// Returns the time at which [`poll`](Self::poll) must be called next, or `None` if nothing is pending.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let ends = self.router.iter().chain(&self.address).map(|leased| leased.until);
        ends.chain(self.ask.map(|(at, _)| at)).min()
    }
}

/// Returns the first of some options, and the rest.
fn first_option(options: &[u8]) -> Option<(&[u8], &[u8])> {
    let units = *options.get(1)?;
    options.split_at_checked(usize::from(units) * 8).filter(|_| units > 0)
}

/// Returns true if some options have right lengths.
fn are_whole(mut options: &[u8]) -> bool {
    while let Some((_, next)) = first_option(options) {
        options = next;
    }
    options.is_empty()
}

/// Returns the sender and the message of an advertisement that is valid by RFC 4861, 6.1.2.
fn parse(frame: &[u8]) -> Option<(Ipv6Addr, &[u8])> {
    let packet = frame.get(14..)?;
    let len = usize::from(u16_at(packet, 4)?);
    if u16_at(frame, 12)? != 0x86dd || packet.first()? >> 4 != 6 || packet.get(6..8)? != [ICMPV6, 255] {
        return None;
    }
    let (source, destination) = (v6_at(packet, 8)?, v6_at(packet, 24)?);
    let body = packet.get(40..)?.get(..len)?;
    let is_right = source.is_unicast_link_local() && checksum(source, destination, body) == 0;
    (is_right && body.get(..2)? == [ADVERTISEMENT, 0] && are_whole(body.get(16..)?)).then_some((source, body))
}

/// Writes a solicitation to all routers, and returns its length.
fn solicitation(mac: MacAddr, out: &mut [u8]) -> usize {
    let from = link_local(mac);
    let mut body = [0; 16];
    body[0] = SOLICITATION;
    body[8..10].copy_from_slice(&[SOURCE, 1]);
    body[10..].copy_from_slice(&mac.0);
    let sum = checksum(from, ROUTERS, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut w = Writer { out, len: 0 };
    w.put(&multicast(ROUTERS).0).put(&mac.0).put(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, ICMPV6, 255]);
    w.put(&from.octets()).put(&ROUTERS.octets()).put(&body);
    w.len
}
