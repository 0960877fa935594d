//! Ports: QUERY_PORT, SET_PORT, INIT_PORT, MAD_IFC, CONFIG_DEV.

use super::Output;
use crate::device::Card;
use crate::device::eq::{Event, EventType};
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::mad;
use crate::device::mailbox::Mailbox;
use crate::device::port::Port;
use crate::device::profile::LinkType;

/// PORT_CHANGE subtypes.
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;

impl Card {
    /// The port that a command names by its number from 1: index and port.
    pub(super) fn port(&self, number: u32) -> Result<(usize, &Port), Status> {
        let index = (number & 0xff).checked_sub(1).ok_or(Status::BadParameter)? as usize;
        self.ports.get(index).map(|port| (index, port)).ok_or(Status::BadParameter)
    }

    /// The same, to be changed.
    pub(super) fn port_mut(&mut self, number: u32) -> Result<&mut Port, Status> {
        let (index, _) = self.port(number)?;
        self.ports.get_mut(index).ok_or(Status::BadParameter)
    }

    pub(super) fn query_port(&self, command: &Command) -> Result<Output, Status> {
        let (_, port) = self.port(command.in_mod)?;
        let mut out = Mailbox::default();
        port.query(&mut out);
        Ok(Output::Mailbox(out))
    }

    pub(super) fn set_port(&mut self, command: &Command, mailbox: &Mailbox) -> Result<Output, Status> {
        const INFINIBAND: u8 = 0;
        const ETHERNET: u8 = 1;
        let (index, _) = self.port(command.in_mod)?;
        let port = self.ports.get_mut(index).ok_or(Status::BadParameter)?;
        match command.op_mod {
            INFINIBAND => port.choose(LinkType::InfiniBand)?,
            ETHERNET => {
                port.choose(LinkType::Ethernet)?;
                port.set_ethernet(command.in_mod >> 8 & 0xff, mailbox)?;
            }
            _ => return Err(Status::BadParameter),
        }
        Ok(Output::None)
    }

    pub(super) fn open_port(&mut self, number: u32, open: bool, host: &dyn Host) -> Result<Output, Status> {
        let (index, _) = self.port(number)?;
        if let Some(port) = self.ports.get_mut(index) {
            port.open = open;
            if open {
                let subtype = if port.link { PORT_ACTIVE } else { PORT_DOWN };
                self.eqs.post(&port_change(index, subtype), host);
            }
        }
        Ok(Output::None)
    }

    pub(super) fn mad_ifc(&self, command: &Command, mut mailbox: Mailbox) -> Result<Output, Status> {
        let (_, port) = self.port(command.in_mod & 0xffff)?;
        mad::answer(&mut mailbox, (command.in_mod & 0xff) as u8, port.link, &self.profile)?;
        mailbox.bytes_mut()[256..].fill(0);
        Ok(Output::Mailbox(mailbox))
    }

    /// The UDP port of RoCE v2 is the only setting that is kept.
    pub(super) fn config_dev(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        const GET: u8 = 1;
        const UDP_PORT_VALID: u32 = 1 << 3;
        if command.op_mod == GET {
            let mut out = Mailbox::default();
            out.put_u16(0x16, self.roce_udp_port);
            return Ok(Output::Mailbox(out));
        }
        let mailbox = super::input(command, host)?;
        if mailbox.u32(0) & UDP_PORT_VALID != 0 {
            self.roce_udp_port = mailbox.u16(0x16);
        }
        Ok(Output::None)
    }
}

/// The link of a port has changed.
fn port_change(index: usize, subtype: u8) -> Event {
    Event::new(EventType::PortChange, subtype).with(0x0c, (index as u32 + 1) << 28)
}
