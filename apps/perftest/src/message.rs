//! The messages of the TCP exchange of perftest 4.5 (version 6.06 in perftest's own numbering).
//!
//! Source: perftest's `perftest_communication.c`. Messages have fixed lengths; keys are text, other numbers
//! are big-endian.

use alloc::format;
use core::str;
use platform::IoAddr;
use verbs::{Gid, PathMtu, Psn, QpNum, RemoteKey};

/// Bytes of the message with the version number, text padded with zeros.
pub const VERSION_LEN: usize = 16;
/// The version that this side announces.
pub const VERSION: [u8; VERSION_LEN] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// The oldest perftest version that uses this exchange.
const OLDEST: (u32, u32) = (5, 70);
/// Bytes of the message about a queue pair with a GID.
pub const KEYS_LEN: usize = 108;
/// Bytes of the message about a queue pair without a GID, as between InfiniBand ports.
pub const KEYS_BY_LID_LEN: usize = 59;
/// The last message, in both directions.
pub const DONE: [u8; 5] = *b"done\0";

/// Returns true if a peer's version is supported. Its text is `MAJOR.MINOR`.
#[must_use]
pub fn is_compatible(version: &[u8; VERSION_LEN]) -> bool {
    let text = version.split(|b| *b == 0).next().unwrap_or_default();
    let Ok(text) = str::from_utf8(text) else { return false };
    let Some((major, minor)) = text.split_once('.') else { return false };
    let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else { return false };
    (major, minor) >= OLDEST
}

/// Encodes a path MTU as its verbs number in text: 1 is 256 bytes, 5 is 4096.
#[must_use]
pub fn mtu_bytes(mtu: PathMtu) -> [u8; 2] {
    [b'1' + mtu as u8, 0]
}

/// Decodes the peer's path MTU.
#[must_use]
pub fn parse_mtu(bytes: [u8; 2]) -> Option<PathMtu> {
    let index = bytes[0].checked_sub(b'1')?;
    PathMtu::ALL.get(usize::from(index)).copied()
}

/// The description of a queue pair that a side sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Local identifier; zero on Ethernet.
    pub lid: u16,
    /// READs and atomics that the queue pair keeps outstanding and answers.
    pub outstanding: u16,
    /// The queue pair.
    pub qp: QpNum,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
    /// The remote key of the side's memory.
    pub key: RemoteKey,
    /// The address that the peer's operations on this queue pair name.
    pub addr: IoAddr,
    /// The GID of the port; `None` where LIDs identify ports.
    pub gid: Option<Gid>,
}

impl Keys {
    /// Encodes the keys as text with a terminating zero, in a message of `LEN` bytes.
    #[must_use]
    pub fn encode<const LEN: usize>(&self) -> [u8; LEN] {
        let Self { lid, outstanding, qp, psn, key, addr, gid } = self;
        let (qp, psn) = (qp.get(), psn.get());
        let mut text =
            format!("{lid:04x}:{outstanding:04x}:{qp:06x}:{psn:06x}:{:08x}:{:016x}:", key.0, addr.0);
        for byte in gid.iter().flat_map(|gid| gid.0) {
            text.push_str(&format!("{byte:02x}:"));
        }
        // The number of the shared receive queue: there is none.
        text.push_str(if gid.is_some() { "00000000:" } else { "00000000" });
        let mut message = [0; LEN];
        for (to, from) in message.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        message
    }

    /// Decodes a peer's keys, whose length tells whether they contain a GID. Returns `None` if the message is
    /// malformed.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let text = str::from_utf8(message.split(|b| *b == 0).next()?).ok()?;
        let mut fields = text.split(':');
        let mut hex = |digits: usize| {
            let field = fields.next()?;
            let plain = field.len() == digits && field.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then_some(())?;
            u64::from_str_radix(field, 16).ok()
        };
        let (lid, outstanding) = (hex(4)? as u16, hex(4)? as u16);
        let (qp, psn) = (QpNum::new(hex(6)? as u32), Psn::new(hex(6)? as u32));
        let (key, addr) = (RemoteKey(hex(8)? as u32), IoAddr(hex(16)?));
        let with_gid = message.len() == KEYS_LEN;
        let mut gid = [0; 16];
        for byte in gid.iter_mut().filter(|_| with_gid) {
            *byte = hex(2)? as u8;
        }
        hex(8)?;
        if (with_gid && fields.next() != Some("")) || fields.next().is_some() {
            return None;
        }
        Some(Self { lid, outstanding, qp, psn, key, addr, gid: with_gid.then_some(Gid(gid)) })
    }
}

/// The result of one side of a bandwidth test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    /// The length of a message, in bytes.
    pub size: u64,
    /// The number of messages, summed over all queue pairs.
    pub iterations: u64,
    /// Peak MiB (2^20 bytes) per second; 0 if not measured.
    pub peak: f64,
    /// MiB per second on average.
    pub average: f64,
    /// Millions of messages per second.
    pub rate: f64,
}

impl Bandwidth {
    /// Encodes the five values, each of which is exchanged on its own.
    #[must_use]
    pub fn encode(&self) -> [[u8; 8]; 5] {
        let [peak, average, rate] = [self.peak, self.average, self.rate].map(|f| f.to_bits().to_be_bytes());
        [self.size.to_be_bytes(), self.iterations.to_be_bytes(), peak, average, rate]
    }

    /// Decodes the peer's values.
    #[must_use]
    pub fn decode(values: [[u8; 8]; 5]) -> Self {
        let [size, iterations, peak, average, rate] = values.map(u64::from_be_bytes);
        let [peak, average, rate] = [peak, average, rate].map(f64::from_bits);
        Self { size, iterations, peak, average, rate }
    }

    /// Adds the results of both sides.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self {
            peak: self.peak + other.peak,
            average: self.average + other.average,
            rate: self.rate + other.rate,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[u8; KEYS_LEN] = b"0000:0001:000011:8fd7d7:0000059d:000055c5a0f0a000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";

    #[test]
    fn keys_are_text() {
        let keys = Keys::parse(KEYS).unwrap();
        assert_eq!((keys.qp.get(), keys.psn.get(), keys.key.0), (0x11, 0x8f_d7d7, 0x59d));
        assert_eq!((keys.addr.0, keys.gid), (0x55c5_a0f0_a000, Some(Gid::from_ipv4([10, 0, 0, 1]))));
        assert_eq!(keys.encode::<KEYS_LEN>(), *KEYS);
    }

    #[test]
    fn keys_by_lid_have_no_gid() {
        let message = b"0002:0010:000048:8fd7d7:0000059d:000055c5a0f0a000:00000000\0";
        let keys = Keys::parse(message).unwrap();
        assert_eq!((keys.lid, keys.outstanding, keys.addr.0), (2, 16, 0x55c5_a0f0_a000));
        assert_eq!(keys.gid, None);
        assert_eq!(keys.encode::<KEYS_BY_LID_LEN>(), *message);
        assert_eq!(Keys::parse(&message[..50]), None);
        assert_eq!(Keys::parse(&KEYS[..KEYS_BY_LID_LEN]), None);
    }

    #[test]
    fn any_other_text_is_refused() {
        for at in 0..KEYS_LEN - 1 {
            for byte in [0, b':', b'x', b'-', b'+', 0xff] {
                let mut message = *KEYS;
                message[at] = byte;
                assert!(message == *KEYS || Keys::parse(&message).is_none(), "{at}: {byte}");
            }
        }
        assert_eq!(Keys::parse(&[0; KEYS_LEN]), None);
    }

    #[test]
    fn versions() {
        let version = |text: &str| {
            let mut bytes = [0; VERSION_LEN];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            is_compatible(&bytes)
        };
        assert!(version("6.06") && version("5.70") && version("6.20") && version("26.01"));
        assert!(!version("5.69") && !version("") && !version("6") && !version("six.0"));
    }

    #[test]
    fn mtus() {
        assert_eq!(mtu_bytes(PathMtu::B4096), *b"5\0");
        for mtu in PathMtu::ALL {
            assert_eq!(parse_mtu(mtu_bytes(mtu)), Some(mtu));
        }
        assert_eq!((parse_mtu(*b"0\0"), parse_mtu(*b"6\0")), (None, None));
    }

    #[test]
    fn reports_are_big_endian() {
        let report = Bandwidth { size: 65536, iterations: 1000, peak: 57.5, average: 50.25, rate: 0.000_804 };
        let values = report.encode();
        assert_eq!(values[0], [0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(values[2], [0x40, 0x4c, 0xc0, 0, 0, 0, 0, 0]);
        assert_eq!(Bandwidth::decode(values), report);
    }
}
