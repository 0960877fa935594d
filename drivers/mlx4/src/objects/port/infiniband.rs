//! The settings of an InfiniBand port, and those that its subnet manager has made.

use super::{Link, Port};
use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::{Field, Mailbox};
use crate::management::mad::{DATA_LEN, ask, attribute};
use verbs::{Gid, PathMtu, PortState};

/// SET_PORT, InfiniBand form (Linux `mlx4_SET_PORT`, PRM `set_port`).
mod field {
    use super::Field;
    pub(super) const MTU_CHANGES: Field = Field::bit(0x00, 22);
    pub(super) const LANES_CHANGE: Field = Field::bit(0x00, 21);
    pub(super) const MTU: Field = Field::bits(0x00, 15, 12);
    pub(super) const LANES: Field = Field::bits(0x00, 7, 4);
    pub(super) const CAPABILITIES: Field = Field::word(0x04);
}

/// The number of entries in a block of the table of P_Keys (specification 14.2.5.7), and of the blocks that
/// cards have: a queue pair's context has seven bits for the index.
const PARTITION_BLOCK: u8 = 32;
const PARTITION_BLOCKS: u8 = 4;
/// The bits of a P_Key without that for full membership.
const PARTITION_NUMBER: u16 = 0x7fff;

/// The MTU code of 4096 bytes.
const MTU_4096: u32 = 5;
/// The lane codes to request, most lanes first, as in Linux.
const LANES: [u32; 4] = [8, 4, 2, 1];

/// Offsets in PortInfo (specification 14.2.5.6).
mod port_info {
    pub(super) const PREFIX: usize = 8;
    pub(super) const LID: usize = 16;
    pub(super) const CAPABILITIES: usize = 20;
    pub(super) const STATE: usize = 32;
    pub(super) const NEIGHBOR_MTU: usize = 36;
}

/// Returns the state of a port by its code and its LID. A port is not usable before it has a LID.
const fn port_state(code: u8, lid: u16) -> PortState {
    const DOWN: u8 = 1;
    const ACTIVE: u8 = 4;
    match code {
        0..=DOWN => PortState::Down,
        ACTIVE if lid != 0 => PortState::Active,
        _ => PortState::Initializing,
    }
}

/// Returns bytes of an attribute from an offset on.
fn bytes<const N: usize>(data: &[u8; DATA_LEN], at: usize) -> [u8; N] {
    data.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

impl Port {
    /// Queries the settings that the subnet manager has made.
    pub(super) fn query_subnet(self, commands: &mut Commands<'_, impl Hardware>) -> Result<Link, Error> {
        let info = ask(commands, self.number, attribute::PORT_INFO, self.number.into())?;
        let guids = ask(commands, self.number, attribute::GUID_INFO, 0)?;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&bytes::<8>(&info, port_info::PREFIX));
        gid[8..].copy_from_slice(&bytes::<8>(&guids, 0));
        let lid = u16::from_be_bytes(bytes(&info, port_info::LID));
        let mtu = usize::from(info[port_info::NEIGHBOR_MTU] >> 4);
        let state = port_state(info[port_info::STATE] & 0xf, lid);
        let partition = match self.partition {
            Some(number) if state == PortState::Active => self.find_partition(commands, number)?,
            Some(_) | None => Some(0),
        };
        Ok(Link {
            // Without its partition the port cannot be used.
            state: if partition.is_some() { state } else { PortState::Initializing },
            gid: Gid(gid),
            lid,
            mtu: mtu.checked_sub(1).and_then(|code| PathMtu::ALL.get(code).copied()),
            partition: partition.unwrap_or(0),
        })
    }

    /// Returns the index of a partition in the port's table, or `None` if the port is no member of it.
    fn find_partition(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        number: u16,
    ) -> Result<Option<u8>, Error> {
        for block in 0..PARTITION_BLOCKS {
            let keys = ask(commands, self.number, attribute::P_KEY_TABLE, block.into())?;
            let is_it = |key: &[u8; 2]| u16::from_be_bytes(*key) & PARTITION_NUMBER == number;
            if let Some(place) = keys.as_chunks().0.iter().position(is_it) {
                return Ok(Some(block * PARTITION_BLOCK + place as u8));
            }
        }
        Ok(None)
    }

    /// Sets the port up with all capabilities of the card.
    pub(super) fn set_infiniband(self, commands: &mut Commands<'_, impl Hardware>) -> Result<(), Error> {
        let info = ask(commands, self.number, attribute::PORT_INFO, self.number.into())?;
        let capabilities = u32::from_be_bytes(bytes(&info, port_info::CAPABILITIES));
        if self.shared {
            // A slave sets only its capabilities.
            return self.set_lanes(commands, Mailbox::new().with(field::CAPABILITIES, capabilities));
        }
        let mut result = Ok(());
        for lanes in LANES {
            let mailbox = Mailbox::new()
                .with(field::MTU_CHANGES, 1)
                .with(field::LANES_CHANGE, 1)
                .with(field::MTU, MTU_4096)
                .with(field::LANES, lanes)
                .with(field::CAPABILITIES, capabilities);
            result = self.set_lanes(commands, mailbox);
            if !matches!(result, Err(Error::Refused { .. })) {
                break;
            }
        }
        result
    }

    fn set_lanes(self, commands: &mut Commands<'_, impl Hardware>, mailbox: Mailbox) -> Result<(), Error> {
        commands.exec_in(Command::new(Opcode::SetPort).of(self.number.into()), &mailbox)
    }
}
