//! The goodput of a lossy, shared or interrupted link, in virtual time and by seed, so that the machine does
//! not matter. `cargo test -p softroce goodput:: -- --nocapture` prints the tables.

use crate::bottleneck::{LINK, Load, Outcome, Run};
use std::time::Duration;

const LOADS: [Load; 2] = [Load::Write, Load::Read];

/// Returns the mean goodput of some seeds as a share of `clean`. Each must be at least `least`.
fn goodput(run: Run, clean: u64, least: f64) -> f64 {
    const SEEDS: u64 = 4;
    let part = |seed| {
        let outcome = Run { seed, ..run }.go();
        assert_eq!(outcome.qp_errors, 0, "{run:?}");
        let part = outcome.total() as f64 / clean as f64;
        assert!(part >= least, "seed {seed}: {part:.3} of the clean link's goodput: {run:?}: {outcome:?}");
        part
    };
    (1..=SEEDS).map(part).sum::<f64>() / SEEDS as f64
}

#[test]
fn loss_slows_down_smoothly() {
    let losses =
        [(0.0, 1.0), (0.0003, 0.8), (0.001, 0.7), (0.003, 0.5), (0.01, 0.25), (0.03, 0.1), (0.1, 0.0)];
    println!("{:<10} {:>8} {:>8}", "goodput", "loss", "of clean");
    for load in LOADS {
        let run = Run { load, ..Run::default() };
        let clean = run.go().total();
        let parts = losses.map(|(loss, least)| {
            let part = goodput(Run { loss, ..run }, clean, least);
            println!("{:<10} {loss:>8} {part:>8.3}", format!("{load:?}"));
            part
        });
        assert!(parts.is_sorted_by(|a, b| a > b), "more loss, less goodput: {parts:?}");
    }
}

/// A link with a short queue, one 8 times as fast, and one 4 times as long.
#[test]
fn loss_is_borne_on_other_links() {
    for (link, ms) in [
        ("rate_mbit=3200,delay_us=50,queue=1000", 100),
        ("rate_mbit=25000,delay_us=5,queue=64", 20),
        ("rate_mbit=3200,delay_us=200,queue=64", 200),
    ] {
        for load in LOADS {
            let run = Run { load, link, time: Duration::from_millis(ms), ..Run::default() };
            let clean = run.go().total();
            let parts =
                [(0.001, 0.7), (0.01, 0.25)].map(|(loss, least)| goodput(Run { loss, ..run }, clean, least));
            println!("{load:?} on {link}: {:.3} at 0.1 %, {:.3} at 1 %", parts[0], parts[1]);
        }
    }
}

/// Runs eight connections for 200 ms; a little loss makes the seeds differ.
fn eight(load: Load, link: &'static str, traffic_class: u8, seed: u64) -> Outcome {
    let time = Duration::from_millis(200);
    let outcome = Run { load, link, traffic_class, seed, qps: 8, loss: 0.0001, time, ..Run::default() }.go();
    println!("{load:?} on {link}, seed {seed}: Jain's index {:.3}, {outcome:?}", outcome.fairness());
    assert_eq!(outcome.qp_errors, 0);
    assert!(outcome.fairness() >= 0.95, "{load:?} on {link}, seed {seed}: {:.3}", outcome.fairness());
    outcome
}

#[test]
fn eight_connections_share_a_queue_that_overflows() {
    for load in LOADS {
        let alone = Run { load, time: Duration::from_millis(200), ..Run::default() }.go().total();
        for seed in 1..=4 {
            let outcome = eight(load, LINK, 0, seed);
            assert!(outcome.overflowed > 0);
            assert!(outcome.total() as f64 >= 0.7 * alone as f64, "{outcome:?}");
        }
    }
}

/// Marks from 16 frames on, in a queue of 256: connections that react to marks lose nothing.
#[test]
fn marks_replace_drops() {
    const MARKING: &str = "rate_mbit=3200,delay_us=50,queue=256,ecn_queue=16";
    const ECT_0: u8 = 2;
    for load in LOADS {
        let alone = Run { load, time: Duration::from_millis(200), ..Run::default() }.go().total();
        for seed in 1..=4 {
            let outcome = eight(load, MARKING, ECT_0, seed);
            assert!(outcome.marked > 0 && outcome.cnps > 0, "{outcome:?}");
            assert_eq!(outcome.overflowed, 0, "{outcome:?}");
            assert!(outcome.total() as f64 >= 0.95 * alone as f64, "{outcome:?}");
        }
        let deaf = Run { load, link: MARKING, qps: 8, ..Run::default() }.go();
        assert!(deaf.overflowed > 0 && deaf.marked == 0 && deaf.cnps == 0, "{deaf:?}");
    }
}

/// Virtual machines lose their processor: 3 ms of each 20, on both sides in turn. Nothing is lost, and almost
/// nothing is repeated.
#[test]
fn a_peer_that_is_away_costs_a_packet() {
    for load in LOADS {
        let run = Run { load, pause: Duration::from_millis(3), ..Run::default() };
        let outcome = run.go();
        println!("{load:?}: {outcome:?}");
        let pauses = run.time.as_millis() as u64 / 10;
        assert_eq!((outcome.timeouts, outcome.naks), (0, 0), "{outcome:?}");
        assert!(outcome.retransmits <= 2 * pauses, "{outcome:?}");
        let awake = Run { load, ..Run::default() }.go().total();
        assert!(
            outcome.total() as f64 >= 0.65 * awake as f64,
            "30 % of the time one of them is away: {outcome:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    for load in LOADS {
        let link = "rate_mbit=3200,delay_us=50,queue=64,ecn_queue=32,reorder=0.001,dup=0.001";
        let run = Run { load, link, qps: 3, loss: 0.005, traffic_class: 2, seed: 9, ..Run::default() };
        let outcome = run.go();
        assert_eq!(outcome, run.go());
        assert_ne!(outcome, Run { seed: 10, ..run }.go());
    }
}
