//! The datagrams that carry the messages of a set-up: a header that names the attempt, and an encrypted
//! message.
//!
//! ```text
//!     0         1        2           4           6      8
//!     +---------+--------+-----------+-----------+------+
//!     | version | sender | requester | responder | zero |
//!     +---------+--------+-----------+-----------+------+
//!     8             16            24      32      44
//!     +-------------+-------------+-------+-------+---------+-----+
//!     | requester's | responder's | stamp | nonce | message | tag |
//!     | incarnation | incarnation |       |       |         |     |
//!     +-------------+-------------+-------+-------+---------+-----+
//! ```
//!
//! Numbers are little-endian. The message is encrypted with the key of the [voucher](proto::VoucherKey) for
//! the attempt; the tag of 16 bytes covers the header too.

use super::wire::{SetUp, VERSION};
use alloc::vec::Vec;
use proto::{Attempt, Incarnation, MessageTag, NodeId, Nonce, VoucherKey};

/// The length of the longest datagram, in bytes: the path MTU of an Ethernet without jumbo frames.
pub(crate) const MAX_DATAGRAM: usize = 1024;
/// The length of the header, in bytes. Its last bytes are the nonce.
const HEADER: usize = 44;
const NONCE: usize = 12;
const TAG: usize = 16;

/// The end of an attempt that has sent a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    Requester = 0,
    Responder = 1,
}

/// Returns the datagram with a message. `nonce` must be random.
pub(crate) fn write(
    key: &VoucherKey,
    attempt: &Attempt,
    sender: Sender,
    nonce: Nonce,
    message: &SetUp,
) -> Vec<u8> {
    let Attempt { requester, responder, stamp } = attempt;
    let mut text = proto::encode(message);
    let mut bytes = Vec::with_capacity(HEADER + text.len() + TAG);
    bytes.extend([VERSION, sender as u8]);
    bytes.extend(requester.0.0.to_le_bytes());
    bytes.extend(responder.0.0.to_le_bytes());
    bytes.extend([0; 2]);
    for number in [requester.1.0, responder.1.0, *stamp] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(nonce);
    let tag = key.encrypt(&nonce, &bytes, &mut text);
    bytes.extend(text);
    bytes.extend(tag);
    bytes
}

/// Returns the attempt and the sender that a datagram names, which are not proven yet. Returns `None` if the
/// bytes are no datagram of this version.
pub(crate) fn header(bytes: &[u8]) -> Option<(Attempt, Sender)> {
    if bytes.len() <= HEADER + TAG || bytes.len() > MAX_DATAGRAM {
        return None;
    }
    let &[version, sender, a, b, c, d, 0, 0] = bytes.first_chunk()? else { return None };
    let sender = match (version, sender) {
        (VERSION, 0) => Sender::Requester,
        (VERSION, 1) => Sender::Responder,
        _ => return None,
    };
    let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let attempt = Attempt {
        requester: (NodeId(u16::from_le_bytes([a, b])), Incarnation(number(8)?)),
        responder: (NodeId(u16::from_le_bytes([c, d])), Incarnation(number(16)?)),
        stamp: number(24)?,
    };
    Some((attempt, sender))
}

/// Decrypts the message of a datagram in place, and returns it. Returns `None` if the datagram is forged.
pub(crate) fn read(key: &VoucherKey, bytes: &mut [u8]) -> Option<SetUp> {
    let (header, rest) = bytes.split_at_mut_checked(HEADER)?;
    let (text, tag) = rest.split_last_chunk_mut::<TAG>()?;
    let nonce: Nonce = *header.last_chunk::<NONCE>()?;
    let tag: MessageTag = *tag;
    key.decrypt(&nonce, header, text, &tag).ok()?;
    proto::decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::super::wire::{End, MAX_REASON, Request, RpcAreas};
    use super::*;
    use crate::base::config::MOST_CORES;
    use crate::channel::RpcArea;
    use alloc::string::String;
    use alloc::vec;
    use platform::IoAddr;
    use proto::MemberKey;
    use verbs::{LinkKind, PathMtu, Psn, QpNum};

    fn attempt() -> Attempt {
        Attempt {
            requester: (NodeId(0x102), Incarnation(3)),
            responder: (NodeId(4), Incarnation(5)),
            stamp: 0x0600,
        }
    }

    fn key() -> VoucherKey {
        MemberKey::from_bytes([1; 32]).voucher(&attempt())
    }

    /// The message with the longest encoding.
    fn longest() -> SetUp {
        let rpc = RpcArea {
            ring: IoAddr(u64::MAX),
            ring_len: u32::MAX,
            slots: IoAddr(u64::MAX),
            slot_len: u32::MAX,
            slot_count: u32::MAX,
        };
        let end = End {
            link: LinkKind::InfiniBand,
            mtu: PathMtu::B4096,
            rd_atomic: u8::MAX,
            queue_pairs: vec![(QpNum::new(0xff_ffff), Psn::new(0xff_ffff)); 4 * MOST_CORES],
            rpc: RpcAreas::new(&vec![rpc; MOST_CORES]),
        };
        SetUp::Request(Request { end, answer_to: Some(QpNum::new(0xff_ffff)) })
    }

    #[test]
    fn golden_header() {
        let bytes = write(&key(), &attempt(), Sender::Responder, [9; NONCE], &SetUp::Full);
        let mut golden = vec![VERSION, 1, 2, 1, 4, 0, 0, 0];
        for number in [3, 5, 0, 0] {
            golden.extend([number, 0, 0, 0, 0, 0, 0, 0]);
        }
        golden.truncate(HEADER - NONCE);
        golden[25] = 6;
        golden.extend([9; NONCE]);
        assert_eq!(bytes[..HEADER], golden);
        assert_eq!(bytes.len(), HEADER + 1 + TAG);
        assert_eq!(header(&bytes), Some((attempt(), Sender::Responder)));
    }

    #[test]
    fn every_message_fits_and_is_read_back() {
        let reason = SetUp::Refused(String::from_utf8(vec![b'x'; MAX_REASON]).unwrap());
        for message in [longest(), reason, SetUp::Ready] {
            let mut bytes = write(&key(), &attempt(), Sender::Requester, [9; NONCE], &message);
            assert!(bytes.len() <= MAX_DATAGRAM, "{} bytes", bytes.len());
            assert_eq!(read(&key(), &mut bytes), Some(message));
        }
    }

    #[test]
    fn a_forged_datagram_costs_no_allocation() {
        let member = MemberKey::from_bytes([1; 32]);
        let mut forged = write(&key(), &attempt(), Sender::Requester, [9; NONCE], &longest());
        forged[50] ^= 1;
        let mut refused = false;
        let heap = allocation_counter::measure(|| {
            let (attempt, _) = header(&forged).unwrap();
            refused = read(&member.voucher(&attempt), &mut forged).is_none();
        });
        assert!(refused);
        assert_eq!(heap.count_total, 0);
    }

    #[test]
    fn a_datagram_that_is_cut_short_or_changed_is_not_read() {
        let whole = write(&key(), &attempt(), Sender::Requester, [9; NONCE], &longest());
        for len in 0..whole.len() {
            let mut short = whole[..len].to_vec();
            assert_eq!(read(&key(), &mut short), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 0x10;
            assert_eq!(read(&key(), &mut bent), None, "byte {at}");
        }
        assert_eq!(header(&whole[..HEADER + TAG]), None);
        assert_eq!(header(&[whole.clone(), vec![0; MAX_DATAGRAM]].concat()), None);
        let mut other = whole;
        other[0] = VERSION - 1;
        assert_eq!(header(&other), None);
    }
}
