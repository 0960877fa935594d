//! VLAN tags of frames (IEEE 802.1Q).

use super::ethernet::headers::{Vlan, VlanKind};

/// The Ethernet type that precedes a tag.
const ETHERTYPE: [u8; 2] = [0x81, 0x00];
/// The length of the two addresses, behind which a tag is inserted, in bytes.
const ADDRESSES: usize = 12;

/// Inserts a tag with priority and VLAN `tci` into an untagged frame.
pub(super) fn insert(frame: &mut Vec<u8>, tci: u16) {
    if frame.len() >= ADDRESSES {
        frame.splice(ADDRESSES..ADDRESSES, Vlan { kind: VlanKind::Customer, tci }.bytes());
    }
}

/// Removes the tag of a frame, if it has one. Returns the priority and VLAN, and the frame without the tag.
#[must_use]
pub(super) fn strip(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    let ([a, b, high, low], after) = rest.split_first_chunk()?;
    ([*a, *b] == ETHERTYPE).then(|| (u16::from_be_bytes([*high, *low]), [addresses, after].concat()))
}

/// Returns the VLAN of a tag; 0 for none, and for a tag that has a priority alone.
#[must_use]
pub(super) const fn id(tci: Option<u16>) -> u16 {
    const ID: u16 = 0xfff;
    match tci {
        Some(tci) => tci & ID,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_in_and_out() {
        let plain: Vec<u8> = (0..40).collect();
        let mut tagged = plain.clone();
        insert(&mut tagged, 0x6123);
        assert_eq!(tagged[12..16], [0x81, 0, 0x61, 0x23]);
        assert_eq!(strip(&tagged), Some((0x6123, plain.clone())));
        assert_eq!(strip(&plain), None);
        assert_eq!(strip(&tagged[..15]), None);
        assert_eq!([Some(0x6123), Some(0xe000), None].map(id), [0x123, 0, 0]);
    }
}
