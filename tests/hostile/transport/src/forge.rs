//! Frames that a stranger or a lying peer could send, with a valid ICRC.

use crate::input::Input;
use roce::wire::{Aeth, Ext, Frame, Net, Operation, Syndrome};
use verbs::{Psn, QpNum, RemoteKey};

/// The fault of a forged frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lie {
    /// The frame is an old one, unchanged.
    Replayed,
    /// The frame names a queue pair that does not exist.
    QueuePair,
    /// The frame comes from an address other than the peer's.
    Source,
    /// The frame has another key.
    Key,
    /// The frame has another PSN.
    Psn,
    /// The frame has another acknowledgement.
    Syndrome,
    /// Some bytes are different.
    Bytes,
    /// The bytes are not a frame.
    Garbage,
}

impl Lie {
    pub(crate) const ALL: [Self; 8] = [
        Self::Replayed,
        Self::QueuePair,
        Self::Source,
        Self::Key,
        Self::Psn,
        Self::Syndrome,
        Self::Bytes,
        Self::Garbage,
    ];

    /// Returns whether a receiver can distinguish the frame from its peer's. If not, the effect of the peer's
    /// work is uncertain, because InfiniBand does not authenticate.
    pub(crate) const fn can_be_told(self) -> bool {
        matches!(self, Self::Replayed | Self::QueuePair | Self::Source | Self::Key | Self::Garbage)
    }
}

/// Forges a frame from one that was sent. Returns `None` if that frame does not permit this lie.
pub(crate) fn forge(bytes: &[u8], lie: Lie, input: &mut Input) -> Option<Vec<u8>> {
    let mut changed = bytes.to_vec();
    match lie {
        Lie::Replayed => return Some(changed),
        Lie::Garbage => {
            let len = input.below(120);
            return Some(input.take(len));
        }
        Lie::Bytes => {
            for _ in 0..=input.below(4) {
                // In the base header or after it, where the transport looks.
                let at = 42 + input.below(changed.len().saturating_sub(42).clamp(1, 64));
                if let Some(byte) = changed.get_mut(at) {
                    *byte = input.byte();
                }
            }
        }
        _ => {}
    }
    let Ok(frame) = Frame::parse(&changed) else { return Some(changed) };
    let (mut headers, mut bth, mut ext) = (frame.headers, frame.packet.bth, frame.packet.ext);
    match lie {
        Lie::QueuePair => bth.dest_qp = QpNum::new(bth.dest_qp.get() ^ 1 << input.below(24)),
        Lie::Source => match &mut headers.net {
            Net::V4(ip, _) => ip.src[input.below(4)] ^= 0x10,
            Net::V6(ip, _) | Net::Grh(ip) => ip.src[input.below(16)] ^= 0x10,
            Net::InfiniBand(lrh, _) => lrh.slid ^= 0x10,
        },
        Lie::Key => {
            let other = |key: RemoteKey, bit: usize| RemoteKey(key.0 ^ 1 << bit);
            match &mut ext {
                Ext::Reth(reth) | Ext::RethImm(reth, _) => reth.key = other(reth.key, input.below(32)),
                Ext::Atomic(atomic) => atomic.key = other(atomic.key, input.below(32)),
                _ => return None,
            }
        }
        Lie::Psn => {
            let by = [1, 2, 0xff_ffff, 0xff_fffe, 7, 0x80_0000, 0x7f_ffff, 0xff_fff0][input.below(8)];
            bth.psn = Psn::new(bth.psn.get().wrapping_add(by));
        }
        Lie::Syndrome => match &mut ext {
            Ext::Aeth(Aeth { syndrome, .. }) | Ext::AtomicAck(Aeth { syndrome, .. }, _) => {
                *syndrome = Syndrome::from_byte(input.byte());
            }
            _ => return None,
        },
        _ => {}
    }
    let payload = frame.packet.payload;
    let mut out = vec![0; headers.frame_len(&ext, payload.len())];
    headers.emit(&bth, &ext, payload.len(), &mut out, |to| to.copy_from_slice(payload))?;
    Some(out)
}

/// Returns the receiver's memory that a request names as its target: key, first address, length in bytes.
pub(crate) fn names(bytes: &[u8]) -> Option<(RemoteKey, platform::IoAddr, u64)> {
    let packet = Frame::parse(bytes).ok()?.packet;
    match packet.ext {
        Ext::Reth(reth) | Ext::RethImm(reth, _) if packet.bth.opcode.operation != Operation::ReadRequest => {
            Some((reth.key, reth.addr, u64::from(reth.len)))
        }
        Ext::Atomic(atomic) => Some((atomic.key, atomic.addr, 8)),
        _ => None,
    }
}
