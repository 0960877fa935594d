//! A managed port: its attributes, and the answers of its management agent.

use super::mad::{Mad, Outcome, attribute as attr, method};
use super::port_info::{Abilities, LinkState, PortInfo, asks_to_register};
use verbs::Gid;

/// The number of entries in the P_Key table.
pub const PARTITIONS: usize = 128;
/// The number of entries in a block of the P_Key table.
const PARTITION_BLOCK: usize = 32;
/// The number of entries in the GUID table.
const GUIDS: usize = 128;
/// The number of entries in a block of the GUID table.
const GUID_BLOCK: usize = 8;
/// The P_Key of the default partition, with full membership.
const DEFAULT_PARTITION: u16 = 0xffff;

/// The changes made by a SET of the attribute PortInfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The LID or LMC has changed.
    pub lid: bool,
    /// The GID prefix has changed.
    pub gid_prefix: bool,
    /// The LID of the subnet manager has changed.
    pub manager_lid: bool,
    /// The service level to the subnet manager has changed.
    pub manager_level: bool,
    /// Clients must register again with the subnet manager.
    pub register: bool,
    /// The new logical state, if it has changed.
    pub state: Option<LinkState>,
    /// The changed block of the P_Key table, and the mask of its changed entries.
    pub partitions: Option<(u16, u32)>,
    /// The changed block of the GUID table, and the mask of its changed entries.
    pub guids: Option<(u16, u32)>,
}

/// A managed port.
#[derive(Clone, Debug)]
pub struct ManagedPort {
    /// The port's PortInfo.
    pub info: PortInfo,
    guids: Vec<u64>,
    partitions: Vec<u16>,
    /// The virtual lane of each service level.
    lanes: [u8; 16],
    arbitration: [[u8; 64]; 4],
}

impl ManagedPort {
    /// Creates a port. `addressed` is true for a port of a channel adapter and for port 0 of a switch, and
    /// false for an external port of a switch.
    #[must_use]
    pub fn new(number: u8, guid: u64, capabilities: u32, addressed: bool) -> Self {
        let mut guids = vec![0; GUIDS];
        guids[0] = guid;
        let mut partitions = vec![0; PARTITIONS];
        partitions[0] = DEFAULT_PARTITION;
        let abilities = Abilities { number, capabilities, guids: GUIDS as u8 };
        Self {
            info: PortInfo::new(abilities, addressed),
            guids,
            partitions,
            lanes: core::array::from_fn(|level| level as u8 % 8),
            arbitration: [[0; 64]; 4],
        }
    }

    /// Returns the port's own GUID.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guids.first().copied().unwrap_or(0)
    }

    /// Returns the GID at an index.
    #[must_use]
    pub fn gid(&self, index: usize) -> Option<Gid> {
        let guid = self.guids.get(index).copied().filter(|guid| *guid != 0)?;
        Some(Gid((u128::from(self.info.gid_prefix()) << 64 | u128::from(guid)).to_be_bytes()))
    }

    /// Returns whether a GID belongs to the port.
    #[must_use]
    pub fn has_gid(&self, gid: Gid) -> bool {
        let value = u128::from_be_bytes(gid.0);
        (value >> 64) as u64 == self.info.gid_prefix()
            && self.guids.contains(&(value as u64))
            && value as u64 != 0
    }

    /// Returns the partition key at an index; 0 is an unused entry.
    #[must_use]
    pub fn partition(&self, index: usize) -> u16 {
        self.partitions.get(index).copied().unwrap_or(0)
    }

    /// Returns the index of the partition of a packet: the numbers are equal, and at least one of the two
    /// members is a full member (specification 10.9.3).
    #[must_use]
    pub fn partition_index(&self, of_packet: u16) -> Option<usize> {
        self.partitions.iter().position(|&own| {
            own & 0x7fff != 0 && (own ^ of_packet) & 0x7fff == 0 && (own | of_packet) & 0x8000 != 0
        })
    }

    /// Returns the virtual lane of a service level.
    #[must_use]
    pub fn lane(&self, level: u8) -> u8 {
        self.lanes.get(usize::from(level)).copied().unwrap_or(0)
    }

    /// Returns whether a datagram must not be answered because it lacks the management key.
    #[must_use]
    pub fn is_locked_for(&self, mad: &Mad) -> bool {
        let key = self.info.management_key();
        let open = key == 0 || mad.management_key() == key;
        !open && (mad.method() != method::GET || self.info.protects_reads())
    }

    /// Answers an attribute of the port in place. Returns `None` if the attribute does not belong to a port.
    pub fn answer(&mut self, mad: &mut Mad) -> Option<(Outcome, Written)> {
        let set = mad.method() == method::SET;
        let mut written = Written::default();
        let block = mad.modifier() & 0xffff;
        let mut data = *mad.data();
        let outcome = match mad.attribute() {
            attr::PORT_INFO => {
                let outcome = if set { self.set_info(&data, &mut written) } else { Outcome::Good };
                data = *self.info.data();
                outcome
            }
            attr::GUID_INFO => self.guid_info(block as usize, set, &mut data, &mut written),
            attr::P_KEY_TABLE => self.partition_table(block as usize, set, &mut data, &mut written),
            attr::SL_TO_VL_TABLE => {
                self.lane_table(set, &mut data);
                Outcome::Good
            }
            attr::VL_ARBITRATION_TABLE => {
                let number = (mad.modifier() >> 16).checked_sub(1);
                match number.and_then(|number| self.arbitration.get_mut(number as usize)) {
                    Some(table) if set => *table = data,
                    Some(table) => data = *table,
                    None => data = [0; 64],
                }
                Outcome::Good
            }
            // The port has no light and no extended speeds.
            attr::LED_INFO | attr::EXTENDED_PORT_INFO if !set => {
                data = [0; 64];
                Outcome::Good
            }
            _ => return None,
        };
        mad.set_data(&data);
        Some((outcome, written))
    }

    fn set_info(&mut self, new: &[u8; 64], written: &mut Written) -> Outcome {
        let before = self.info.clone();
        let outcome = self.info.set(new);
        if outcome == Outcome::Good {
            let after = &self.info;
            written.lid = (before.lid(), before.lmc()) != (after.lid(), after.lmc());
            written.gid_prefix = before.gid_prefix() != after.gid_prefix();
            written.manager_lid = before.manager().0 != after.manager().0;
            written.manager_level = before.manager().1 != after.manager().1;
            written.register = asks_to_register(new);
            written.state = (before.state() != after.state()).then_some(after.state());
        }
        outcome
    }

    fn guid_info(&mut self, block: usize, set: bool, data: &mut [u8; 64], written: &mut Written) -> Outcome {
        let Some(entries) = self.guids.chunks_exact_mut(GUID_BLOCK).nth(block) else {
            *data = [0; 64];
            return Outcome::InvalidField;
        };
        let mut changed = 0;
        for (index, (entry, place)) in entries.iter_mut().zip(data.as_chunks_mut::<8>().0).enumerate() {
            let new = u64::from_be_bytes(*place);
            // The first entry is the port's own GUID.
            if set && (block, index) != (0, 0) && *entry != new {
                *entry = new;
                changed |= 1 << index;
            }
            *place = entry.to_be_bytes();
        }
        written.guids = (changed != 0).then_some((block as u16, changed));
        Outcome::Good
    }

    fn partition_table(
        &mut self,
        block: usize,
        set: bool,
        data: &mut [u8; 64],
        written: &mut Written,
    ) -> Outcome {
        let Some(entries) = self.partitions.chunks_exact_mut(PARTITION_BLOCK).nth(block) else {
            *data = [0; 64];
            return Outcome::InvalidField;
        };
        let mut changed = 0;
        for (index, (entry, place)) in entries.iter_mut().zip(data.as_chunks_mut::<2>().0).enumerate() {
            let new = u16::from_be_bytes(*place);
            if set && *entry != new {
                *entry = new;
                changed |= 1 << index;
            }
            *place = entry.to_be_bytes();
        }
        written.partitions = (changed != 0).then_some((block as u16, changed));
        Outcome::Good
    }

    /// Reads or writes the table of virtual lanes, in which each byte holds two service levels.
    fn lane_table(&mut self, set: bool, data: &mut [u8; 64]) {
        for (pair, place) in self.lanes.as_chunks_mut::<2>().0.iter_mut().zip(data.iter_mut()) {
            if set {
                *pair = [*place >> 4, *place & 0xf];
            }
            *place = pair[0] << 4 | pair[1];
        }
        if let Some(rest) = data.get_mut(8..) {
            rest.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> ManagedPort {
        ManagedPort::new(1, 0x1234, 0, true)
    }

    fn mad(method: u8, attribute: u16, modifier: u32, data: &[u8]) -> Mad {
        let mut bytes = [0; 256];
        (bytes[0], bytes[1], bytes[3]) = (1, 1, method);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        bytes[64..64 + data.len()].copy_from_slice(data);
        Mad::parse(&bytes).unwrap()
    }

    #[test]
    fn partitions_are_written_by_block_and_found_by_membership() {
        let mut port = port();
        assert_eq!(port.partition_index(0x7fff), Some(0), "a limited member speaks to a full one");
        let mut set = mad(method::SET, attr::P_KEY_TABLE, 1, &[0x00, 0x12, 0x80, 0x13]);
        let (outcome, written) = port.answer(&mut set).unwrap();
        assert_eq!((outcome, written.partitions), (Outcome::Good, Some((1, 0b11))));
        assert_eq!(port.partition(33), 0x8013);
        assert_eq!(port.partition_index(0x0012), None, "two limited members");
        assert_eq!(port.partition_index(0x8012), Some(32));
        assert_eq!(port.partition_index(0), None);
        let mut beyond = mad(method::GET, attr::P_KEY_TABLE, 4, &[]);
        assert_eq!(port.answer(&mut beyond).unwrap().0, Outcome::InvalidField);
    }

    #[test]
    fn the_ports_own_guid_stays() {
        let mut port = port();
        let mut set = mad(method::SET, attr::GUID_INFO, 0, &[7; 16]);
        let (_, written) = port.answer(&mut set).unwrap();
        assert_eq!(written.guids, Some((0, 0b10)));
        assert_eq!(port.guid(), 0x1234);
        assert!(port.has_gid(port.gid(1).unwrap()) && port.gid(2).is_none());
    }

    #[test]
    fn a_key_locks_what_it_protects() {
        let mut port = port();
        port.info.link_up();
        let mut new = *port.info.data();
        new[7] = 9;
        new[17] = 1;
        (new[32], new[33]) = (0, 0);
        let mut set = mad(method::SET, attr::PORT_INFO, 1, &new);
        assert!(!port.is_locked_for(&set));
        let (outcome, written) = port.answer(&mut set).unwrap();
        assert_eq!((outcome, written.lid, written.state), (Outcome::Good, true, None));
        assert!(port.is_locked_for(&mad(method::SET, attr::PORT_INFO, 1, &new)));
        assert!(!port.is_locked_for(&mad(method::GET, attr::PORT_INFO, 1, &[])));
    }

    #[test]
    fn service_levels_have_lanes() {
        let mut port = port();
        assert_eq!((port.lane(3), port.lane(9)), (3, 1));
        let mut set = mad(method::SET, attr::SL_TO_VL_TABLE, 0, &[0x21, 0, 0, 0, 0, 0, 0, 0xf0]);
        port.answer(&mut set).unwrap();
        assert_eq!((port.lane(0), port.lane(1), port.lane(14)), (2, 1, 15));
        let mut get = mad(method::GET, attr::SL_TO_VL_TABLE, 0, &[]);
        port.answer(&mut get).unwrap();
        assert_eq!(get.data()[..8], [0x21, 0, 0, 0, 0, 0, 0, 0xf0]);
    }
}
