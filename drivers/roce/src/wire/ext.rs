//! The extended transport headers that follow the base one.

use super::{Error, Operation, Service, be24, bth::Opcode, take, to_be24};
use core::time::Duration;
use platform::IoAddr;
use verbs::{QpNum, RemoteKey};

/// RDMA extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address.
    pub addr: IoAddr,
    /// R_Key.
    pub key: RemoteKey,
    /// DMA length: the length of the whole message, in bytes.
    pub len: u32,
}

impl Reth {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 16;

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (addr, rest) = take(bytes)?;
        let (key, rest) = take(rest)?;
        let (len, rest) = take(rest)?;
        let header = Self {
            addr: IoAddr(u64::from_be_bytes(*addr)),
            key: RemoteKey(u32::from_be_bytes(*key)),
            len: u32::from_be_bytes(*len),
        };
        Ok((header, rest))
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.addr.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.key.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// Atomic extended transport header. Numbers are big-endian on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address.
    pub addr: IoAddr,
    /// R_Key.
    pub key: RemoteKey,
    /// The value to store (compare-and-swap) or to add (fetch-and-add).
    pub swap_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

impl AtomicEth {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 28;

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (addr, rest) = take(bytes)?;
        let (key, rest) = take(rest)?;
        let (swap_add, rest) = take(rest)?;
        let (compare, rest) = take(rest)?;
        let header = Self {
            addr: IoAddr(u64::from_be_bytes(*addr)),
            key: RemoteKey(u32::from_be_bytes(*key)),
            swap_add: u64::from_be_bytes(*swap_add),
            compare: u64::from_be_bytes(*compare),
        };
        Ok((header, rest))
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.addr.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.key.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..28].copy_from_slice(&self.compare.to_be_bytes());
        out
    }
}

/// The time that a responder without a receive asks the requester to wait, as a five-bit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Units of 10 microseconds, by code (specification table 45).
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Makes a timer from the low five bits of `code`.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the five-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the shortest timer that is not below `delay`, or the longest of all: 655.36 ms.
    #[must_use]
    pub fn at_least(delay: Duration) -> Self {
        let code = (1..32u8).find(|&code| Self(code).delay() >= delay);
        Self(code.unwrap_or(0))
    }

    /// Returns the time to wait.
    #[must_use]
    pub fn delay(self) -> Duration {
        let units = Self::UNITS.get(usize::from(self.0)).copied().unwrap_or(0);
        Duration::from_micros(u64::from(units) * 10)
    }
}

/// The reason for which a request was refused (specification table 46).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// A packet is missing: the requester must go back to the named PSN.
    PsnSequenceError = 0,
    /// The request violates the protocol.
    InvalidRequest = 1,
    /// The key, the range or the right does not allow the access.
    RemoteAccessError = 2,
    /// The responder could not carry out the request.
    RemoteOperationalError = 3,
}

/// The syndrome of an AETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// A positive acknowledgement, with a code for the receives posted, or 31 without that flow control.
    Ack {
        /// The credit count code.
        credits: u8,
    },
    /// No receive is posted: the requester must try again after the given time.
    RnrNak(RnrTimer),
    /// The request was refused.
    Nak(NakCode),
    /// A reserved value, unchanged.
    Reserved(u8),
}

impl Syndrome {
    /// A positive acknowledgement without end-to-end credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// Returns the syndrome for a byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match (byte >> 5, value) {
            (0, credits) => Self::Ack { credits },
            (1, code) => Self::RnrNak(RnrTimer(code)),
            (3, 0) => Self::Nak(NakCode::PsnSequenceError),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccessError),
            (3, 3) => Self::Nak(NakCode::RemoteOperationalError),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the byte of the syndrome.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak(timer) => 1 << 5 | timer.0,
            Self::Nak(code) => 3 << 5 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Acknowledge extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The syndrome.
    pub syndrome: Syndrome,
    /// Message sequence number: the number of requests that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 4;

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (&[syndrome, a, b, c], rest) = take(bytes)?;
        Ok((Self { syndrome: Syndrome::from_byte(syndrome), msn: be24([a, b, c]) }, rest))
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = self.syndrome.to_byte();
        out[1..4].copy_from_slice(&to_be24(self.msn));
        out
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// The reserved byte.
    pub reserved: u8,
    /// Source queue pair.
    pub src_qp: QpNum,
}

impl Deth {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 8;

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (&[a, b, c, d, reserved, e, f, g], rest) = take(bytes)?;
        let qkey = u32::from_be_bytes([a, b, c, d]);
        Ok((Self { qkey, reserved, src_qp: QpNum::new(be24([e, f, g])) }, rest))
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.qkey.to_be_bytes());
        out[4] = self.reserved;
        out[5..8].copy_from_slice(&to_be24(self.src_qp.get()));
        out
    }
}

/// The length of the longest extended headers of a packet, in bytes: that of an AtomicETH.
pub(super) const MAX_LEN: usize = AtomicEth::LEN;

/// The extended headers of a packet, as the operation code determines them (specification table 38).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ext {
    /// The packet has no extended header.
    None,
    /// RETH: WRITE first and only, READ request.
    Reth(Reth),
    /// RETH and immediate data: WRITE only with immediate.
    RethImm(Reth, u32),
    /// Immediate data: SEND and WRITE last, SEND only.
    Imm(u32),
    /// IETH: the R_Key to invalidate.
    Invalidate(RemoteKey),
    /// AETH: acknowledge, READ response except middle.
    Aeth(Aeth),
    /// The header of an atomic (AtomicETH).
    Atomic(AtomicEth),
    /// AETH and AtomicAckETH, with the previous value.
    AtomicAck(Aeth, u64),
    /// The header of a datagram (DETH).
    Deth(Deth),
    /// DETH and immediate data.
    DethImm(Deth, u32),
    /// The reserved bytes of a congestion notification.
    Cnp([u8; 16]),
}

impl Ext {
    /// Parses the extended headers of `opcode` at the front of `bytes`, and returns the remaining bytes.
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        use Operation as O;
        if opcode.service == Service::Ud {
            let (deth, rest) = Deth::parse(bytes)?;
            return if opcode.operation == O::SendOnlyImm {
                imm(rest).map(|(imm, rest)| (Self::DethImm(deth, imm), rest))
            } else {
                Ok((Self::Deth(deth), rest))
            };
        }
        match opcode.operation {
            O::SendFirst | O::SendMiddle | O::SendLast | O::SendOnly => Ok((Self::None, bytes)),
            O::WriteMiddle | O::WriteLast | O::ReadResponseMiddle => Ok((Self::None, bytes)),
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => imm(bytes).map(|(i, r)| (Self::Imm(i), r)),
            O::WriteFirst | O::WriteOnly | O::ReadRequest => {
                Reth::parse(bytes).map(|(h, r)| (Self::Reth(h), r))
            }
            O::WriteOnlyImm => {
                let (reth, rest) = Reth::parse(bytes)?;
                let (imm, rest) = imm(rest)?;
                Ok((Self::RethImm(reth, imm), rest))
            }
            O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly | O::Acknowledge => {
                Aeth::parse(bytes).map(|(h, r)| (Self::Aeth(h), r))
            }
            O::AtomicAcknowledge => {
                let (aeth, rest) = Aeth::parse(bytes)?;
                let (before, rest) = take(rest)?;
                Ok((Self::AtomicAck(aeth, u64::from_be_bytes(*before)), rest))
            }
            O::CompareSwap | O::FetchAdd => AtomicEth::parse(bytes).map(|(h, r)| (Self::Atomic(h), r)),
            O::CongestionNotification => take(bytes).map(|(&bytes, rest)| (Self::Cnp(bytes), rest)),
            O::SendLastInvalidate | O::SendOnlyInvalidate => {
                imm(bytes).map(|(key, rest)| (Self::Invalidate(RemoteKey(key)), rest))
            }
        }
    }

    /// Returns the length on the wire, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a length on the wire, not a collection")]
    pub const fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Reth(_) => Reth::LEN,
            Self::RethImm(..) => Reth::LEN + 4,
            Self::Imm(_) | Self::Invalidate(_) => 4,
            Self::Aeth(_) => Aeth::LEN,
            Self::Atomic(_) => AtomicEth::LEN,
            Self::AtomicAck(..) => Aeth::LEN + 8,
            Self::Deth(_) => Deth::LEN,
            Self::DethImm(..) => Deth::LEN + 4,
            Self::Cnp(_) => 16,
        }
    }

    /// Writes the headers to the front of `out`, and returns the other bytes; `None` if it is too short.
    #[inline]
    pub(super) fn emit<'a>(&self, out: &'a mut [u8]) -> Option<&'a mut [u8]> {
        match self {
            Self::None => Some(out),
            Self::Reth(reth) => put(out, reth.emit()),
            Self::RethImm(reth, imm) => put(put(out, reth.emit())?, imm.to_be_bytes()),
            Self::Imm(word) | Self::Invalidate(RemoteKey(word)) => put(out, word.to_be_bytes()),
            Self::Aeth(aeth) => put(out, aeth.emit()),
            Self::Atomic(atomic) => put(out, atomic.emit()),
            Self::AtomicAck(aeth, before) => put(put(out, aeth.emit())?, before.to_be_bytes()),
            Self::Deth(deth) => put(out, deth.emit()),
            Self::DethImm(deth, imm) => put(put(out, deth.emit())?, imm.to_be_bytes()),
            Self::Cnp(bytes) => put(out, *bytes),
        }
    }
}

/// Writes a header to the front of `out`, and returns the other bytes.
#[inline]
fn put<const N: usize>(out: &mut [u8], header: [u8; N]) -> Option<&mut [u8]> {
    let (to, rest) = out.split_first_chunk_mut()?;
    *to = header;
    Some(rest)
}

/// Parses a 32-bit word at the front of `bytes`, and returns the remaining bytes.
fn imm(bytes: &[u8]) -> Result<(u32, &[u8]), Error> {
    take(bytes).map(|(word, rest)| (u32::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_keep_their_byte() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn rnr_timers_are_never_shorter_than_asked() {
        for us in [0, 1, 10, 11, 100, 640, 641, 10_240, 400_000, 491_520, 491_521, 655_360] {
            let delay = Duration::from_micros(us);
            assert!(RnrTimer::at_least(delay).delay() >= delay, "{us}");
        }
        assert_eq!(RnrTimer::at_least(Duration::from_micros(640)).code(), 12);
        assert_eq!(RnrTimer::from_code(20).delay(), Duration::from_micros(10_240));
        assert_eq!(RnrTimer::at_least(Duration::from_secs(5)).code(), 0);
    }
}
