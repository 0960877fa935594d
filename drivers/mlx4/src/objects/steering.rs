//! The Ethernet addresses whose frames are steered to the queue pair for frames: by entries of the multicast
//! table, by the rows of the MAC table if the card has no such entries, or by the master of a virtual
//! function (Linux `mlx4/mcg.c`, `en_netdev.c`).

use crate::card::{Attached, Card, Function};
use crate::command::{Command, Commands, Opcode};
use crate::config::FramePort;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::icm::layout::{LOG_GROUP_HASH, LOG_GROUPS};
use crate::mailbox::{Field, Mailbox};
use core::ops::Range;

/// The protocol code of Ethernet.
const ETHERNET: u32 = 1;
/// The broadcast address.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];
/// The maximum number of entries in a chain that are followed.
const LONGEST: u32 = 1 << LOG_GROUPS;

/// An entry of the multicast table (Linux `mlx4_mgm`, PRM `mcg_entry`).
mod entry {
    use super::Field;
    pub(super) const NEXT: Field = Field::bits(0x00, 31, 6);
    pub(super) const PROTOCOL: Field = Field::bits(0x04, 31, 30);
    pub(super) const MEMBERS: Field = Field::bits(0x04, 23, 0);
    pub(super) const KEY: usize = 0x10;
    pub(super) const FIRST: Field = Field::bits(0x20, 23, 0);
}

/// SET_PORT, calculation of queue pairs (Linux `mlx4_SET_PORT_qpn_calc`).
mod calculation {
    use super::Field;
    pub(super) const BASE: Field = Field::bits(0x00, 23, 0);
    pub(super) const LOG_MACS: Field = Field::byte(0x05);
    pub(super) const VLAN_MISS: Field = Field::byte(0x0f);
    pub(super) const PROMISCUOUS: Field = Field::bits(0x14, 23, 0);
    pub(super) const MULTICAST_MODE: Field = Field::bits(0x18, 31, 30);
    pub(super) const MULTICAST: Field = Field::bits(0x18, 23, 0);
}

/// The card's steering of received frames to one queue pair, by destination address.
#[derive(Clone, Debug)]
pub(crate) struct Steering {
    qpn: u32,
    /// The number of the port.
    port: u8,
    /// The entries outside of the hash table that are not in use. Each port has a part of them.
    spare: Range<u32>,
}

impl Steering {
    /// Steers a port's own address and broadcast to a queue pair.
    pub(crate) fn begin(
        commands: &mut Commands<'_, impl Hardware>,
        card: &Card,
        (which, at): (FramePort, Attached),
        qpn: u32,
    ) -> Result<Self, Error> {
        const HALF: u32 = ((1 << LOG_GROUP_HASH) + (1 << LOG_GROUPS)) / 2;
        let spare = match which {
            FramePort::Rdma => 1 << LOG_GROUP_HASH..HALF,
            FramePort::Second => HALF..1 << LOG_GROUPS,
        };
        let mut steering = Self { qpn, port: at.port.number, spare };
        if card.function == Function::Physical && !card.capabilities.group_steering {
            steering.calculate(commands)?;
        }
        steering.add(commands, card, at.info.mac.0)?;
        steering.filter(commands, &[])?;
        steering.add(commands, card, BROADCAST)?;
        Ok(steering)
    }

    /// Steers another address to the queue pair. A group must also be added to the filter.
    pub(crate) fn add(
        &mut self,
        commands: &mut Commands<'_, impl Hardware>,
        card: &Card,
        mac: [u8; 6],
    ) -> Result<(), Error> {
        let key = key(self.port, mac);
        match card.function {
            Function::Virtual => {
                const JOIN: u8 = 1;
                let mut mailbox = Mailbox::new();
                mailbox.put(0, &key);
                let attach = Command::new(Opcode::QpAttach).of(self.qpn | ETHERNET << 28).variant(JOIN);
                commands.exec_in(attach, &mailbox)
            }
            Function::Physical if card.capabilities.group_steering => self.enter(commands, key),
            Function::Physical => Ok(()),
        }
    }

    /// Sets the filter of groups to a list and broadcast.
    pub(crate) fn filter(
        &self,
        commands: &mut Commands<'_, impl Hardware>,
        groups: &[[u8; 6]],
    ) -> Result<(), Error> {
        /// The operation: add an address, let all pass, or let only the added ones pass.
        const ADD: u8 = 0;
        const OFF: u8 = 1;
        const ON: u8 = 2;
        const CLEAR: u64 = 1 << 63;
        let command = || Command::new(Opcode::SetMcastFltr).of(self.port.into());
        commands.exec(command().variant(OFF))?;
        commands.exec(command().variant(ADD).immediate(CLEAR | number(BROADCAST)))?;
        for group in groups {
            commands.exec(command().variant(ADD).immediate(number(*group)))?;
        }
        commands.exec(command().variant(ON)).map(drop)
    }

    /// Makes an entry in the multicast table, in the chain of its hash.
    fn enter(&mut self, commands: &mut Commands<'_, impl Hardware>, key: [u8; 16]) -> Result<(), Error> {
        let mut mailbox = Mailbox::new();
        mailbox.put(0, &key);
        let hash = Command::new(Opcode::MgidHash).variant(ETHERNET as u8);
        let mut index = commands.exec_in_imm(hash, &mailbox)? as u32;
        let mut new = Mailbox::new()
            .with(entry::PROTOCOL, ETHERNET)
            .with(entry::MEMBERS, 1)
            .with(entry::FIRST, self.qpn);
        new.put(entry::KEY, &key);
        for _ in 0..LONGEST {
            let mut known = commands.exec_out(Command::new(Opcode::ReadMcg).of(index))?;
            let write = |index| Command::new(Opcode::WriteMcg).of(index);
            if known.array(entry::KEY) == key && known.get(entry::PROTOCOL) == ETHERNET {
                return Ok(());
            }
            if known.get(entry::MEMBERS) == 0 {
                new.set(entry::NEXT, known.get(entry::NEXT));
                return commands.exec_in(write(index), &new);
            }
            match known.get(entry::NEXT) {
                0 => {
                    let next = self.spare.next().ok_or(Error::Exhausted("entries for groups"))?;
                    commands.exec_in(write(next), &new)?;
                    known.set(entry::NEXT, next);
                    return commands.exec_in(write(index), &known);
                }
                next => index = next,
            }
        }
        Err(Error::Nonsense("its multicast table has an endless chain"))
    }

    /// Steers the rows of the MAC table and all groups to the queue pair.
    fn calculate(&self, commands: &mut Commands<'_, impl Hardware>) -> Result<(), Error> {
        const CALCULATION: u32 = 1 << 8;
        const LOG_MACS: u32 = 7;
        const BY_DEFAULT: u32 = 2;
        let mailbox = Mailbox::new()
            .with(calculation::BASE, self.qpn)
            .with(calculation::LOG_MACS, LOG_MACS)
            .with(calculation::VLAN_MISS, 1)
            .with(calculation::PROMISCUOUS, self.qpn)
            .with(calculation::MULTICAST_MODE, BY_DEFAULT)
            .with(calculation::MULTICAST, self.qpn);
        let set = Command::new(Opcode::SetPort).of(CALCULATION | u32::from(self.port));
        commands.exec_in(set.variant(ETHERNET as u8), &mailbox)
    }
}

/// Returns the key of an address in the multicast table.
fn key(port: u8, mac: [u8; 6]) -> [u8; 16] {
    const UNICAST: u8 = 2;
    let [a, b, c, d, e, f] = mac;
    let kind = if is_group(mac) { 0 } else { UNICAST };
    [0, 0, 0, 0, 0, port, 0, kind, 0, 0, a, b, c, d, e, f]
}

/// Returns true if an address is a group's.
pub(crate) const fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

const fn number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
