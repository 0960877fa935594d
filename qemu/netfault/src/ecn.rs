//! Congestion marks: the changes that a switch makes to the ECN field of an IP header (RFC 3168).

/// The Ethertype of IPv4, whose header has an ECN field.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// The offset of the network header.
const ETHERNET: usize = 14;
/// The code point for "congestion experienced".
const CE: u8 = 3;

/// Marks `frame` as having met congestion. Returns false, without a change, if its sender does not support
/// marks (ECT).
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let Some((header, packet)) = frame.split_at_mut_checked(ETHERNET) else { return false };
    match header.last_chunk() {
        Some(&IPV4) => mark_ipv4(packet),
        Some(&IPV6) => mark_ipv6(packet),
        _ => false,
    }
}

fn mark_ipv4(packet: &mut [u8]) -> bool {
    let Some([_, tos, rest @ ..]) = packet.first_chunk_mut::<20>() else { return false };
    let ecn = *tos & 3;
    if ecn == 0 {
        return false;
    }
    *tos |= CE;
    // The header checksum is the complement of a ones' complement sum, so an increase of a word decreases it
    // (RFC 1624). It is 8 bytes after the type of service.
    let [hi, lo] = [rest[8], rest[9]];
    let sum = u32::from(!u16::from_be_bytes([hi, lo])) + u32::from(CE - ecn);
    let folded = (sum & 0xffff) + (sum >> 16);
    [rest[8], rest[9]] = (!(folded as u16)).to_be_bytes();
    true
}

fn mark_ipv6(packet: &mut [u8]) -> bool {
    // Version (4 bits), traffic class (8), flow label (20): the ECN field is bits 5 and 4 of the second byte.
    let Some([_, second, ..]) = packet.first_chunk_mut::<40>() else { return false };
    let capable = *second & 0x30 != 0;
    if capable {
        *second |= CE << 4;
    }
    capable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(tos: u8) -> Vec<u8> {
        let mut frame = vec![0x52; 12];
        frame.extend(IPV4);
        frame.extend([0x45, tos, 0, 60, 0x1c, 0x46, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0; 40]);
        frame
    }

    /// Returns the ones' complement sum of a header, which is all ones if its checksum is right.
    fn sum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn only_what_is_capable_is_marked_and_the_checksum_stays_right() {
        for tos in 0..=255 {
            let mut frame = ipv4(tos);
            let before = frame.clone();
            assert_eq!(mark(&mut frame), tos & 3 != 0);
            assert_eq!(sum(&frame[14..34]), 0xffff, "type of service {tos:#x}");
            if tos & 3 == 0 {
                assert_eq!(frame, before);
            } else {
                assert_eq!(frame[15], tos | 3);
            }
        }
    }

    #[test]
    fn ipv6_is_marked_in_place() {
        // Traffic class 0xaN, flow label beginning with c.
        for (before, after) in [(0x8c, None), (0x9c, Some(0xbc)), (0xac, Some(0xbc)), (0xbc, Some(0xbc))] {
            let mut frame = vec![0; 60];
            frame[12..16].copy_from_slice(&[IPV6[0], IPV6[1], 0x6a, before]);
            assert_eq!(mark(&mut frame), after.is_some());
            assert_eq!(frame[14..16], [0x6a, after.unwrap_or(before)]);
        }
    }

    #[test]
    fn anything_else_is_left_alone() {
        for len in 0..40 {
            assert!(!mark(&mut vec![0xff; len]));
        }
        let mut short = ipv4(2);
        short.truncate(33);
        assert!(!mark(&mut short));
    }
}
