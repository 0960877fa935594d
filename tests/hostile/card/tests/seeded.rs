//! Hostile guests from seeds, with the invariants of `hostile_card`.

use hostile_card::{Report, commands, queues, slave};
use proptest::prelude::*;

const CASES: u32 = if cfg!(miri) { 1 } else { 150 };
/// The maximum length of a run's input, in bytes.
const LONGEST: usize = if cfg!(miri) { 60 } else { 1200 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_commands(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
        commands(&bytes);
    }

    #[test]
    fn any_work(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
        queues(&bytes);
    }

    #[test]
    fn anything_of_a_slave(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
        slave(&bytes);
    }
}

/// Returns bytes that the seed determines.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn sum(run: fn(&[u8]) -> Report) -> Report {
    (1..=60).map(|seed| run(&random(seed, 1500))).fold(Report::default(), |all, one| Report {
        actions: all.actions + one.actions,
        commands: all.commands + one.commands,
        refused: all.refused + one.refused,
        frames: all.frames + one.frames,
        denied: all.denied + one.denied,
        written: all.written + one.written,
    })
}

/// The runs are meaningful: over some seeds, each possible outcome occurs.
#[test]
#[cfg_attr(miri, ignore = "too many runs")]
fn everything_happens() {
    let [by_commands, by_queues, by_slave] = [sum(commands), sum(queues), sum(slave)];
    println!("{by_commands:?}\n{by_queues:?}\n{by_slave:?}");
    assert!(by_commands.commands > 100 && by_commands.refused > 100, "{by_commands:?}");
    assert!(by_queues.frames > 200 && by_queues.denied > 0 && by_queues.written > 0, "{by_queues:?}");
    assert!(by_slave.commands > 100 && by_slave.refused > 100, "{by_slave:?}");
    assert!(by_slave.frames > 100 && by_slave.denied > 0 && by_slave.written > 0, "{by_slave:?}");
}
