//! A port's filters before steering: VLANs (SET_VLAN_FLTR) and multicast addresses (SET_MCAST_FLTR).

use super::headers::Vlan;
use crate::device::hcr::Status;
use crate::device::mailbox::Mailbox;
use std::collections::BTreeSet;

/// The number of 32-bit words in the VLAN filter.
const VLAN_WORDS: usize = 128;
/// The maximum number of multicast addresses in a port's filter.
const MAX_GROUPS: usize = 4096;

/// A port's filters. After a reset, all frames pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filters {
    /// One bit per VLAN; `None` until the driver has set the filter.
    vlans: Option<Box<[u32; VLAN_WORDS]>>,
    groups: BTreeSet<[u8; 6]>,
    filters_groups: bool,
}

impl Filters {
    /// SET_VLAN_FLTR: VLAN v is bit v % 32 of word 127 - v / 32.
    pub(crate) fn set_vlans(&mut self, mailbox: &Mailbox) {
        let words = self.vlans.get_or_insert_with(|| Box::new([0; VLAN_WORDS]));
        for (index, word) in words.iter_mut().rev().enumerate() {
            *word = mailbox.u32(4 * index);
        }
    }

    /// SET_MCAST_FLTR. If `what` is 0, adds the address in the low 48 bits of `group`, after clearing the
    /// list if bit 63 is set. If it is 1, all multicast passes; if 2, only listed addresses.
    pub(crate) fn set_groups(&mut self, what: u8, group: u64) -> Result<(), Status> {
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

    /// Returns whether a frame with this tag, or without a tag, passes. A tag with VLAN 0 carries a priority
    /// and no VLAN.
    #[must_use]
    pub(crate) fn passes_vlan(&self, vlan: Option<Vlan>) -> bool {
        match (&self.vlans, vlan.map(Vlan::id)) {
            (Some(words), Some(id)) if id != 0 => {
                words.get(usize::from(id) / 32).is_some_and(|word| word >> (id % 32) & 1 != 0)
            }
            _ => true,
        }
    }

    /// Returns whether a frame to an address passes. Applies only where steering does not itself name the
    /// accepted groups.
    #[must_use]
    pub(crate) fn passes_group(&self, destination: [u8; 6]) -> bool {
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
