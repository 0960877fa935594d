//! What a port lets in before frames are steered: VLANs (SET_VLAN_FLTR) and multicast addresses (SET_MCAST_FLTR).

use super::headers::Vlan;
use crate::device::hcr::Status;
use crate::device::mailbox::Mailbox;
use std::collections::BTreeSet;

/// Words of the VLAN filter.
const VLAN_WORDS: usize = 128;
/// Multicast addresses that a port's filter takes.
const MAX_GROUPS: usize = 4096;

/// A port's filters. As after a reset, all frames pass.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// A bit for each VLAN, once the driver has said which.
    vlans: Option<Box<[u32; VLAN_WORDS]>>,
    groups: BTreeSet<[u8; 6]>,
    filters_groups: bool,
}

impl Filters {
    /// SET_VLAN_FLTR: VLAN v is bit v % 32 of word 127 - v / 32.
    pub fn set_vlans(&mut self, mailbox: &Mailbox) {
        let words = self.vlans.get_or_insert_with(|| Box::new([0; VLAN_WORDS]));
        for (index, word) in words.iter_mut().rev().enumerate() {
            *word = mailbox.u32(4 * index);
        }
    }

    /// SET_MCAST_FLTR. `what`: 0 adds the address in `group`'s low 48 bits, after it has cleared the list if bit 63 is
    /// set; 1 lets all multicast in, 2 only what is in the list.
    pub fn set_groups(&mut self, what: u8, group: u64) -> Result<(), Status> {
        const ADD: u8 = 0;
        const ALL_PASS: u8 = 1;
        const FILTER: u8 = 2;
        match what {
            ADD => {
                if group >> 63 != 0 {
                    self.groups.clear();
                }
                if self.groups.len() >= MAX_GROUPS {
                    return Err(Status::ExceedsLimit);
                }
                let [_, _, address @ ..] = group.to_be_bytes();
                self.groups.insert(address);
            }
            ALL_PASS => self.filters_groups = false,
            FILTER => self.filters_groups = true,
            _ => return Err(Status::BadParameter),
        }
        Ok(())
    }

    /// Whether a frame with a tag, or without, may come in. A tag of VLAN 0 is a priority without VLAN.
    #[must_use]
    pub fn passes_vlan(&self, vlan: Option<Vlan>) -> bool {
        match (&self.vlans, vlan.map(Vlan::id)) {
            (Some(words), Some(id)) if id != 0 => {
                words.get(usize::from(id) / 32).is_some_and(|word| word >> (id % 32) & 1 != 0)
            }
            _ => true,
        }
    }

    /// Whether a frame to an address may come in, where steering does not name the groups that are wanted.
    #[must_use]
    pub fn passes_group(&self, destination: [u8; 6]) -> bool {
        let multicast = destination[0] & 1 != 0;
        !multicast || !self.filters_groups || self.groups.contains(&destination)
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::VlanKind;
    use super::*;

    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

    #[test]
    fn groups_pass_as_listed() {
        let mut filters = Filters::default();
        assert!(filters.passes_group(GROUP));
        filters.set_groups(2, 0).unwrap();
        assert!(!filters.passes_group(GROUP) && filters.passes_group([2, 0, 0, 0, 0, 1]));
        filters.set_groups(0, 1 << 63 | 0xffff_ffff_ffff).unwrap();
        filters.set_groups(0, 0x0100_5e00_0001).unwrap();
        assert!(filters.passes_group(GROUP) && filters.passes_group([0xff; 6]));
        filters.set_groups(0, 1 << 63 | 0xffff_ffff_ffff).unwrap();
        assert!(!filters.passes_group(GROUP), "bit 63 clears the list");
        filters.set_groups(1, 0).unwrap();
        assert!(filters.passes_group(GROUP));
        assert!(filters.set_groups(3, 0).is_err());
    }

    #[test]
    fn vlans_pass_as_their_bits_say() {
        let tag = |id: u16| Some(Vlan { kind: VlanKind::Customer, tci: 3 << 13 | id });
        let mut filters = Filters::default();
        assert!(filters.passes_vlan(tag(100)));
        let mut mailbox = Mailbox::default();
        mailbox.put_u32(4 * (127 - 100 / 32), 1 << (100 % 32));
        filters.set_vlans(&mailbox);
        assert!(filters.passes_vlan(tag(100)) && filters.passes_vlan(tag(0)) && filters.passes_vlan(None));
        assert!(!filters.passes_vlan(tag(101)) && !filters.passes_vlan(tag(4095)));
    }
}
