//! The settings of an Ethernet port: frame size, address, and the rows for its source addresses.

use super::Port;
use crate::command::{Command, Commands, Opcode};
use crate::config::Vlan;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::{Field, Mailbox};
use verbs::{Gid, MacAddr};

/// SET_PORT, general part (Linux `mlx4_SET_PORT_general`).
mod general {
    use super::Field;
    pub(super) const FLAGS: Field = Field::byte(0x03);
    pub(super) const ROCE_MODE: Field = Field::bits(0x04, 31, 28);
    pub(super) const MTU: Field = Field::half(0x06);
    pub(super) const PAUSE_SENT: Field = Field::byte(0x08);
    pub(super) const PAUSE_HEEDED: Field = Field::byte(0x0c);
    pub(super) const MTU_VALID: u32 = 1 << 0;
    pub(super) const PAUSE_VALID: u32 = 1 << 1 | 1 << 2;
    pub(super) const ROCE_MODE_VALID: u32 = 1 << 4;
    pub(super) const ROCE_V1_AND_V2: u32 = 2;
    pub(super) const PAUSE: u32 = 0x80;
}

/// CONFIG_DEV (Linux `mlx4_config_dev`).
mod config_dev {
    use super::Field;
    pub(super) const UPDATE: Field = Field::word(0x00);
    pub(super) const ROCE_PORT: Field = Field::half(0x16);
    pub(super) const ROCE_PORT_VALID: u32 = 1 << 3;
}

/// The fields of a row of the table of RoCE addresses (Linux `mlx4_ib_update_gids_v1_v2`).
mod row {
    use super::Field;
    pub(super) const LEN: usize = 32;
    pub(super) const IPV6: Field = Field::byte(0x1a);
    pub(super) const VERSION: Field = Field::byte(0x1b);
    pub(super) const V2: u32 = 2;
}

/// The subject of a SET_PORT command for an Ethernet port.
#[derive(Clone, Copy)]
enum Part {
    General = 0x0,
    MacTable = 0x2,
    VlanTable = 0x3,
    GidTable = 0x5,
    RoceAddresses = 0xd,
}

/// The row of the port's VLAN in its table. Linux leaves the first two to the null and the missed VLAN.
pub(crate) const VLAN_ROW: u8 = 2;
/// The number of words in the filter of VLANs.
const FILTER_WORDS: usize = 128;

/// The opcode modifier of SET_PORT for Ethernet.
const ETHERNET: u8 = 1;
/// The UDP port of RoCE v2.
const ROCE_UDP_PORT: u32 = 4791;
/// The bytes of a frame in addition to its payload: Ethernet header, two VLAN tags, check sequence.
const FRAME_OVERHEAD: u16 = 14 + 8 + 4;

impl Port {
    /// Sets the port up for frames with payloads of `mtu` bytes.
    pub(super) fn set_ethernet(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        mtu: u16,
    ) -> Result<(), Error> {
        let roce = if self.roce_v2 { general::ROCE_MODE_VALID } else { 0 };
        let mut mailbox = Mailbox::new()
            .with(general::FLAGS, general::MTU_VALID | general::PAUSE_VALID | roce)
            .with(general::MTU, mtu.saturating_add(FRAME_OVERHEAD).into())
            .with(general::PAUSE_SENT, general::PAUSE)
            .with(general::PAUSE_HEEDED, general::PAUSE);
        if self.roce_v2 {
            mailbox.set(general::ROCE_MODE, general::ROCE_V1_AND_V2);
        }
        self.set(commands, Part::General, &mailbox)?;
        if self.roce_v2 {
            let mailbox = Mailbox::new()
                .with(config_dev::UPDATE, config_dev::ROCE_PORT_VALID)
                .with(config_dev::ROCE_PORT, ROCE_UDP_PORT);
            commands.exec_in(Command::new(Opcode::ConfigDev), &mailbox)?;
        }
        Ok(())
    }

    /// Sets the port's Ethernet address.
    pub(super) fn set_mac(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        mac: MacAddr,
    ) -> Result<(), Error> {
        const VALID: u64 = 1 << 63;
        let [a, b, c, d, e, f] = mac.0;
        let mut mailbox = Mailbox::new();
        mailbox.set_wide(0, u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | VALID);
        self.set(commands, Part::MacTable, &mailbox)
    }

    /// Sets the port's VLAN, and lets frames of no other VLAN in (Linux `mlx4_set_port_vlan_table` and
    /// `mlx4_SET_VLAN_FLTR`).
    pub(super) fn set_vlan(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        vlan: Vlan,
    ) -> Result<(), Error> {
        const VALID: u32 = 1 << 31;
        let row = Field::word(4 * usize::from(VLAN_ROW));
        self.set(commands, Part::VlanTable, &Mailbox::new().with(row, VALID | u32::from(vlan.id())))?;
        // The last word has the first VLANs.
        let word = Field::word(4 * (FILTER_WORDS - 1 - usize::from(vlan.id()) / 32));
        let filter = Mailbox::new().with(word, 1 << (vlan.id() % 32));
        commands.exec_in(Command::new(Opcode::SetVlanFltr).of(self.number.into()), &filter)
    }

    /// Sets the port's GID, in a row for each frame format. The other rows stay empty.
    pub(crate) fn set_gid(self, commands: &mut Commands<'_, impl Hardware>, gid: Gid) -> Result<(), Error> {
        let mut mailbox = Mailbox::new();
        mailbox.put(0, &gid.0);
        if !self.roce_v2 {
            return self.set(commands, Part::GidTable, &mailbox);
        }
        mailbox.set(row::VERSION, row::V2);
        mailbox.set(row::IPV6, gid.ipv4().is_none().into());
        mailbox.put(row::LEN, &gid.0);
        self.set(commands, Part::RoceAddresses, &mailbox)
    }

    fn set(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        part: Part,
        mailbox: &Mailbox,
    ) -> Result<(), Error> {
        let which = (part as u32) << 8 | u32::from(self.number);
        commands.exec_in(Command::new(Opcode::SetPort).of(which).variant(ETHERNET), mailbox)
    }
}
