//! Internet checksums (RFC 1071) that the guest offloads to the card: inserted into sent frames, checked in
//! received frames.

use super::headers::{Headers, Ip, Transport, Version};

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;

/// Inserts the IPv4 header checksum and the TCP or UDP checksum into a frame. Other frames stay unchanged.
pub(crate) fn fill(frame: &mut [u8], headers: &Headers, ip: bool, transport: bool) {
    let Some(header) = headers.ip else { return };
    if ip && header.version == Version::V4 {
        let _ = fill_ipv4(frame, &header);
    }
    if transport {
        let _ = fill_transport(frame, &header);
    }
}

fn fill_ipv4(frame: &mut [u8], ip: &Ip) -> Option<()> {
    let header = frame.get_mut(ip.start..ip.payload)?;
    header.get_mut(IPV4_CHECKSUM..IPV4_CHECKSUM + 2)?.fill(0);
    let sum = !fold(add(0, header));
    header.get_mut(IPV4_CHECKSUM..IPV4_CHECKSUM + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

fn fill_transport(frame: &mut [u8], ip: &Ip) -> Option<()> {
    let (transport, at) = match ip.transport()? {
        Transport::Tcp => (Transport::Tcp, ip.payload + 16),
        Transport::Udp => (Transport::Udp, ip.payload + 6),
    };
    frame.get_mut(at..at + 2)?.fill(0);
    let sum = match !payload_sum(frame, ip)? {
        // In UDP, zero means "no checksum".
        0 if transport == Transport::Udp => 0xffff,
        sum => sum,
    };
    frame.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// Returns the one's complement sum of a packet's payload and its pseudo header. The sum is 0xffff if the
/// payload contains a valid checksum.
fn payload_sum(frame: &[u8], ip: &Ip) -> Option<u16> {
    let payload = frame.get(ip.payload..ip.end)?;
    let sum = add(0, ip.addresses(frame));
    let sum = add(sum, &[0, ip.protocol]);
    let sum = add(sum, &(payload.len() as u32).to_be_bytes());
    Some(fold(add(sum, payload)))
}

/// The card's findings about a received frame: the completion's status, checksum and checksum-ok fields
/// (Linux `include/linux/mlx4/cq.h`, `en_rx.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The status field.
    pub status: u16,
    /// The sum over the IP payload and its pseudo header. For IPv6 without TCP or UDP the sum excludes the
    /// next header, which Linux adds itself.
    pub checksum: u16,
    /// True for TCP or UDP with a valid checksum.
    pub transport_ok: bool,
}

/// Bits of the status field.
pub(crate) mod status {
    /// An IPv4 packet that is not a fragment.
    pub(crate) const IPV4: u16 = 1 << 6;
    /// An IPv4 fragment.
    pub(crate) const IPV4_FRAGMENT: u16 = 1 << 7;
    /// IPv6.
    pub(crate) const IPV6: u16 = 1 << 8;
    /// IPv4 with options.
    pub(crate) const IPV4_OPTIONS: u16 = 1 << 9;
    /// TCP.
    pub(crate) const TCP: u16 = 1 << 10;
    /// UDP.
    pub(crate) const UDP: u16 = 1 << 11;
    /// The IP header is valid.
    pub(crate) const IP_OK: u16 = 1 << 12;
}

/// Checks a received frame.
#[must_use]
pub(crate) fn check(frame: &[u8], headers: &Headers) -> Verdict {
    let Some(ip) = headers.ip else { return Verdict::default() };
    let header = frame.get(ip.start..ip.payload).unwrap_or_default();
    let mut flags = match ip.version {
        Version::V4 if ip.fragment => status::IPV4_FRAGMENT,
        Version::V4 => status::IPV4,
        Version::V6 => status::IPV6,
    };
    if ip.options {
        flags |= status::IPV4_OPTIONS;
    }
    if ip.version == Version::V6 || fold(add(0, header)) == 0xffff {
        flags |= status::IP_OK;
    }
    let transport = ip.transport();
    match transport {
        Some(Transport::Tcp) => flags |= status::TCP,
        Some(Transport::Udp) => flags |= status::UDP,
        None => {}
    }
    let mut sum = payload_sum(frame, &ip).unwrap_or(0);
    if ip.version == Version::V6 && transport.is_none() {
        sum = fold(u32::from(sum) + u32::from(!u16::from(ip.protocol)));
    }
    // A UDP packet without a checksum does not count as valid.
    let without = transport == Some(Transport::Udp)
        && frame.get(ip.payload + 6..ip.payload + 8).is_some_and(|sum| sum == [0, 0]);
    let transport_ok = transport.is_some() && sum == 0xffff && !without;
    if without && sum == 0xffff {
        sum = 0;
    }
    Verdict { status: flags, checksum: sum, transport_ok }
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let sum = pairs.iter().fold(sum, |sum, pair| {
        let sum = sum + u32::from(u16::from_be_bytes(*pair));
        // The partial fold keeps every carry, for packets of any length.
        (sum & 0xffff) + (sum >> 16)
    });
    sum + last.first().map_or(0, |byte| u32::from(*byte) << 8)
}

const fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::super::headers::Length;
    use super::*;

    fn headers(frame: &[u8]) -> Headers {
        Headers::parse(frame, Length::AsStated)
    }

    #[test]
    fn a_known_packet() {
        // UDP, 192.0.2.1:7 to 192.0.2.2:9, "abc"; the checksums were computed by another program.
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 0, 31, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend([0, 7, 0, 9, 0, 11, 0xde, 0xad, b'a', b'b', b'c']);
        let found = headers(&frame);
        fill(&mut frame, &found, true, true);
        assert_eq!(fold(add(0, &frame[14..34])), 0xffff, "a header with its checksum sums to all ones");
        let mut sum = add(0, &frame[26..34]);
        sum = add(sum, &[0, 17, 0, 11]);
        assert_eq!(fold(add(sum, &frame[34..])), 0xffff);
        let right = Verdict {
            status: status::IPV4 | status::UDP | status::IP_OK,
            checksum: 0xffff,
            transport_ok: true,
        };
        assert_eq!(check(&frame, &headers(&frame)), right);
        // Padding behind the packet does not count.
        frame.resize(60, 0xa5);
        assert_eq!(check(&frame, &headers(&frame)), right);
        // One bit of the payload, and one bit of the header.
        frame[42] ^= 1;
        assert!(!check(&frame, &headers(&frame)).transport_ok);
        frame[22] ^= 1;
        assert_eq!(check(&frame, &headers(&frame)).status & status::IP_OK, 0);
    }

    #[test]
    fn rubbish_changes_nothing() {
        let mut rubbish = vec![0xff; 20];
        let found = headers(&rubbish);
        fill(&mut rubbish, &found, true, true);
        assert_eq!(rubbish, [0xff; 20]);
        assert_eq!(check(&rubbish, &found), Verdict::default());
    }
}
