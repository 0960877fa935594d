//! Two transports over any network, with the invariants of `hostile_transport::two_transports`.

use hostile_transport::{Report, two_transports};
use proptest::prelude::*;

const CASES: u32 = if cfg!(miri) { 1 } else { 1000 };
/// The maximum length of a run's input, in bytes.
const LONGEST: usize = if cfg!(miri) { 100 } else { 800 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_network(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
        two_transports(&bytes);
    }

    /// A network with few faults, so that work gets far.
    #[test]
    fn a_gentle_network(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST),
        harsh in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for byte in &mut bytes {
            // Neither a fault of the network, nor a forged frame, nor a cut.
            *byte = *byte % 160 / 16 * 16 + *byte % 13;
        }
        for at in harsh {
            if let Some(len) = bytes.len().checked_sub(1) {
                bytes[at.index(len + 1)] |= 0xe0;
            }
        }
        two_transports(&bytes);
    }
}

/// Returns bytes that the seed determines.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The runs are meaningful: over some seeds, each possible outcome occurs.
#[test]
#[cfg_attr(miri, ignore = "too many runs")]
fn everything_happens() {
    let mut all = Report::default();
    for seed in 1..=300 {
        let report = two_transports(&random(seed, 600));
        all.posted += report.posted;
        all.succeeded += report.succeeded;
        all.received += report.received;
        all.refused += report.refused;
        all.duplicates += report.duplicates;
        all.access_errors += report.access_errors;
        all.not_ready += report.not_ready;
        all.faults.iter_mut().zip(report.faults).for_each(|(all, n)| *all += n);
        all.lies.iter_mut().zip(report.lies).for_each(|(all, n)| *all += n);
    }
    println!("{all:?}");
    assert!(all.succeeded * 4 > all.posted && all.succeeded < all.posted, "{all:?}");
    let counts = [all.received as u64, all.refused, all.duplicates, all.access_errors, all.not_ready];
    assert!(counts.iter().all(|&n| n > 50), "{all:?}");
    assert!(all.faults.iter().chain(&all.lies).all(|&n| n > 200), "{all:?}");
}

#[test]
#[cfg_attr(miri, ignore = "too much memory to compare")]
fn nothing_at_all_and_plain_work() {
    assert_eq!(two_transports(&[]).posted, 0);
    // The set-up, then on each side one work request of each kind (byte, kind, length, offset, flags), then
    // no faults.
    let mut bytes = vec![0; 5];
    for side in [0x00, 0x80] {
        for kind in 0..6 {
            bytes.extend([side, kind, 9, 17 * kind, 0, 4 + kind]);
        }
    }
    let report = two_transports(&bytes);
    assert_eq!((report.posted, report.succeeded), (12, 12), "{report:?}");
    assert_eq!(report.received, 6, "{report:?}");
}
