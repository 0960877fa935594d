//! Receive side scaling: one queue pair distributes frames over others by a hash of their addresses and ports
//! (Linux `mlx4_rss_context`; the Toeplitz hash is Microsoft's).

use super::headers::{Headers, Transport, Version};
use crate::device::layout::{Field, qp_context as qp};

/// The length of the Toeplitz key, in bytes.
pub(crate) const KEY: usize = 40;

/// Protocols whose headers are hashed.
mod flag {
    pub(super) const UDP_IPV6: u8 = 1 << 0;
    pub(super) const UDP_IPV4: u8 = 1 << 1;
    pub(super) const TCP_IPV6: u8 = 1 << 2;
    pub(super) const IPV6: u8 = 1 << 3;
    pub(super) const TCP_IPV4: u8 = 1 << 4;
    pub(super) const IPV4: u8 = 1 << 5;
}

/// The hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashFunction {
    /// The exclusive or of all 32-bit words, folded to eight bits.
    Xor,
    /// The Toeplitz hash, as specified by Microsoft.
    Toeplitz,
}

/// The receive side scaling context of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rss {
    /// The first of the target queue pairs.
    pub base_qpn: u32,
    /// The first of the target queue pairs for UDP.
    pub base_qpn_udp: u32,
    /// log2 of the number of target queue pairs.
    pub log_size: u8,
    /// The queue pair for frames that are not hashed.
    pub default_qpn: u32,
    /// The hash function.
    pub function: HashFunction,
    /// The protocols to be hashed, bits of [`flag`].
    pub flags: u8,
    /// The key of the Toeplitz hash.
    pub key: [u8; KEY],
}

impl Rss {
    /// Parses the context. `field` returns the value of a field of the queue pair's context.
    #[must_use]
    pub(crate) fn parse(field: impl Fn(Field) -> u32) -> Option<Self> {
        const TABLE: u32 = 0xf;
        const PROTOCOLS: u32 = 0x3f;
        const WORDS: [Field; KEY / 4] = [
            qp::KEY_0,
            qp::KEY_1,
            qp::KEY_2,
            qp::KEY_3,
            qp::KEY_4,
            qp::KEY_5,
            qp::KEY_6,
            qp::KEY_7,
            qp::KEY_8,
            qp::KEY_9,
        ];
        let function = match field(qp::HASH_FUNCTION) {
            0 => HashFunction::Xor,
            1 => HashFunction::Toeplitz,
            _ => return None,
        };
        let mut key = [0; KEY];
        for (place, word) in key.as_chunks_mut::<4>().0.iter_mut().zip(WORDS) {
            *place = field(word).to_be_bytes();
        }
        Some(Self {
            base_qpn: field(qp::SPREAD_BASE),
            base_qpn_udp: field(qp::SPREAD_BASE_UDP) & 0xff_ffff,
            log_size: (field(qp::LOG_SPREAD) & TABLE) as u8,
            default_qpn: field(qp::SPREAD_DEFAULT),
            function,
            flags: (field(qp::HASH_OF) & PROTOCOLS) as u8,
            key,
        })
    }

    /// Returns the target queue pair of a frame, and its hash, which is 0 if the frame is not hashed.
    #[must_use]
    pub(crate) fn spread(&self, frame: &[u8], headers: &Headers) -> (u32, u32) {
        let Some(ip) = headers.ip else { return (self.default_qpn, 0) };
        let (tcp, udp, alone) = match ip.version {
            Version::V4 => (flag::TCP_IPV4, flag::UDP_IPV4, flag::IPV4),
            Version::V6 => (flag::TCP_IPV6, flag::UDP_IPV6, flag::IPV6),
        };
        let has = |bit: u8| self.flags & bit != 0;
        let (ports, base) = match ip.transport() {
            Some(Transport::Tcp) if has(tcp) => (true, self.base_qpn),
            Some(Transport::Udp) if has(udp) => (true, self.base_qpn_udp),
            _ if has(alone) => (false, self.base_qpn),
            _ => return (self.default_qpn, 0),
        };
        let ports = if ports { frame.get(ip.payload..ip.payload + 4).unwrap_or_default() } else { &[] };
        let hash = self.hash([ip.addresses(frame), ports]);
        (base + (hash & ((1 << self.log_size) - 1)), hash)
    }

    fn hash(&self, input: [&[u8]; 2]) -> u32 {
        match self.function {
            HashFunction::Toeplitz => toeplitz(&self.key, input),
            HashFunction::Xor => {
                let words = input.iter().flat_map(|part| part.as_chunks::<4>().0);
                let [a, b, c, d] = words.fold(0, |sum, word| sum ^ u32::from_be_bytes(*word)).to_be_bytes();
                u32::from(a ^ b ^ c ^ d)
            }
        }
    }
}

/// Returns the Toeplitz hash: the exclusive or, over each set bit of the input, of the 32 bits of the key
/// that begin at the bit's position.
fn toeplitz(key: &[u8; KEY], input: [&[u8]; 2]) -> u32 {
    let mut result = 0;
    for (at, byte) in input.iter().copied().flatten().enumerate() {
        let window =
            key.get(at..at + 5).map_or(0, |part| part.iter().fold(0, |w: u64, b| w << 8 | u64::from(*b)));
        for bit in (0..8).filter(|bit| byte >> (7 - bit) & 1 != 0) {
            result ^= (window >> (8 - bit)) as u32;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const MICROSOFT: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn input(source: &str, destination: &str, ports: [u16; 2]) -> (Vec<u8>, Vec<u8>) {
        let octets = |text: &str| match text.parse().unwrap() {
            core::net::IpAddr::V4(address) => address.octets().to_vec(),
            core::net::IpAddr::V6(address) => address.octets().to_vec(),
        };
        let ports = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        ([octets(source), octets(destination)].concat(), ports)
    }

    #[test]
    fn microsofts_vectors() {
        // Destination and its port, source and its port, hash of the addresses, hash of addresses and ports.
        let vectors = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (destination, to, source, from, alone, with_ports) in vectors {
            let (addresses, ports) = input(source, destination, [from, to]);
            assert_eq!(toeplitz(&MICROSOFT, [&addresses, &[]]), alone, "{source} to {destination}");
            assert_eq!(toeplitz(&MICROSOFT, [&addresses, &ports]), with_ports, "{source} to {destination}");
        }
    }
}
