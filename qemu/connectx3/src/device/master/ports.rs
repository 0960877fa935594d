//! The slave's view of the ports: QUERY_PORT, SET_PORT, INIT_PORT, MAD_IFC, and its addresses and VLANs.

use super::addresses::Rows;
use super::resources::kind;
use super::tracker::{INVALID, NOT_PERMITTED, Result};
use super::{Slave, native, native_with, numbers};
use crate::device::adapter::Adapter;
use crate::device::command::Output;
use crate::device::hcr::Command;
use crate::device::host::Host;
use crate::device::layout::{access_register, query_port, set_port_infiniband, set_port_part as part};
use crate::device::mailbox::Mailbox;
use crate::device::profile::limits;
use verbs::MacAddr;

/// The length of a GID, in bytes.
const GID: usize = 16;

/// The slave's part of a port.
#[derive(Debug)]
pub(super) struct Port {
    macs: Rows<MacAddr>,
    vlans: Rows<u16>,
    /// True after the slave's INIT_PORT.
    open: bool,
    /// The capability mask set by the slave (InfiniBand).
    capabilities: u32,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            macs: Rows::new(1 << limits::LOG_MACS),
            vlans: Rows::new(1 << limits::LOG_VLANS),
            open: false,
            capabilities: 0,
        }
    }
}

impl Port {
    /// Returns whether the slave owns the address in a row of the port's table.
    #[must_use]
    pub(super) fn has_mac(&self, index: usize) -> bool {
        self.macs.holds(index)
    }
}

/// Returns the index of a port. `number` counts from 1.
fn index(adapter: &Adapter, number: u32) -> Result<usize> {
    let index = (number & 0xff).checked_sub(1).ok_or(INVALID)? as usize;
    if index < adapter.ports.all.len() { Ok(index) } else { Err(INVALID) }
}

/// Returns the index of the port in an ALLOC_RES or FREE_RES command for an address or VLAN.
fn port_of(adapter: &Adapter, command: &Command) -> Result<usize> {
    const RESERVE_AND_MAP: u8 = 1;
    if command.op_mod != RESERVE_AND_MAP {
        return Err(INVALID);
    }
    // Old slaves pass the port in the output parameter.
    match command.in_mod >> 8 & 0xff {
        0 => index(adapter, command.out_param as u32),
        number => index(adapter, number),
    }
}

impl Slave {
    /// ALLOC_RES.
    pub(super) fn allocate(&mut self, adapter: &mut Adapter, command: &Command) -> Result<Output> {
        let kind = command.in_mod as u8;
        let number = match kind {
            kind::MAC | kind::VLAN => {
                let port = port_of(adapter, command)?;
                self.register(adapter, port, kind, command.in_param)?
            }
            _ => self.tracker.allocate(kind, command.op_mod, command.in_param)?,
        };
        Ok(Output::Immediate(command.out_param & !0xffff_ffff | u64::from(number)))
    }

    /// FREE_RES.
    pub(super) fn free(&mut self, adapter: &mut Adapter, command: &Command) -> Result<Output> {
        let kind = command.in_mod as u8;
        match kind {
            kind::MAC | kind::VLAN => {
                let port = port_of(adapter, command)?;
                self.unregister(adapter, port, kind, command.in_param)?;
            }
            _ => self.tracker.free(kind, command.op_mod, command.in_param)?,
        }
        Ok(Output::None)
    }

    fn register(&mut self, adapter: &mut Adapter, port: usize, kind: u8, value: u64) -> Result<u32> {
        let mine = self.ports.get_mut(port).ok_or(INVALID)?;
        let row = if kind == kind::MAC {
            let row = mine.macs.register(mac(value))?;
            if let Some(slot) = adapter.ports.get_mut(port).and_then(|port| port.macs.get_mut(row)) {
                *slot = Some(mac(value));
            }
            row
        } else {
            mine.vlans.register(value as u16)?
        };
        Ok(row as u32)
    }

    fn unregister(&mut self, adapter: &mut Adapter, port: usize, kind: u8, value: u64) -> Result {
        let mine = self.ports.get_mut(port).ok_or(INVALID)?;
        if kind == kind::MAC {
            if let Some(row) = mine.macs.unregister(mac(value))
                && let Some(slot) = adapter.ports.get_mut(port).and_then(|port| port.macs.get_mut(row))
            {
                *slot = None;
            }
        } else {
            mine.vlans.unregister(value as u16);
        }
        Ok(())
    }

    /// QUERY_PORT: returns the port's settings with the slave's address and number of GIDs. Link type sensing
    /// is never offered.
    pub(super) fn query_port(
        &self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
    ) -> Result<Output> {
        const LINK_AND_NEGOTIATION: u32 = 0xe0;
        const TYPES: u32 = 0x03;
        let port = index(adapter, command.in_mod)?;
        if command.op_mod != 0 || command.in_mod > 0xff {
            return Err(INVALID);
        }
        let Output::Mailbox(mut out) = native(adapter, command, host)? else { return Err(INVALID) };
        let [a, b, c, d, e, f] = adapter.profile.ports.get(port).ok_or(INVALID)?.mac.0;
        out.set_double(query_port::MAC_HIGH, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
        out.set(
            query_port::LINK_AND_TYPES,
            out.field(query_port::LINK_AND_TYPES) & (LINK_AND_NEGOTIATION | TYPES),
        );
        out.put_u16(0x0c, 1 << out.field(query_port::LOG_MAX_PKEYS));
        out.put_u16(0x0e, numbers::GIDS as u16);
        Ok(Output::Mailbox(out))
    }

    /// Executes INIT_PORT or CLOSE_PORT. A repetition has no effect.
    pub(super) fn open_port(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
        open: bool,
    ) -> Result<Output> {
        let port = self.ports.get_mut(index(adapter, command.in_mod)?).ok_or(INVALID)?;
        if port.open == open {
            return Ok(Output::None);
        }
        let output = native(adapter, command, host)?;
        port.open = open;
        Ok(output)
    }

    /// SET_PORT: sets the MTU, pauses, and the slave's rows of the GID table.
    pub(super) fn set_port(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        mut mailbox: Mailbox,
        host: &dyn Host,
    ) -> Result<Output> {
        const INFINIBAND: u8 = 0;
        const ETHERNET: u8 = 1;
        let port = index(adapter, command.in_mod)?;
        match (command.op_mod, command.in_mod >> 8) {
            (INFINIBAND, _) => {
                self.set_capabilities(port, &mut mailbox)?;
            }
            (ETHERNET, part::GENERAL) => {}
            (ETHERNET, part::GID_TABLE) => mailbox = gid_table(&mailbox)?,
            (ETHERNET, _) => return Err(INVALID),
            _ => return Err(NOT_PERMITTED),
        }
        native_with(adapter, &Command { in_mod: command.in_mod & 0xffff, ..command.clone() }, mailbox, host)
    }

    /// Sets the capability mask of an InfiniBand port and resets a counter, the only settings open to a
    /// slave.
    fn set_capabilities(&mut self, port: usize, mailbox: &mut Mailbox) -> Result {
        const IS_SM: u32 = 1 << 1;
        const DEVICE_MANAGEMENT: u32 = 1 << 19;
        let (reset, capabilities) = (mailbox.u8(3) & 1, mailbox.field(set_port_infiniband::CAPABILITIES));
        if capabilities & (IS_SM | DEVICE_MANAGEMENT) != 0 {
            return Err(INVALID);
        }
        self.ports.get_mut(port).ok_or(INVALID)?.capabilities = capabilities;
        *mailbox = Mailbox::default();
        mailbox.put_u8(3, reset);
        mailbox.set(set_port_infiniband::CAPABILITIES, capabilities);
        Ok(())
    }

    /// MAD_IFC: answers the queries about the own port that verbs need. Subnet management is not available to
    /// slaves.
    pub(super) fn management(
        &self,
        adapter: &mut Adapter,
        command: &Command,
        mad: Mailbox,
        host: &dyn Host,
    ) -> Result<Output> {
        const NETWORK_VIEW: u8 = 8;
        const LID_ROUTED: u8 = 0x01;
        const GET: u8 = 0x01;
        const GUID_INFO: u16 = 0x14;
        const PORT_INFO: u16 = 0x15;
        const NODE_INFO: u16 = 0x11;
        const DATA: usize = 0x40;
        let port = index(adapter, command.in_mod)?;
        if mad.u8(1) != LID_ROUTED || mad.u8(3) != GET || command.op_mod & NETWORK_VIEW != 0 {
            return Err(NOT_PERMITTED);
        }
        let (attribute, capabilities) =
            (mad.u16(0x10), self.ports.get(port).map_or(0, |port| port.capabilities));
        let Output::Mailbox(mut out) = native_with(adapter, command, mad, host)? else { return Err(INVALID) };
        match attribute {
            GUID_INFO => {
                out.put(DATA, &[0; 64]);
                out.put_u64(DATA, adapter.profile.guid(port));
            }
            NODE_INFO => out.put_u64(DATA + 12, adapter.profile.guid(0)),
            PORT_INFO => out.put_u32(DATA + 20, capabilities),
            _ => {}
        }
        Ok(Output::Mailbox(out))
    }

    /// ACCESS_REG: allows reads only.
    pub(super) fn access_register(
        &self,
        adapter: &mut Adapter,
        command: &Command,
        mailbox: Mailbox,
        host: &dyn Host,
    ) -> Result<Output> {
        const METHOD: u32 = 0x7f;
        const WRITE: u32 = 2;
        if mailbox.field(access_register::METHOD) & METHOD == WRITE {
            return Err(NOT_PERMITTED);
        }
        native_with(adapter, command, mailbox, host)
    }
}

fn mac(value: u64) -> MacAddr {
    let [_, _, mac @ ..] = value.to_be_bytes();
    MacAddr(mac)
}

/// Returns the port's GID table with the slave's rows in place.
fn gid_table(rows: &Mailbox) -> Result<Mailbox> {
    let row = |index: usize| rows.bytes().get(index * GID..(index + 1) * GID).unwrap_or_default();
    let mut table = Mailbox::default();
    for index in (0..numbers::GIDS).filter(|&index| row(index).iter().any(|&byte| byte != 0)) {
        if (index + 1..numbers::GIDS).any(|other| row(other) == row(index)) {
            return Err(INVALID);
        }
        table.put((numbers::FIRST_GID + index) * GID, row(index));
    }
    Ok(table)
}
