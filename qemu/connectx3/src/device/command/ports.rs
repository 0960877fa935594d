//! Commands on ports: QUERY_PORT, SET_PORT, INIT_PORT, MAD_IFC, CONFIG_DEV.

use super::io::{Output, input};
use crate::device::adapter::Adapter;
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::layout::config_dev;
use crate::device::mailbox::Mailbox;
use crate::device::port::Port;
use crate::device::profile::LinkType;

impl Adapter {
    /// Returns the index and the port for a command's port number, which counts from 1.
    pub(super) fn port(&self, number: u32) -> Result<(usize, &Port), Status> {
        let index = self.profile.port_index(number).ok_or(Status::BadParameter)?;
        self.ports.get(index).map(|port| (index, port)).ok_or(Status::BadParameter)
    }

    /// Returns the port for a command's port number, which counts from 1.
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
        const BEACON: u8 = 4;
        let (index, _) = self.port(command.in_mod)?;
        let port = self.port_mut(command.in_mod)?;
        match command.op_mod {
            INFINIBAND => {
                port.choose(LinkType::InfiniBand)?;
                self.ports.set_infiniband(index, mailbox);
            }
            ETHERNET => {
                port.choose(LinkType::Ethernet)?;
                port.set_ethernet(command.in_mod >> 8 & 0xff, mailbox)?;
            }
            // The input is the time in seconds for which the port's light blinks.
            BEACON => log::info!("port {}: blinks for {} s", command.in_mod & 0xff, mailbox.u32(0)),
            _ => return Err(Status::BadParameter),
        }
        Ok(Output::None)
    }

    /// CONFIG_DEV. Only the UDP port of RoCE v2 is stored. The checksum mode is fixed: the card validates TCP
    /// and UDP checksums, and reports the payload's checksum of other IP packets.
    pub(super) fn config_dev(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        const GET: u8 = 1;
        const UDP_PORT_VALID: u32 = 1 << 3;
        if command.op_mod == GET {
            let mut out = Mailbox::default();
            const CHECKSUMS_OF_EACH_PORT: u32 = 2 << 4 | 2;
            out.set(config_dev::ROCE_PORT, self.roce_udp_port.into());
            out.set(config_dev::CHECKSUM_MODES, CHECKSUMS_OF_EACH_PORT);
            return Ok(Output::Mailbox(out));
        }
        let mailbox = input(command, host)?;
        if mailbox.field(config_dev::UPDATE) & UDP_PORT_VALID != 0 {
            self.roce_udp_port = mailbox.field(config_dev::ROCE_PORT) as u16;
        }
        Ok(Output::None)
    }
}
