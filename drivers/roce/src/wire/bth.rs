//! The base transport header.

use super::{Error, be24, take, to_be24};
use verbs::{Psn, QpNum};

/// The transport service: the top three bits of the operation code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification: not a service of a queue pair, but a kind of packet that RoCEv2 adds (annex
    /// A17.9.3).
    Cnp = 4,
    /// Extended reliable connection (annex A14): like the reliable connection, but each request names the
    /// shared receive queue that it is for.
    Xrc = 5,
}

/// The operation: the low five bits of the operation code (specification table 38).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the specification's names say it")]
pub enum Operation {
    SendFirst = 0,
    SendMiddle = 1,
    SendLast = 2,
    SendLastImm = 3,
    SendOnly = 4,
    SendOnlyImm = 5,
    WriteFirst = 6,
    WriteMiddle = 7,
    WriteLast = 8,
    WriteLastImm = 9,
    WriteOnly = 10,
    WriteOnlyImm = 11,
    ReadRequest = 12,
    ReadResponseFirst = 13,
    ReadResponseMiddle = 14,
    ReadResponseLast = 15,
    ReadResponseOnly = 16,
    Acknowledge = 17,
    AtomicAcknowledge = 18,
    CompareSwap = 19,
    FetchAdd = 20,
    SendLastInvalidate = 22,
    SendOnlyInvalidate = 23,
    /// The congestion notification packet, the only operation of [`Service::Cnp`].
    CongestionNotification = 0x20 | 1,
}

impl Operation {
    const ALL: [Self; 23] = {
        use Operation as O;
        [
            O::SendFirst,
            O::SendMiddle,
            O::SendLast,
            O::SendLastImm,
            O::SendOnly,
            O::SendOnlyImm,
            O::WriteFirst,
            O::WriteMiddle,
            O::WriteLast,
            O::WriteLastImm,
            O::WriteOnly,
            O::WriteOnlyImm,
            O::ReadRequest,
            O::ReadResponseFirst,
            O::ReadResponseMiddle,
            O::ReadResponseLast,
            O::ReadResponseOnly,
            O::Acknowledge,
            O::AtomicAcknowledge,
            O::CompareSwap,
            O::FetchAdd,
            O::SendLastInvalidate,
            O::SendOnlyInvalidate,
        ]
    };

    /// Returns the operation with the number `n`; 21 and those above 23 are reserved.
    const fn from_number(n: u8) -> Option<Self> {
        match n {
            0..=20 => Some(Self::ALL[n as usize]),
            22 | 23 => Some(Self::ALL[n as usize - 1]),
            _ => None,
        }
    }

    /// Returns true if responders send the operation, as a response to a request.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 13..=18)
    }
}

/// An operation code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode {
    /// The service.
    pub service: Service,
    /// The operation. The service must support it.
    pub operation: Operation,
}

impl Opcode {
    /// Returns an operation code of the reliable connection.
    #[must_use]
    pub const fn rc(operation: Operation) -> Self {
        Self { service: Service::Rc, operation }
    }

    /// The operation code of the congestion notification packet.
    pub const CNP: Self = Self { service: Service::Cnp, operation: Operation::CongestionNotification };

    /// Returns the operation code for a byte, or `None` if it is reserved or of a service that is not
    /// supported.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let Some(operation) = Operation::from_number(byte & 0x1f) else { return None };
        let number = byte & 0x1f;
        let service = match byte >> 5 {
            0 => Service::Rc,
            1 if number <= 11 => Service::Uc,
            3 if number == 4 || number == 5 => Service::Ud,
            4 if number == 1 => return Some(Self::CNP),
            5 => Service::Xrc,
            _ => return None,
        };
        Some(Self { service, operation })
    }

    /// Returns the byte of the operation code.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        (self.service as u8) << 5 | self.operation as u8 & 0x1f
    }
}

/// The XRC extended transport header (annex A14.3.1), which follows the base header of every XRC request: a
/// reserved byte and the number of the responder's shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcEth(u32);

impl XrcEth {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Makes the header for a shared receive queue, from the low 24 bits of its number.
    #[must_use]
    pub const fn new(srq: u32) -> Self {
        Self(srq & 0xff_ffff)
    }

    /// Returns the number of the shared receive queue.
    #[must_use]
    pub const fn srq(self) -> u32 {
        self.0 & 0xff_ffff
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub const fn emit(self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

/// A base transport header (specification 9.2), with the XRC header that belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Operation code.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state.
    pub migrated: bool,
    /// The number of zero bytes after the payload, up to a multiple of 4: 0 to 3.
    pub pad: u8,
    /// Transport header version: 4 bits, always 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// The byte before the queue pair: FECN, BECN, and six reserved bits. It is variant: the ICRC does not
    /// cover it.
    pub congestion: u8,
    /// Destination queue pair.
    pub dest_qp: QpNum,
    /// Acknowledge request.
    pub ack_request: bool,
    /// Seven reserved bits.
    pub reserved: u8,
    /// Packet sequence number.
    pub psn: Psn,
    /// The XRC header, which follows in XRC requests only.
    pub xrc: Option<XrcEth>,
}

impl Bth {
    /// The length on the wire without the XRC header, in bytes.
    pub const LEN: usize = 12;
    /// The default partition with full membership, the only one on RoCE.
    pub const DEFAULT_PKEY: u16 = 0xffff;
    /// The offset of the byte that counts as ones in the ICRC.
    pub const VARIANT_BYTE: usize = 4;

    /// Makes a header with default values in all other fields.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: QpNum, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            version: 0,
            pkey: Self::DEFAULT_PKEY,
            congestion: 0,
            dest_qp,
            ack_request: false,
            reserved: 0,
            psn,
            xrc: None,
        }
    }

    /// Returns the length of the XRC header on the wire, in bytes.
    #[must_use]
    pub const fn xrc_len(&self) -> usize {
        if self.xrc.is_some() { XrcEth::LEN } else { 0 }
    }

    /// Parses the header at the front of `bytes`, and the XRC header if the operation has one. Returns the
    /// remaining bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (&[op, flags, p, q, congestion, a, b, c, ack, d, e, f], rest) = take::<{ Self::LEN }>(bytes)?;
        let opcode = Opcode::from_byte(op).ok_or(Error::Opcode(op))?;
        let (xrc, rest) = if opcode.service == Service::Xrc && !opcode.operation.is_response() {
            let (&word, rest) = take(rest)?;
            (Some(XrcEth(u32::from_be_bytes(word))), rest)
        } else {
            (None, rest)
        };
        let header = Self {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            version: flags & 0x0f,
            pkey: u16::from_be_bytes([p, q]),
            congestion,
            dest_qp: QpNum::new(be24([a, b, c])),
            ack_request: ack & 0x80 != 0,
            reserved: ack & 0x7f,
            psn: Psn::new(be24([d, e, f])),
            xrc,
        };
        Ok((header, rest))
    }

    /// Returns the bytes of the header, without the XRC header.
    #[must_use]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let flags = (self.solicited as u8) << 7
            | (self.migrated as u8) << 6
            | (self.pad & 3) << 4
            | self.version & 0x0f;
        let [p, q] = self.pkey.to_be_bytes();
        let [a, b, c] = to_be24(self.dest_qp.get());
        let [d, e, f] = to_be24(self.psn.get());
        let ack = (self.ack_request as u8) << 7 | self.reserved & 0x7f;
        [self.opcode.to_byte(), flags, p, q, self.congestion, a, b, c, ack, d, e, f]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_keeps_its_byte() {
        let known = (0..=255).filter_map(|b| Opcode::from_byte(b).map(|o| (b, o)));
        let mut count = 0;
        for (byte, opcode) in known {
            assert_eq!(opcode.to_byte(), byte);
            count += 1;
        }
        assert_eq!(count, 2 * 23 + 12 + 2 + 1);
        assert_eq!(Opcode::CNP.to_byte(), 0x81);
    }

    #[test]
    fn only_xrc_requests_name_a_shared_receive_queue() {
        let bytes = [0xa4, 0x80, 0xff, 0xff, 0, 0x80, 0, 0x4a, 0x80, 0, 0, 7, 0x5a, 0, 1, 0x42, 9];
        let (bth, rest) = Bth::parse(&bytes).unwrap();
        assert_eq!(bth.opcode, Opcode { service: Service::Xrc, operation: Operation::SendOnly });
        assert_eq!((bth.xrc.unwrap().srq(), bth.xrc_len(), rest), (0x142, 4, &[9][..]));
        assert_eq!([&bth.emit()[..], &bth.xrc.unwrap().emit()].concat(), bytes[..16]);
        assert_eq!(Bth::parse(&bytes[..15]), Err(Error::Truncated));
        let mut acknowledge = bytes;
        acknowledge[0] = 0xb1;
        let (bth, rest) = Bth::parse(&acknowledge).unwrap();
        assert_eq!((bth.xrc, rest.len()), (None, 5));
    }
}
