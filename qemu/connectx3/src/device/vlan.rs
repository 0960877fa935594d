//! VLAN tags of frames (IEEE 802.1Q).

use super::ethernet::headers::{Vlan, VlanKind};

/// What stands before a tag.
const ETHERTYPE: [u8; 2] = [0x81, 0x00];
/// Bytes of the addresses, after which a tag stands.
const ADDRESSES: usize = 12;

/// Puts a tag with priority and VLAN `tci` into a frame without one.
pub fn insert(frame: &mut Vec<u8>, tci: u16) {
    if frame.len() >= ADDRESSES {
        frame.splice(ADDRESSES..ADDRESSES, Vlan { kind: VlanKind::Customer, tci }.bytes());
    }
}

/// Takes the tag out of a frame that has one: its priority and VLAN, and the frame without it.
#[must_use]
pub fn strip(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    let ([a, b, high, low], after) = rest.split_first_chunk()?;
    ([*a, *b] == ETHERTYPE).then(|| (u16::from_be_bytes([*high, *low]), [addresses, after].concat()))
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
    }
}
