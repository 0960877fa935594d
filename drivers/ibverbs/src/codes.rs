//! The codes of the specification for times and sizes.

use std::time::Duration;
use verbs::PathMtu;

/// The unit of [`ack_timeout`], in nanoseconds (specification 9.7.6.1.3).
const ACK_UNIT_NS: u128 = 4096;

/// Returns the code of the shortest local ACK timeout that is not below `wait`: 4.096 us * 2^code. Never
/// returns 0, which means no timeout.
pub(crate) fn ack_timeout(wait: Duration) -> u8 {
    (1..31u8).find(|&code| ACK_UNIT_NS << code >= wait.as_nanos()).unwrap_or(31)
}

/// Returns the code of a path MTU, in `enum ibv_mtu`: 1 for 256 bytes.
pub(crate) fn mtu_code(mtu: PathMtu) -> u32 {
    mtu as u32 + 1
}

/// Returns the path MTU for a code, or `None` for a code that the specification does not have.
pub(crate) fn mtu_of(code: u32) -> Option<PathMtu> {
    PathMtu::ALL.into_iter().find(|&mtu| mtu_code(mtu) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_never_shorter_than_asked_and_never_endless() {
        assert_eq!(ack_timeout(Duration::ZERO), 1);
        assert_eq!(ack_timeout(Duration::from_nanos(8192)), 1);
        assert_eq!(ack_timeout(Duration::from_nanos(8193)), 2);
        // 67.1 ms, which perftest and the users of rdma_rxe call 14.
        assert_eq!(ack_timeout(Duration::from_millis(67)), 14);
        assert_eq!(ack_timeout(Duration::from_millis(68)), 15);
        assert_eq!(ack_timeout(Duration::MAX), 31);
    }

    #[test]
    fn mtus_are_those_of_verbs_h() {
        let codes: Vec<_> = PathMtu::ALL.into_iter().map(mtu_code).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5]);
        assert_eq!(mtu_of(3), Some(PathMtu::B1024));
        assert_eq!((mtu_of(0), mtu_of(6)), (None, None));
    }
}
