//! The management agents of a port, which answer MAD_IFC.

use crate::device::eq::{Eqs, Event, EventType};
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::layout::{eqe, set_port_infiniband};
use crate::device::mailbox::Mailbox;
use crate::device::port::Port;
use crate::device::ports::Ports;
use crate::device::profile::Profile;
use crate::subnet::{
    Identity, LinkState, Mad, ManagedPort, NodeKind, Outcome, PARTITIONS, Written, attribute, class, method,
};

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

impl Ports {
    /// MAD_IFC: the firmware's management agents answer a datagram.
    pub(crate) fn mad_ifc(
        &mut self,
        command: &Command,
        mailbox: &Mailbox,
        profile: &Profile,
        eqs: &mut Eqs,
        host: &dyn Host,
    ) -> Result<Mailbox, Status> {
        const IGNORE_MANAGEMENT_KEY: u8 = 1;
        let number = (command.in_mod & 0xff) as u8;
        let index = usize::from(number).checked_sub(1).ok_or(Status::BadParameter)?;
        let mut mad = Mad::parse(mailbox.bytes()).ok_or(Status::BadPacket)?;
        let identity = identity(profile);
        let port = self.all.get_mut(index).ok_or(Status::BadParameter)?;
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
        self.report(index, &written, eqs, host);
        let mut out = Mailbox::default();
        out.put(0, mad.bytes());
        Ok(out)
    }

    /// Applies a manager's change to the link, and reports it to the driver.
    fn report(&mut self, index: usize, written: &Written, eqs: &mut Eqs, host: &dyn Host) {
        const GUIDS: u8 = 0x14;
        const PORT_INFO: u8 = 0x15;
        const PARTITIONS: u8 = 0x16;
        let Some(port) = self.all.get_mut(index) else { return };
        let number = index as u32 + 1;
        let changed =
            [written.manager_lid, written.gid_prefix, written.lid, written.register, written.manager_level];
        let changed = changed.iter().enumerate().fold(0, |mask, (bit, &set)| mask | u32::from(set) << bit);
        let info = &port.ib.managed.info;
        if changed != 0 {
            let (manager, level) = info.manager();
            let prefix = info.gid_prefix();
            let event = Event::new(EventType::PortManagement, PORT_INFO)
                .with(eqe::NUMBER, number)
                .with(eqe::MANAGER_LID, manager.into())
                .with(eqe::LID, info.lid().into())
                .with(eqe::CHANGED, changed)
                .with(eqe::MANAGER_LEVEL, level.into())
                .with(eqe::PREFIX_HIGH, (prefix >> 32) as u32)
                .with(eqe::PREFIX, prefix as u32);
            eqs.post(&event, host);
        }
        for (table, subtype) in [(written.guids, GUIDS), (written.partitions, PARTITIONS)] {
            if let Some((block, entries)) = table {
                let event = Event::new(EventType::PortManagement, subtype)
                    .with(eqe::NUMBER, number)
                    .with(eqe::BLOCK, block.into())
                    .with(eqe::ENTRIES, entries);
                eqs.post(&event, host);
            }
        }
        match written.state {
            Some(LinkState::Active) => self.report_state(index, LinkState::Active, eqs, host),
            Some(LinkState::Down) => {
                // The partner sees the link go down. Unless the port is disabled, it searches for a partner
                // again.
                let symbol = port.ib.training.stop();
                self.send_symbol(index, symbol);
                self.report_state(index, LinkState::Down, eqs, host);
                self.follow_link(index, eqs, host);
            }
            Some(LinkState::Init | LinkState::Armed) => {}
            // The manager may have re-enabled a disabled port.
            None => self.follow_link(index, eqs, host),
        }
    }

    /// SET_PORT, InfiniBand form: only the capability mask takes effect. Lanes, MTU and table sizes are fixed
    /// at or below the card's limits, and GUIDs do not change.
    pub(crate) fn set_infiniband(&mut self, index: usize, mailbox: &Mailbox) {
        if let Some(port) = self.all.get_mut(index) {
            port.ib.managed.info.set_capabilities(mailbox.field(set_port_infiniband::CAPABILITIES));
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
    /// Updates PortInfo from the state of an Ethernet port's cable; there, no manager brings the link up.
    fn follow_ethernet(&mut self) {
        if !self.is_infiniband() {
            let info = &mut self.ib.managed.info;
            if self.link { info.link_active() } else { info.link_down() }
        }
    }
}
