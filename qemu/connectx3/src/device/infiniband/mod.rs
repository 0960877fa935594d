//! InfiniBand mode of a port: its link and its management. [`packets`] handles its packets.

pub mod packets;

use super::Card;
use super::eq::{Event, EventType};
use super::hcr::{Command, Status};
use super::host::Host;
use super::link::port_change;
use super::mailbox::Mailbox;
use super::port::Port;
use super::profile::{LinkType, Profile};
use crate::subnet::{
    Change, Identity, LinkState, Mad, ManagedPort, NodeKind, Outcome, PARTITIONS, Traffic, Training, Written,
    attribute, class, method,
};
use platform::Instant;
use roce::wire::{CABLE, ETHERTYPE_INFINIBAND, Ethernet, Symbol};
use verbs::MacAddr;

/// The port's capability mask: SL mapping, automatic path migration, system image GUID, connection
/// management, vendor class, client reregistration. Traps and notices are not supported.
const CAPABILITIES: u32 = 1 << 5 | 1 << 6 | 1 << 11 | 1 << 16 | 1 << 20 | 1 << 25;

/// The InfiniBand state of a port.
#[derive(Debug)]
pub struct IbPort {
    /// The port's attributes, as a subnet manager sees them.
    pub managed: ManagedPort,
    training: Training,
    traffic: Traffic,
}

impl IbPort {
    /// Creates a port. `number` counts from 1.
    #[must_use]
    pub fn new(number: u8, guid: u64) -> Self {
        Self {
            managed: ManagedPort::new(number, guid, CAPABILITIES, true),
            training: Training::default(),
            traffic: Traffic::default(),
        }
    }

    /// Returns whether the link passes data.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(self.managed.info.state(), LinkState::Active)
    }
}

/// Returns the header of a frame on a cable.
pub(super) const fn cable(from: MacAddr) -> Ethernet {
    Ethernet { dst: CABLE, src: from, ethertype: ETHERTYPE_INFINIBAND }
}

/// Returns a frame that carries only a symbol.
fn symbol_frame(from: MacAddr, symbol: Symbol) -> Vec<u8> {
    [&cable(from).emit()[..], &(symbol as u16).to_be_bytes()].concat()
}

fn identity(profile: &Profile) -> Identity {
    Identity {
        kind: NodeKind::ChannelAdapter,
        ports: profile.ports.len() as u8,
        guid: profile.guid(0),
        device_id: profile.device_id,
        revision: 0,
        description: "Ferrolite emulated ConnectX-3",
    }
}

impl Card {
    fn send_symbol(&mut self, index: usize, symbol: Option<Symbol>) {
        if let (Some(port), Some(symbol)) = (self.ports.get(index), symbol) {
            self.outbox.push((index, symbol_frame(port.mac(), symbol)));
        }
    }

    /// Starts or stops the link's training. The port searches for a partner while it is open, its cable is
    /// plugged in, and no manager has disabled it.
    pub(super) fn follow_link(&mut self, index: usize, host: &dyn Host) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let info = &mut port.ib.managed.info;
        let on = port.link_type == LinkType::InfiniBand && port.open && port.link && !info.is_disabled();
        if on == port.ib.training.is_on() {
            return;
        }
        if on {
            port.ib.training.start(host.now());
            self.train(host.now());
            return;
        }
        let was_active = info.state() == LinkState::Active;
        let told = port.open;
        info.link_down();
        let symbol = port.ib.training.stop();
        self.send_symbol(index, symbol);
        if was_active && told {
            self.report_state(index, LinkState::Down, host);
        }
    }

    /// Returns the frames that tell the ports' partners that the links are down, before the card resets.
    pub(super) fn silence(&mut self) -> Vec<(usize, Vec<u8>)> {
        let silent = |(index, port): (usize, &mut Port)| {
            let symbol = port.ib.training.stop()?;
            Some((index, symbol_frame(port.mac(), symbol)))
        };
        self.ports.iter_mut().enumerate().filter_map(silent).collect()
    }

    /// Sends the training symbols that are due at `now`, and schedules the next ones.
    pub(super) fn train(&mut self, now: Instant) {
        for index in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(index) else { return };
            let symbol = port.ib.training.on_timer(now);
            if let Some(at) = port.ib.training.deadline() {
                self.next_deadline = self.next_deadline.min(at);
            }
            self.send_symbol(index, symbol);
        }
    }

    fn receive_symbol(&mut self, index: usize, symbol: Symbol, host: &dyn Host) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let (reply, change) = port.ib.training.receive(symbol, host.now());
        let info = &mut port.ib.managed.info;
        let was_active = info.state() == LinkState::Active;
        match change {
            Change::None => {}
            Change::Up | Change::Restarted => info.link_up(),
            Change::Down => info.link_down(),
        }
        if let Some(at) = port.ib.training.deadline() {
            self.next_deadline = self.next_deadline.min(at);
        }
        if was_active && matches!(change, Change::Down | Change::Restarted) {
            self.report_state(index, LinkState::Down, host);
        }
        self.send_symbol(index, reply);
    }

    /// Posts the event that a link has become active or inactive.
    fn report_state(&mut self, index: usize, state: LinkState, host: &dyn Host) {
        self.eqs.post(&port_change(index, state == LinkState::Active), host);
    }

    /// MAD_IFC: the firmware's management agents answer a datagram.
    pub(super) fn mad_ifc(
        &mut self,
        command: &Command,
        mailbox: &Mailbox,
        host: &dyn Host,
    ) -> Result<Mailbox, Status> {
        const IGNORE_MANAGEMENT_KEY: u8 = 1;
        let number = (command.in_mod & 0xff) as u8;
        let index = usize::from(number).checked_sub(1).ok_or(Status::BadParameter)?;
        let mut mad = Mad::parse(mailbox.bytes()).ok_or(Status::BadPacket)?;
        let identity = identity(&self.profile);
        let port = self.ports.get_mut(index).ok_or(Status::BadParameter)?;
        port.follow_ethernet();
        let mut written = Written::default();
        let locked = command.op_mod & IGNORE_MANAGEMENT_KEY == 0 && port.ib.managed.is_locked_for(&mad);
        if mad.class() == class::PERFORMANCE {
            port.ib.traffic.answer(&mut mad, number);
        } else if mad.is_subnet_management() && !locked {
            written = answer(&mut mad, &identity, &mut port.ib.managed, number);
        } else {
            return Err(Status::BadPacket);
        }
        self.report(index, &written, host);
        let mut out = Mailbox::default();
        out.put(0, mad.bytes());
        Ok(out)
    }

    /// Applies a manager's change to the link, and reports it to the driver.
    fn report(&mut self, index: usize, written: &Written, host: &dyn Host) {
        const GUIDS: u8 = 0x14;
        const PORT_INFO: u8 = 0x15;
        const PARTITIONS: u8 = 0x16;
        let Some(port) = self.ports.get_mut(index) else { return };
        let number = index as u32 + 1;
        let changed =
            [written.manager_lid, written.gid_prefix, written.lid, written.register, written.manager_level];
        let changed = changed.iter().enumerate().fold(0, |mask, (bit, &set)| mask | u32::from(set) << bit);
        let info = &port.ib.managed.info;
        if changed != 0 {
            let (manager, level) = info.manager();
            let prefix = info.gid_prefix();
            let event = Event::new(EventType::PortManagement, PORT_INFO)
                .with(0x04, number)
                .with(0x08, u32::from(manager) << 16 | u32::from(info.lid()))
                .with(0x0c, changed)
                .with(0x10, u32::from(level))
                .with(0x14, (prefix >> 32) as u32)
                .with(0x18, prefix as u32);
            self.eqs.post(&event, host);
        }
        for (table, subtype) in [(written.guids, GUIDS), (written.partitions, PARTITIONS)] {
            if let Some((block, entries)) = table {
                let event = Event::new(EventType::PortManagement, subtype)
                    .with(0x04, number)
                    .with(0x08, u32::from(block))
                    .with(0x0c, entries);
                self.eqs.post(&event, host);
            }
        }
        match written.state {
            Some(LinkState::Active) => self.report_state(index, LinkState::Active, host),
            Some(LinkState::Down) => {
                // The partner sees the link go down. Unless the port is disabled, it searches for a partner
                // again.
                let symbol = port.ib.training.stop();
                self.send_symbol(index, symbol);
                self.report_state(index, LinkState::Down, host);
                self.follow_link(index, host);
            }
            Some(LinkState::Init | LinkState::Armed) => {}
            // The manager may have re-enabled a disabled port.
            None => self.follow_link(index, host),
        }
    }

    /// SET_PORT, InfiniBand form: only the capability mask takes effect. Lanes, MTU and table sizes are fixed
    /// at or below the card's limits, and GUIDs do not change.
    pub(super) fn set_infiniband(&mut self, index: usize, mailbox: &Mailbox) {
        if let Some(port) = self.ports.get_mut(index) {
            port.ib.managed.info.set_capabilities(mailbox.u32(4));
        }
    }
}

/// Answers a subnet management datagram in place.
fn answer(mad: &mut Mad, identity: &Identity, port: &mut ManagedPort, number: u8) -> Written {
    let mut written = Written::default();
    let get = mad.method() == method::GET;
    let outcome = match mad.attribute() {
        _ if !get && mad.method() != method::SET => Outcome::Unsupported,
        attribute::NODE_DESCRIPTION => {
            mad.set_data(&identity.node_description());
            Outcome::Good
        }
        attribute::NODE_INFO if get => {
            mad.set_data(&identity.node_info(number, port.guid(), PARTITIONS as u16));
            Outcome::Good
        }
        attribute::PORT_INFO if ![0, u32::from(number)].contains(&(mad.modifier() & 0xff)) => {
            Outcome::InvalidField
        }
        _ => match port.answer(mad) {
            Some((outcome, changed)) => {
                written = changed;
                outcome
            }
            None => Outcome::Unsupported,
        },
    };
    mad.answer(outcome);
    written
}

impl Port {
    /// Returns whether the port is in InfiniBand mode.
    #[must_use]
    pub fn is_infiniband(&self) -> bool {
        self.link_type == LinkType::InfiniBand
    }

    /// Updates PortInfo from the state of an Ethernet port's cable; there, no manager brings the link up.
    fn follow_ethernet(&mut self) {
        if !self.is_infiniband() {
            let info = &mut self.ib.managed.info;
            if self.link { info.link_active() } else { info.link_down() }
        }
    }
}
