//! The card's free-running clock: what QUERY_FW gives the place of, and completion queues with timestamps write.

use platform::Instant;

/// Cycles in a microsecond, as QUERY_HCA says. Public logs of ConnectX-3 cards have 427 MHz.
pub const MHZ: u16 = 427;

/// The clock at a time, in cycles.
#[must_use]
pub fn cycles(now: Instant) -> u64 {
    let nanos = (now - Instant::ZERO).as_nanos();
    (nanos * u128::from(MHZ) / 1000) as u64
}

/// The timestamp of a completion: bits 47 to 16, and 15 to 0. The latter are never 0: Linux takes that for a carry that the
/// upper bits do not have yet (`mlx4_en_get_cqe_ts`), rdma-core does not.
#[must_use]
pub fn stamp(now: Instant) -> (u32, u16) {
    let cycles = cycles(now);
    ((cycles >> 16) as u32, (cycles as u16).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_the_clocks_lower_48_bits_and_never_without_low_bits() {
        let at = |nanos| (cycles(Instant::from_nanos(nanos)), stamp(Instant::from_nanos(nanos)));
        assert_eq!(at(0), (0, (0, 1)));
        assert_eq!(at(1_000_000), (427_000, (6, 33_784)));
        assert_eq!(at(1 << 40).0, (1 << 40) * 427 / 1000);
        // 2^20 ms: the product does not fit 64 bits long after that.
        let (cycles, (high, low)) = at(u64::MAX);
        assert_eq!(u64::from(high) << 16 | u64::from(low), cycles & 0xffff_ffff_ffff);
    }
}
