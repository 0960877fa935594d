//! Runs tests in parallel: as many at once as there are processors, compilations before tests that boot
//! machines.

use super::timings::{Row, Timings};
use super::{Case, Lane, Outcome, Tally};
use anyhow::Result;
use lab::{interrupt, tool, ui};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The most tests at once: more machines could need more memory than a host with many processors has.
const MOST_AT_ONCE: usize = 4;
/// After this time without the end of a test, the runner prints the running tests.
const QUIET: Duration = Duration::from_secs(60);

/// Returns the number of tests that run at once unless an option says otherwise.
pub(super) fn default_jobs() -> usize {
    available_parallelism().map_or(1, usize::from).min(MOST_AT_ONCE)
}

/// Runs the tests, `jobs` at once. Logs go to the directory `logs`.
pub(super) fn run(cases: Vec<Case>, jobs: usize, logs: &Path) -> Result<(Tally, Timings)> {
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let schedule = Schedule {
        state: Mutex::new(State::new(cases)),
        changed: Condvar::new(),
        begun: Instant::now(),
        logs: logs.to_owned(),
        width,
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| schedule.work());
        }
        schedule.watch();
    });
    interrupt::check()?;
    let state = schedule.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !state.failures.is_empty() {
        println!("\nfailures:");
        state.failures.iter().for_each(|failure| println!("  {failure}"));
        println!();
    }
    Ok((state.tally, state.timings))
}

struct Schedule {
    state: Mutex<State>,
    /// Signals that a test has ended, so that another may be able to start.
    changed: Condvar,
    begun: Instant,
    logs: PathBuf,
    width: usize,
}

struct State {
    /// The tests that have not begun, in order.
    pending: Vec<Case>,
    /// The running tests, by the number of their start.
    running: BTreeMap<usize, Running>,
    count: usize,
    ended: usize,
    turns: usize,
    tally: Tally,
    failures: Vec<String>,
    timings: Timings,
}

struct Running {
    name: String,
    compiles: bool,
    lane: Option<Lane>,
    since: Instant,
}

impl State {
    fn new(pending: Vec<Case>) -> Self {
        Self {
            count: pending.len(),
            pending,
            running: BTreeMap::new(),
            ended: 0,
            turns: 0,
            tally: Tally::default(),
            failures: Vec::new(),
            timings: Timings::default(),
        }
    }

    /// Takes the first test that may begin now: its lane is free, and nothing still compiles unless it
    /// compiles itself.
    fn take(&mut self) -> Option<(usize, Case)> {
        let compiling = self.pending.iter().any(|case| case.compiles)
            || self.running.values().any(|running| running.compiles);
        let may_begin = |case: &Case| {
            let lane_is_free = case.lane.is_none() || self.running.values().all(|r| r.lane != case.lane);
            lane_is_free && (case.compiles || !compiling)
        };
        let at = self.pending.iter().position(may_begin)?;
        let case = self.pending.remove(at);
        self.turns += 1;
        let running = Running {
            name: case.name.clone(),
            compiles: case.compiles,
            lane: case.lane,
            since: Instant::now(),
        };
        self.running.insert(self.turns, running);
        Some((self.turns, case))
    }
}

impl Schedule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one test after the other until none is left or the run is interrupted.
    fn work(&self) {
        while let Some((turn, case)) = self.next() {
            self.check(turn, case);
        }
    }

    /// Waits for a test that may begin; returns none when no test is left.
    fn next(&self) -> Option<(usize, Case)> {
        let mut state = self.state();
        loop {
            if interrupt::check().is_err() {
                state.count -= state.pending.len();
                state.pending.clear();
            }
            if state.pending.is_empty() {
                return None;
            }
            if let Some(taken) = state.take() {
                return Some(taken);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn check(&self, turn: usize, case: Case) {
        let Case { name, check, .. } = case;
        let log = self.logs.join(format!("{}.log", name.replace([':', ' ', '/'], "-")));
        let (started, at) = (Instant::now(), self.begun.elapsed());
        tool::take_processor_time();
        // A test that panics has failed, and the others continue.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&log)));
        let outcome = match result {
            Ok(result) => result.unwrap_or_else(|e| Outcome::Failed(ui::one_line(&e))),
            Err(_) => Outcome::Failed("the test panicked, see above".into()),
        };
        let took = started.elapsed();
        let mut state = self.state();
        state.ended += 1;
        let (ended, count, width) = (state.ended, state.count, self.width);
        println!("[{ended:>3}/{count}] {name:<width$} ... {outcome} ({:.1} s)", took.as_secs_f64());
        state.tally.add(&outcome);
        if let Some(why) = outcome.failure() {
            state.failures.push(format!("{name}: {why}\n    log: {}", log.display()));
        }
        state.running.remove(&turn);
        state.timings.add(Row { name, at, took, processor: tool::take_processor_time() });
        drop(state);
        self.changed.notify_all();
    }

    /// Prints the running tests whenever no test has ended for [`QUIET`], until all have ended.
    fn watch(&self) {
        let mut state = self.state();
        let mut last = state.ended;
        while state.ended < state.count {
            let (now, wait) = self.changed.wait_timeout(state, QUIET).unwrap_or_else(PoisonError::into_inner);
            state = now;
            if wait.timed_out() && state.ended == last {
                let running = state.running.values();
                let names = running.map(|r| format!("{} ({} s)", r.name, r.since.elapsed().as_secs()));
                println!("          runs: {}", names.collect::<Vec<_>>().join(", "));
            }
            last = state.ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(taken: Option<(usize, Case)>) -> Option<(usize, String)> {
        taken.map(|(turn, case)| (turn, case.name))
    }

    #[test]
    fn compiling_comes_first_and_one_at_a_time_in_a_lane() {
        let case = |name: &str| Case::new(name, |_| Ok(Outcome::Passed));
        let mut state = State::new(vec![
            case("boots"),
            case("a").compiles(Lane::Host),
            case("b").compiles(Lane::Host),
            case("k").compiles(Lane::Kernel),
        ]);
        assert_eq!(names(state.take()), Some((1, "a".into())));
        assert_eq!(names(state.take()), Some((2, "k".into())));
        assert_eq!(names(state.take()), None);
        state.running.remove(&1);
        assert_eq!(names(state.take()), Some((3, "b".into())));
        state.running.clear();
        assert_eq!(names(state.take()), Some((4, "boots".into())));
    }

    #[test]
    fn a_test_that_panics_fails_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let cases =
            vec![Case::new("panics", |_| panic!("on purpose")), Case::new("passes", |_| Ok(Outcome::Passed))];
        let (tally, timings) = run(cases, 2, dir.path()).expect("not interrupted");
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(timings.rows().len(), 2);
    }
}
