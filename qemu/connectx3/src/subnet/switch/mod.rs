//! An InfiniBand switch, which forwards packets as its subnet manager has configured it. Its management is in
//! the module `agent`.

mod agent;
mod notice;
mod tables;

use super::Traffic;
use super::identity::{Identity, NodeKind};
use super::port::ManagedPort;
use super::port_info::LinkState;
use super::training::{Change, Training};
use notice::Notice;
use platform::Instant;
use roce::wire::{CABLE, ETHERTYPE_INFINIBAND, Ethernet, Lrh, Symbol, vcrc};
use tables::Tables;
use verbs::MacAddr;

/// The offset of a packet in a frame.
const START: usize = Ethernet::LEN + Symbol::LEN;
const VCRC_LEN: usize = 2;
/// The maximum number of external ports: the bits in a row of the multicast table, without port 0.
pub const MAX_PORTS: usize = 63;

/// An external port.
#[derive(Debug)]
struct Port {
    managed: ManagedPort,
    training: Training,
    traffic: Traffic,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    identity: Identity,
    mac: MacAddr,
    /// Port 0, the switch itself.
    own: ManagedPort,
    /// The external ports, from port 1.
    ports: Vec<Port>,
    tables: Tables,
    notice: Notice,
}

/// The frames that leave a switch, each with the number of its port, counted from 0.
pub type Leaving = Vec<(usize, Vec<u8>)>;

impl Switch {
    /// Creates a switch with `ports` external ports, at most [`MAX_PORTS`], all searching for partners.
    #[must_use]
    pub fn new(ports: usize, guid: u64) -> Self {
        const DEVICE_ID: u16 = 0xc738;
        let ports = ports.min(MAX_PORTS) as u8;
        let identity = Identity {
            kind: NodeKind::Switch,
            ports,
            guid,
            device_id: DEVICE_ID,
            revision: 0,
            description: "Ferrolite emulated switch",
        };
        let mut own = ManagedPort::new(0, guid, agent::CAPABILITIES, true);
        own.info.link_active();
        let external = |number| {
            let mut training = Training::default();
            training.start(Instant::ZERO);
            Port { managed: ManagedPort::new(number, guid, 0, false), training, traffic: Traffic::default() }
        };
        let [.., a, b, c] = guid.to_be_bytes();
        Self {
            identity,
            mac: MacAddr([0x02, 0x49, 0x42, a, b, c]),
            own,
            ports: (1..=ports).map(external).collect(),
            tables: Tables::default(),
            notice: Notice::default(),
        }
    }

    /// Handles a frame from the cable of port `from`. The resulting frames are added to `out`.
    pub fn receive(&mut self, from: usize, frame: &[u8], now: Instant, out: &mut Leaving) {
        let Ok((ethernet, payload)) = Ethernet::parse(frame) else { return };
        if ethernet.ethertype != ETHERTYPE_INFINIBAND {
            return;
        }
        match Symbol::parse(payload) {
            Ok((Symbol::Packet, packet)) => self.receive_packet(from, packet, out),
            Ok((symbol, _)) => self.train(from, symbol, now, out),
            Err(_) => {}
        }
    }

    fn symbol(&self, to: usize, symbol: Symbol, out: &mut Leaving) {
        let frame = [&self.cable().emit()[..], &(symbol as u16).to_be_bytes()].concat();
        out.push((to, frame));
    }

    /// Returns the Ethernet header of the switch's own frames.
    const fn cable(&self) -> Ethernet {
        Ethernet { dst: CABLE, src: self.mac, ethertype: ETHERTYPE_INFINIBAND }
    }

    fn train(&mut self, from: usize, symbol: Symbol, now: Instant, out: &mut Leaving) {
        let Some(port) = self.ports.get_mut(from) else { return };
        let (reply, change) = port.training.receive(symbol, now);
        match change {
            Change::None => {}
            Change::Up | Change::Restarted => port.managed.info.link_up(),
            Change::Down => port.managed.info.link_down(),
        }
        if let Some(reply) = reply {
            self.symbol(from, reply, out);
        }
        if change != Change::None {
            self.port_changed(now, out);
        }
    }

    fn receive_packet(&mut self, from: usize, packet: &[u8], out: &mut Leaving) {
        let Some(port) = self.ports.get_mut(from) else { return };
        let Ok((lrh, _, rest)) = Lrh::parse(packet) else {
            port.traffic.rx_errors += 1;
            return;
        };
        let len = Lrh::LEN + rest.len();
        let (Some(covered), Some(check)) = (packet.get(..len), packet.get(len..len + VCRC_LEN)) else {
            return;
        };
        if check != vcrc(covered) {
            port.traffic.rx_errors += 1;
            return;
        }
        let state = port.managed.info.state();
        let management = lrh.lane == Lrh::MANAGEMENT_LANE;
        if state < LinkState::Armed && !(management && state == LinkState::Init) {
            return;
        }
        port.traffic.rx_packets += 1;
        port.traffic.rx_bytes += len as u64;
        if !management && port.managed.info.activated_by_partner() {
            self.tables.changed = true;
        }
        match lrh.dlid {
            Lrh::PERMISSIVE_LID => {
                if management {
                    self.receive_own(from, &lrh, covered, out);
                }
            }
            lid @ Lrh::FIRST_MULTICAST_LID.. => {
                let mut ports = self.tables.group(lid) >> 1 & !(1 << from);
                while ports != 0 {
                    self.forward(ports.trailing_zeros() as usize, &lrh, covered, out);
                    ports &= ports - 1;
                }
            }
            lid if self.own.info.path_bits(lid).is_some() => self.receive_own(from, &lrh, covered, out),
            lid => {
                if let Some(to) = self.tables.port(lid).and_then(|port| port.checked_sub(1)) {
                    self.forward(usize::from(to), &lrh, covered, out);
                }
            }
        }
    }

    /// Sends a packet out of a port, on the virtual lane of its service level there.
    fn forward(&mut self, to: usize, lrh: &Lrh, packet: &[u8], out: &mut Leaving) {
        let ethernet = self.cable();
        let Some(port) = self.ports.get_mut(to) else { return };
        let management = lrh.lane == Lrh::MANAGEMENT_LANE;
        let lane = if management { lrh.lane } else { port.managed.lane(lrh.service_level) };
        let state = port.managed.info.state();
        let passes = state == LinkState::Active || management && state != LinkState::Down;
        // Data must not use the management lane, so a service level that maps to it is unusable.
        if !passes || !management && lane == Lrh::MANAGEMENT_LANE {
            port.traffic.tx_discards += 1;
            return;
        }
        port.traffic.tx_packets += 1;
        port.traffic.tx_bytes += packet.len() as u64;
        let symbol = (Symbol::Packet as u16).to_be_bytes();
        let mut frame = [&ethernet.emit()[..], &symbol, packet].concat();
        if let Some(first) = frame.get_mut(START) {
            *first = lane << 4 | *first & 0xf;
        }
        let check = vcrc(frame.get(START..).unwrap_or_default());
        frame.extend_from_slice(&check);
        out.push((to, frame));
    }
}
