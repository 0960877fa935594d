//! The table of neighbours of one port: resolution and ageing.

use crate::frame::{FRAME_MAX, Neighbour, Outgoing};
use crate::router::{Advertised, Autoconfiguration};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use heapless::Vec;
use platform::Instant;
use verbs::MacAddr;

/// The lifetime of a learned address.
const LIFETIME: Duration = Duration::from_secs(60);
/// The time before an entry's end at which an entry in use is confirmed by a query.
const CONFIRM: Duration = Duration::from_secs(20);
/// The time between two queries for the same address: the first, which doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// The time for which a failed resolution is remembered, so that a caller learns of it.
const FAILED: Duration = Duration::from_secs(1);
/// The maximum number of addresses of a port.
const OWN_MAX: usize = 8;
/// The time for which another node can object to an address (RFC 4861, 10: `RetransTimer`).
const PROBE: Duration = Duration::from_secs(1);
/// The maximum number of neighbours of a port: gateway, manager, and peers whose address the manager does not
/// provide.
const TABLE_MAX: usize = 64;
/// The maximum number of answers that wait for room in the transmit ring.
const ANSWERS_MAX: usize = 8;

/// The state of the resolution of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The Ethernet address is known.
    Known(MacAddr),
    /// Queries are being sent.
    Pending,
    /// No answer arrived before the deadline.
    Failed,
    /// The address was not queried.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Known { mac: MacAddr, until: Instant, next_ask: Instant },
    Asked { next_ask: Instant, gap: Duration, deadline: Instant },
    Failed { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    used: Instant,
    state: State,
}

/// An own address that other nodes may have, too.
#[derive(Clone, Copy, Debug)]
struct Probed {
    ip: Ipv6Addr,
    /// The end of the time in which they can object. Set by the probe, which is sent first.
    until: Option<Instant>,
    /// The Ethernet address of the node that objects.
    other: Option<MacAddr>,
}

/// The resolver of one port.
#[derive(Debug)]
pub struct Resolver {
    mac: MacAddr,
    own: Vec<IpAddr, OWN_MAX>,
    table: Vec<Entry, TABLE_MAX>,
    answers: Vec<Outgoing, ANSWERS_MAX>,
    routers: Option<Autoconfiguration>,
    probed: Vec<Probed, OWN_MAX>,
}

impl Resolver {
    /// Makes the resolver of a port with Ethernet address `mac`, without IP addresses.
    #[must_use]
    pub const fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            own: Vec::new(),
            table: Vec::new(),
            answers: Vec::new(),
            routers: None,
            probed: Vec::new(),
        }
    }

    /// Adds an address for which the port answers. Returns false if there are eight already.
    pub fn add_own(&mut self, ip: IpAddr) -> bool {
        self.own.contains(&ip) || self.own.push(ip).is_ok()
    }

    /// Adds an IPv6 address as [`add_own`](Self::add_own) does, and asks whether another node has it. The
    /// port uses it meanwhile instead of waiting for a second. [`take_duplicate`] says if another
    /// node objects.
    ///
    /// [`take_duplicate`]: Self::take_duplicate
    pub fn add_probed(&mut self, ip: Ipv6Addr) -> bool {
        if !self.own.contains(&ip.into()) {
            // There is room, because these are own addresses.
            let _ = self.probed.push(Probed { ip, until: None, other: None });
        }
        self.add_own(ip.into())
    }

    /// Returns an address that another node has, and that node's Ethernet address. The port no longer answers
    /// for it, and no advertisement of a router brings it back.
    pub fn take_duplicate(&mut self) -> Option<(Ipv6Addr, MacAddr)> {
        let found = |probed: &Probed| Some((probed.ip, probed.other?));
        let (ip, other) = self.probed.iter().find_map(found)?;
        self.remove_own(ip.into());
        if let Some(routers) = &mut self.routers {
            routers.refuse(ip);
        }
        Some((ip, other))
    }

    /// Notes the node that has an address for which a probe was sent: it advertises it, or probes it as well.
    fn object(&mut self, now: Instant, heard: &Neighbour, from: MacAddr) {
        if from == self.mac || (heard.request && heard.sender.is_some()) {
            return;
        }
        let probed = self.probed.iter_mut().find(|probed| heard.target == IpAddr::V6(probed.ip));
        if let Some(probed) = probed.filter(|probed| probed.until.is_some_and(|until| now < until)) {
            probed.other.get_or_insert(from);
        }
    }

    /// Removes an address, for which the port no longer answers.
    pub fn remove_own(&mut self, ip: IpAddr) {
        self.own.retain(|own| *own != ip);
        self.probed.retain(|probed| IpAddr::V6(probed.ip) != ip);
    }

    /// Returns the first own IPv4 address.
    #[must_use]
    pub fn own_ipv4(&self) -> Option<Ipv4Addr> {
        self.own.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        })
    }

    /// Starts to ask routers for an IPv6 address and a router. The caller adds the address to the port's own,
    /// and must have added that of the link.
    pub fn autoconfigure(&mut self, now: Instant) {
        self.routers = Some(Autoconfiguration::new(self.mac, now));
    }

    /// Returns the settings that routers advertise, or `None` if they are not asked.
    #[must_use]
    pub fn advertised(&self) -> Option<Advertised> {
        self.routers.as_ref().map(Autoconfiguration::advertised)
    }

    /// Handles a frame that [`classify`](crate::classify) assigned to the resolver. [`poll`](Self::poll)
    /// returns the answers.
    pub fn input(&mut self, now: Instant, frame: &[u8]) {
        let Some(heard) = Neighbour::parse(frame) else {
            if let Some(routers) = &mut self.routers {
                routers.input(now, frame);
            }
            return;
        };
        let from = frame.get(6..12).and_then(|bytes| Some(MacAddr(bytes.try_into().ok()?)));
        if let Some(from) = from {
            self.object(now, &heard, from);
        }
        let for_us = self.own.contains(&heard.target);
        if let Some(mac) = heard.mac {
            // An advertisement is about its target; all other frames are about their sender.
            let of = match heard.target {
                IpAddr::V6(_) if !heard.request => Some(heard.target),
                _ => heard.sender,
            };
            if let Some(ip) = of.filter(|ip| !self.own.contains(ip) && !ip.is_multicast()) {
                self.learn(now, ip, mac, for_us && heard.request);
            }
        }
        if for_us && heard.request {
            let to = heard.sender;
            // A solicitation may lack its sender's Ethernet address; the frame has it.
            if let Some(mac) = heard.mac.or(from) {
                // If there is no room, the querying node asks again.
                let _ = self.answers.push(Outgoing::Tell { target: heard.target, to, mac });
            }
        }
    }

    /// Stores `ip` at `mac`, if the entry exists, or if `new` is set.
    fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, new: bool) {
        let state = State::Known { mac, until: now + LIFETIME, next_ask: now + (LIFETIME - CONFIRM) };
        match self.table.iter_mut().find(|e| e.ip == ip) {
            Some(entry) => entry.state = state,
            None if new => self.insert(Entry { ip, used: now, state }),
            None => {}
        }
    }

    fn insert(&mut self, entry: Entry) {
        if self.table.is_full()
            && let Some(oldest) = self.table.iter().enumerate().min_by_key(|(_, e)| e.used).map(|(i, _)| i)
        {
            self.table.swap_remove(oldest);
        }
        let _ = self.table.push(entry);
    }

    /// Returns the state of `ip`.
    pub fn lookup(&mut self, now: Instant, ip: IpAddr) -> Resolution {
        let Some(entry) = self.table.iter_mut().find(|e| e.ip == ip) else { return Resolution::Unknown };
        entry.used = now;
        match entry.state {
            State::Known { mac, until, .. } if now < until => Resolution::Known(mac),
            State::Asked { deadline, .. } if now < deadline => Resolution::Pending,
            State::Failed { until } if now < until => Resolution::Failed,
            State::Asked { .. } => Resolution::Failed,
            _ => Resolution::Unknown,
        }
    }

    /// Returns the state of `ip` as [`lookup`](Self::lookup) does, and starts queries until `deadline` if it
    /// is unknown or failed.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr, deadline: Instant) -> Resolution {
        match self.lookup(now, ip) {
            Resolution::Unknown | Resolution::Failed => {}
            done => return done,
        }
        let state = State::Asked { next_ask: now, gap: FIRST_RETRY, deadline };
        match self.table.iter_mut().find(|e| e.ip == ip) {
            Some(entry) => entry.state = state,
            None => self.insert(Entry { ip, used: now, state }),
        }
        Resolution::Pending
    }

    /// Writes the next frame to send into `out` (at least [`FRAME_MAX`] bytes) and returns its length. Must
    /// be called until it returns `None`. The caller must send each frame: it is not returned again.
    pub fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        debug_assert!(out.len() >= FRAME_MAX);
        if let Some(answer) = self.answers.pop() {
            return Some(answer.emit(self.mac, out));
        }
        if let Some(probed) = self.probed.iter_mut().find(|probed| probed.until.is_none()) {
            probed.until = Some(now + PROBE);
            return Some(Outgoing::Probe { target: probed.ip }.emit(self.mac, out));
        }
        self.probed.retain(|p| p.other.is_some() || p.until.is_none_or(|until| now < until));
        if let Some(len) = self.routers.as_mut().and_then(|routers| routers.poll(now, out)) {
            return Some(len);
        }
        self.table.retain(
            |e| !matches!(e.state, State::Known { until, .. } | State::Failed { until } if now >= until),
        );
        let (mac, own) = (self.mac, &self.own);
        self.table.iter_mut().find_map(|e| match &mut e.state {
            State::Asked { deadline, .. } if now >= *deadline => {
                e.state = State::Failed { until: now + FAILED };
                None
            }
            State::Asked { next_ask, gap, .. } if now >= *next_ask => {
                *next_ask = now + *gap;
                *gap = (*gap * 2).min(LONGEST_RETRY);
                ask(own, e.ip, None, mac, out)
            }
            // An entry in use is confirmed before its end; an idle one expires.
            State::Known { mac: to, until, next_ask } if now >= *next_ask => {
                let in_use = e.used + LIFETIME > *until;
                *next_ask = if in_use { now + LONGEST_RETRY } else { *until };
                if in_use { ask(own, e.ip, Some(*to), mac, out) } else { None }
            }
            _ => None,
        })
    }

    /// Returns the time at which [`poll`](Self::poll) must be called next, or `None` if nothing is pending.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.answers.is_empty() || self.probed.iter().any(|probed| probed.until.is_none()) {
            return Some(Instant::ZERO);
        }
        let at = |e: &Entry| match e.state {
            State::Known { next_ask, until, .. } => next_ask.min(until),
            State::Asked { next_ask, deadline, .. } => next_ask.min(deadline),
            State::Failed { until } => until,
        };
        let routers = self.routers.as_ref().and_then(Autoconfiguration::next_deadline);
        self.table.iter().map(at).chain(routers).min()
    }
}

/// Makes a query for `ip` from the first own address of its family (IPv4: from 0.0.0.0 if there is none).
fn ask(own: &[IpAddr], ip: IpAddr, to: Option<MacAddr>, mac: MacAddr, out: &mut [u8]) -> Option<usize> {
    let me = own.iter().copied().find(|o| o.is_ipv4() == ip.is_ipv4());
    let me = match (me, ip) {
        (Some(me), _) => me,
        (None, IpAddr::V4(_)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (None, IpAddr::V6(_)) => return None,
    };
    Some(Outgoing::Ask { me, target: ip, to }.emit(mac, out))
}
