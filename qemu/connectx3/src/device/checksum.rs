//! Internet checksums that the guest leaves to the card (RFC 1071).

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Puts the IPv4 header's and the TCP or UDP checksum into a frame. What is neither stays as it is.
pub fn fill(frame: &mut [u8], ip: bool, transport: bool) {
    if ip || transport {
        let _ = fill_from(frame, ip, transport);
    }
}

fn fill_from(frame: &mut [u8], ip: bool, transport: bool) -> Option<()> {
    let mut start = 14;
    let mut kind = be16(frame, 12)?;
    if kind == ETHERTYPE_VLAN {
        kind = be16(frame, 16)?;
        start = 18;
    }
    let packet = frame.get_mut(start..)?;
    let (header, protocol, addresses, total) = match kind {
        ETHERTYPE_IPV4 => {
            let header = usize::from(*packet.first()? & 0xf) * 4;
            if ip {
                packet.get_mut(10..12)?.fill(0);
                let sum = finish(add(0, packet.get(..header)?));
                packet.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
            }
            let fragment = be16(packet, 6)? & 0x3fff != 0;
            let protocol = if fragment { 0 } else { *packet.get(9)? };
            (header, protocol, 12..20, usize::from(be16(packet, 2)?))
        }
        ETHERTYPE_IPV6 => (40, *packet.get(6)?, 8..40, 40 + usize::from(be16(packet, 4)?)),
        _ => return None,
    };
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    if !transport {
        return None;
    }
    let len = total.checked_sub(header)?;
    let mut sum = add(0, packet.get(addresses)?);
    sum = add(sum, &[0, protocol]);
    sum = add(sum, &(len as u32).to_be_bytes());
    let segment = packet.get_mut(header..total)?;
    segment.get_mut(at..at + 2)?.fill(0);
    let sum = match finish(add(sum, segment)) {
        // Zero means "none" in UDP.
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    segment.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let word = match *pair {
            [high, low] => u16::from_be_bytes([high, low]),
            [high] => u16::from_be_bytes([high, 0]),
            _ => 0,
        };
        sum + u32::from(word)
    })
}

const fn finish(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_packet() {
        // UDP, 192.0.2.1:7 to 192.0.2.2:9, "abc"; sums made by another program.
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 0, 31, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend([0, 7, 0, 9, 0, 11, 0xde, 0xad, b'a', b'b', b'c']);
        fill(&mut frame, true, true);
        assert_eq!(finish(add(0, &frame[14..34])), 0, "a header with its checksum sums to zero");
        let mut sum = add(0, &frame[26..34]);
        sum = add(sum, &[0, 17, 0, 11]);
        assert_eq!(finish(add(sum, &frame[34..])), 0);
        // Padding behind the packet does not count, and rubbish changes nothing.
        let mut rubbish = vec![0xff; 20];
        fill(&mut rubbish, true, true);
        assert_eq!(rubbish, [0xff; 20]);
    }
}
