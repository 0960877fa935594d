//! Hostile cards from seeds, with the invariants of `hostile_device`.

use hostile_device::{Report, device};
use proptest::prelude::*;

const CASES: u32 = 100;
/// The maximum length of a run's input, in bytes.
const LONGEST: usize = 1200;

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_that_a_card_says(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
        device(&bytes);
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
fn everything_happens() {
    let all = (1..=60).map(|seed| device(&random(seed, 1500))).fold(Report::default(), |all, one| Report {
        up: all.up + one.up,
        refused: all.refused + one.refused,
        lies: all.lies + one.lies,
        calls: all.calls + one.calls,
        errors: all.errors + one.errors,
        completions: all.completions + one.completions,
        recovered: all.recovered + one.recovered,
    });
    println!("{all:?}");
    assert!(all.up > 5 && all.refused > 5 && all.lies > 100, "{all:?}");
    assert!(all.calls > 100 && all.errors > 20 && all.completions > 20 && all.recovered > 0, "{all:?}");
}
