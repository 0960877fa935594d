//! The election and the state under faults, on a virtual clock: by seed, managers are cut off, stopped and
//! started, and requests are lost, late, or have no answer.

use super::model::{Fate, Shared, Wire};
use manager::core::{Record, Saved};
use manager::daemon::Keep;
use manager::daemon::ha::{Elector, Kv, Standing, State, Tenure, Term};
use std::time::Duration;

const PREFIX: &str = "/seeds";
const SEEDS: u64 = 400;
const STEPS: u32 = 1500;

/// A generator of numbers (xorshift64*).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

struct Manager {
    wire: Wire,
    elector: Elector,
    /// The rate of the clock, in thousandths, and the time that it shows.
    rate: u32,
    clock: Duration,
    /// The time of its next step.
    next: Duration,
    /// The end of a stop.
    stopped: Duration,
    state: Option<(Term, State)>,
}

impl Manager {
    fn new(model: &Shared, draw: &mut Draw, process: u64) -> Self {
        Self {
            wire: Wire::to(model),
            elector: Elector::new(PREFIX, 2, &format!("host{process}:1"), process),
            // Clocks that differ by 10 %.
            rate: 950 + draw.below(100) as u32,
            clock: Duration::from_secs(draw.below(1000)),
            next: Duration::ZERO,
            stopped: Duration::ZERO,
            state: None,
        }
    }

    fn acts(&self) -> bool {
        matches!(self.elector.standing(), Standing::Leads(_)) && self.clock < self.elector.until()
    }
}

/// The bookkeeping of the test.
#[derive(Default)]
struct Judge {
    /// The largest number whose save was acknowledged.
    acknowledged: u64,
    /// The last number that some leader has tried to save.
    tried: u64,
    last_term: i64,
    takeovers: u32,
}

fn run(seed: u64) -> Judge {
    let (model, mut draw) = (Shared::default(), Draw(seed * 2 + 1));
    let mut managers: Vec<Manager> = (0..3).map(|n| Manager::new(&model, &mut draw, n)).collect();
    let (mut judge, mut processes) = (Judge { acknowledged: 1, tried: 1, ..Judge::default() }, 3);
    for _ in 0..STEPS {
        let step = Duration::from_millis(20);
        let time = {
            let mut model = model.lock();
            model.time += step;
            model.time
        };
        managers.iter_mut().for_each(|m| m.clock += step * m.rate / 1000);
        assert!(managers.iter().filter(|m| m.acts()).count() <= 1, "seed {seed}: two managers act");
        // A fault, or its end.
        let who = draw.below(3) as usize;
        let manager = &mut managers[who];
        match draw.below(120) {
            0 => manager.wire.fate(Fate::Lost),
            1 => manager.wire.fate(Fate::AnswerLost),
            2 => manager.wire.fate(Fate::Late),
            3..=7 => manager.wire.fate(Fate::Answered),
            8 => manager.stopped = time + Duration::from_millis(draw.below(8000)),
            9 => {
                // The process is killed, and another one starts.
                processes += 1;
                manager.wire.fate(Fate::Answered);
                *manager = Manager::new(&model, &mut draw, processes);
            }
            _ => {}
        }
        for manager in &mut managers {
            if time < manager.next || time < manager.stopped {
                continue;
            }
            let pause = manager.elector.step(manager.clock, &mut manager.wire);
            manager.next = time + pause;
            act(manager, &mut judge, seed);
        }
    }
    // Each change was made by the manager that held the key then.
    let model = model.lock();
    assert!(model.changes.is_sorted_by_key(|(term, _)| *term), "seed {seed}");
    assert!(!model.changes.iter().any(|(term, _)| *term == 0), "seed {seed}: a change without a leader");
    judge
}

/// Lets a leader take over and save, as its daemon does.
fn act(manager: &mut Manager, judge: &mut Judge, seed: u64) {
    let Standing::Leads(term) = *manager.elector.standing() else {
        manager.state = None;
        return;
    };
    if manager.state.as_ref().is_none_or(|(present, _)| *present != term) {
        manager.state = None;
        let taken = State::take_over(manager.wire.another(), PREFIX, term, Tenure::detached());
        let Ok((state, saved)) = taken else { return };
        assert!(term.revision > judge.last_term, "seed {seed}: term {term:?} is not the latest");
        let range = judge.acknowledged..=judge.tried + Saved::RESERVED * u64::from(judge.takeovers + 1);
        assert!(range.contains(&saved.next_job), "seed {seed}: {} is not in {range:?}", saved.next_job);
        judge.last_term = term.revision;
        judge.takeovers += 1;
        judge.acknowledged = judge.acknowledged.max(saved.next_job);
        manager.state = Some((term, state));
    }
    // A leader that may not act any more may still try to save: the store refuses.
    let Some((term, state)) = &mut manager.state else { return };
    let number = judge.acknowledged.max(judge.tried) + 1;
    let saved = state.keep(&[Record::NextJob(number - 1), Record::NextJob(number)]);
    judge.tried = judge.tried.max(number);
    if saved.is_ok() {
        assert_eq!(term.revision, judge.last_term, "seed {seed}: a former leader has saved");
        judge.acknowledged = judge.acknowledged.max(number);
    }
}

#[test]
fn one_manager_acts_at_a_time_and_no_acknowledged_save_is_lost() {
    let mut takeovers = 0;
    for seed in 0..SEEDS {
        takeovers += run(seed).takeovers;
    }
    // The faults do lead to takeovers, and to more than the first one of each seed.
    assert!(takeovers > 3 * SEEDS as u32, "{takeovers} takeovers");
}
