//! The card's free-running clock. QUERY_FW reports its register's offset, and completion queues with
//! timestamps record its value.

use platform::Instant;

/// The clock's frequency in MHz, as QUERY_HCA reports it. Public logs of ConnectX-3 cards show 427 MHz.
pub(super) const MHZ: u16 = 427;

/// Returns the value of the clock at a time, in cycles.
#[must_use]
pub(super) fn cycles(now: Instant) -> u64 {
    let nanos = (now - Instant::ZERO).as_nanos();
    (nanos * u128::from(MHZ) / 1000) as u64
}

/// Returns the timestamp of a completion: bits 47 to 16, and bits 15 to 0. The lower half is never 0: Linux
/// takes 0 for a carry that is still missing in the upper bits (`mlx4_en_get_cqe_ts`); rdma-core does not.
#[must_use]
pub(super) fn stamp(now: Instant) -> (u32, u16) {
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
        // 2^20 ms: soon after that the product no longer fits 64 bits.
        let (cycles, (high, low)) = at(u64::MAX);
        assert_eq!(u64::from(high) << 16 | u64::from(low), cycles & 0xffff_ffff_ffff);
    }
}
