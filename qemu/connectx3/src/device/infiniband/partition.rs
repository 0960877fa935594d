//! Partitions of queue pairs: the P_Key of their packets, and of those that they accept (specification 10.9).

use crate::device::port::Port;
use roce::wire::{Bth, Frame};

/// The bit of a P_Key for full membership.
const FULL: u16 = 0x8000;

/// Returns the P_Key of a queue pair's packets by the index in the port's table. Ethernet has the default one
/// only.
#[must_use]
pub(crate) fn of(port: &Port, index: usize) -> u16 {
    if port.is_infiniband() { port.ib.managed.partition(index) } else { Bth::DEFAULT_PKEY }
}

/// Returns whether a queue pair with the P_Key `own` accepts packets with another: the numbers are equal, and
/// one of the two is of a full member.
#[must_use]
pub(crate) const fn accepts(own: u16, packet: u16) -> bool {
    (own ^ packet) & !FULL == 0 && (own | packet) & FULL != 0
}

/// Replaces the P_Key of a frame, and updates its checks.
pub(crate) fn put(frame: &mut Vec<u8>, key: u16) {
    let mut changed = vec![0; frame.len()];
    let Ok(mut parsed) = Frame::parse(frame) else { return };
    parsed.packet.bth.pkey = key;
    if let Some(len) = parsed.emit(&mut changed) {
        changed.truncate(len);
        *frame = changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_limited_members_do_not_speak() {
        for (own, packet, speak) in [
            (0xffff, 0xffff, true),
            (0x8001, 0x0001, true),
            (0x0001, 0x8001, true),
            (0x0001, 0x0001, false),
            (0x8001, 0x8002, false),
        ] {
            assert_eq!(accepts(own, packet), speak, "{own:#x} {packet:#x}");
        }
    }
}
