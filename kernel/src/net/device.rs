//! A port as smoltcp's device. smoltcp has a neighbour table of its own. Its ARP requests and neighbour
//! solicitations are never sent, but answered here from the port's resolver, so that one table is
//! authoritative.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use heapless::Vec;
use neighbour::{FRAME_MAX, Neighbour, Resolution, Traffic, advertisement, arp_reply, classify};
use platform::Instant;
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use verbs::MacAddr;

use super::nic::{ETHERNET_HEADER, Transmit};
use super::port::{HostFrames, Inner};

/// The time for which an address is requested. smoltcp asks again a second after a request without an answer.
const RESOLVE: Duration = Duration::from_secs(3);
/// The most addresses for which smoltcp waits at a time: gateway and manager.
const WAITING: usize = 8;

/// Addresses that smoltcp has asked for and that have not been answered.
#[derive(Default)]
pub(super) struct Queries {
    waiting: Vec<IpAddr, WAITING>,
}

impl Queries {
    /// Returns a requested address that the resolver knows by now.
    fn answer(&mut self, inner: &mut Inner, now: Instant) -> Option<(IpAddr, MacAddr)> {
        let mut answer = None;
        self.waiting.retain(|ip| {
            if answer.is_some() {
                return true;
            }
            match inner.resolver.lookup(now, *ip) {
                Resolution::Known(mac) => {
                    answer = Some((*ip, mac));
                    false
                }
                Resolution::Pending => true,
                Resolution::Failed | Resolution::Unknown => false,
            }
        });
        answer
    }

    /// Returns true if an answer is due. Cheap, for the poller.
    pub(super) fn has_answer(&self, inner: &mut Inner, now: Instant) -> bool {
        let known = |ip: &IpAddr| matches!(inner.resolver.lookup(now, *ip), Resolution::Known(_));
        self.waiting.iter().any(known)
    }
}

/// A locked port, as smoltcp's device.
pub(super) struct PortDevice<'a> {
    /// The port's locked state.
    pub inner: &'a mut Inner,
    /// Addresses for which smoltcp waits.
    pub queries: &'a mut Queries,
    /// The present time.
    pub now: Instant,
    /// The port's Ethernet address.
    pub mac: MacAddr,
    /// The port's MTU, in bytes.
    pub mtu: usize,
    /// True if a software RNIC handles RoCE frames.
    pub rnic: bool,
}

/// A frame for smoltcp: received from the wire, or an answer to its query for a neighbour.
pub(super) enum Rx<'a> {
    /// A received frame, in place.
    Wire(HostFrames<'a>),
    /// A synthesised answer, and its length.
    Answer([u8; FRAME_MAX], usize),
}

/// Room for a frame that smoltcp sends.
pub(super) struct Tx<'a> {
    tx: &'a mut dyn Transmit,
    resolver: &'a mut neighbour::Resolver,
    queries: &'a mut Queries,
    now: Instant,
}

impl Device for PortDevice<'_> {
    type RxToken<'a>
        = Rx<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Tx<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Rx<'_>, Tx<'_>)> {
        // smoltcp sends its answer at once, so no frame is received without room for an answer.
        if !self.inner.device.tx.has_room() {
            return None;
        }
        if let Some((ip, mac)) = self.queries.answer(self.inner, self.now) {
            let mut frame = [0; FRAME_MAX];
            let len = match ip {
                IpAddr::V4(ip) => {
                    // smoltcp compares the receiver's address with its own; the resolver asks on its behalf.
                    let own = self.inner.resolver.own_ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED);
                    arp_reply(&mut frame, ip, mac, own, self.mac)
                }
                IpAddr::V6(ip) => advertisement(&mut frame, ip, mac),
            };
            let (_, tx, resolver) = self.inner.split();
            return Some((Rx::Answer(frame, len), Tx { tx, resolver, queries: self.queries, now: self.now }));
        }
        if !self.inner.has_host_frame(self.now, self.rnic) {
            return None;
        }
        let (frames, tx, resolver) = self.inner.split();
        Some((Rx::Wire(frames), Tx { tx, resolver, queries: self.queries, now: self.now }))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Tx<'_>> {
        if !self.inner.device.tx.has_room() {
            return None;
        }
        let (_, tx, resolver) = self.inner.split();
        Some(Tx { tx, resolver, queries: self.queries, now: self.now })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = ETHERNET_HEADER + self.mtu;
        caps
    }
}

impl smoltcp::phy::RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        match self {
            Self::Wire(frames) => frames.take(f),
            Self::Answer(frame, len) => f(frame.get(..len).unwrap_or_default()),
        }
    }
}

impl smoltcp::phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Some(out) = self.tx.buffer(len) else {
            // Tokens are given only with room, and smoltcp keeps to the MTU.
            panic!("smoltcp sends {len} bytes without room for them");
        };
        let result = f(out);
        if classify(out) != Traffic::Neighbour {
            self.tx.send(len);
            return result;
        }
        if let Some(Neighbour { request: true, target: ip, .. }) = Neighbour::parse(out) {
            self.resolver.resolve(self.now, ip, self.now + RESOLVE);
            if !self.queries.waiting.contains(&ip) {
                // If there is no room, smoltcp asks again.
                let _ = self.queries.waiting.push(ip);
            }
        }
        result
    }
}
