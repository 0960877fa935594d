//! Tests that an idle machine halts, and that polls continue while a task computes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future as _, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use platform::Instant;

use super::heap::Xorshift;
use super::{Outcome, ensure, seconds};
use crate::arch::percpu;
use crate::exec::{self, Poller};
use crate::sync::IrqMutex;
use crate::time;

/// The most iterations of its main loop that an idle core may make in a second. A spinning core makes several
/// hundred times as many.
const IDLE_ROUNDS_PER_SECOND: u64 = 1_000;

/// The number of times that each of two tasks passes the token in [`pass_tokens`].
const PASSES: u64 = 5_000;

/// A token of two tasks, which belongs to one of them in turn, and the wakers of those that wait for it.
#[derive(Default)]
struct Token {
    passes: u64,
    waiting: [Option<Waker>; 2],
}

/// Waits for the token and passes it on, [`PASSES`] times.
async fn pass_token(token: Arc<IrqMutex<Token>>, side: usize) {
    for _ in 0..PASSES {
        let other = poll_fn(|cx| {
            let mut token = token.lock();
            if token.passes % 2 != side as u64 {
                token.waiting[side] = Some(cx.waker().clone());
                return Poll::Pending;
            }
            token.passes += 1;
            Poll::Ready(token.waiting[1 - side].take())
        });
        if let Some(other) = other.await {
            other.wake();
        }
    }
}

/// Lets a task of core 0 and a task of each core pass a token to each other. A task that waits is attentive
/// if its core has nothing else to do, and asleep otherwise; a lost wake-up in either state would keep the
/// test from its end.
async fn pass_tokens() -> Result<(), String> {
    for cpu in 0..percpu::count() {
        let token = Arc::new(IrqMutex::new(Token::default()));
        let other = exec::spawn_on(cpu, "token", pass_token(token.clone(), 1));
        exec::spawn_on(0, "token", pass_token(token.clone(), 0)).await;
        other.await;
        let passes = token.lock().passes;
        ensure!(passes == 2 * PASSES, "a token was passed {passes} times to and from core {cpu}");
    }
    Ok(())
}

/// Passes tokens, then sleeps, and counts the iterations of each core's main loop meanwhile. The time that
/// processors were halted and the lateness of wake-ups are printed but not judged, because a busy host
/// changes both.
pub(super) async fn idle() -> Outcome {
    pass_tokens().await?;
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    let mut late: Vec<u64> = Vec::new();
    for _ in 0..300 {
        let until = time::now() + Duration::from_micros(50 + random.below(1500));
        exec::sleep_until(until).await;
        ensure!(time::now() >= until, "a sleep ended early");
        late.push(time::now().saturating_since(until).as_nanos() as u64 / 1000);
    }
    late.sort_unstable();
    // A core spins for up to a millisecond after the short halts of these sleeps, and less after long ones.
    for _ in 0..10 {
        exec::sleep(Duration::from_millis(20)).await;
    }
    let length = seconds(2);
    let cpus = percpu::count();
    let stats = || (0..cpus).filter_map(exec::stats).collect::<Vec<_>>();
    let before = stats();
    let begun = time::now();
    exec::sleep(length).await;
    // A halt is in the figures of its core once it has ended, so the other cores are woken first.
    for cpu in 1..cpus {
        exec::spawn_on(cpu, "wake", async {}).await;
    }
    let elapsed = time::now().saturating_since(begun);
    let after = stats();
    let mut worst = 1.0f64;
    let (mut halts, mut most_rounds) = (0, 0);
    for (cpu, (b, a)) in before.iter().zip(&after).enumerate() {
        let share = (a.halted - b.halted).as_secs_f64() / elapsed.as_secs_f64();
        let rounds = a.rounds - b.rounds;
        // The number of halts may be the same: one halt can last from the sleeps before to the wake-up.
        ensure!(a.halted > b.halted, "cpu {cpu} did not halt");
        ensure!(
            rounds <= IDLE_ROUNDS_PER_SECOND * length.as_secs(),
            "cpu {cpu} turned {rounds} times in an idle time of {} s",
            length.as_secs()
        );
        most_rounds = most_rounds.max(rounds);
        worst = worst.min(share);
        halts += a.halts - b.halts;
    }
    Ok(alloc::format!(
        "halted {:.2} % of {} s, {halts} halts on {cpus} cpus, at most {most_rounds} turns of a core; sleeps late by {} us median, {} us p99",
        worst * 100.0,
        length.as_secs(),
        late[late.len() / 2],
        late[late.len() * 99 / 100]
    ))
}

/// A histogram of times in buckets of 10 us.
struct Histogram {
    buckets: Vec<u32>,
    count: u64,
    longest: Duration,
}

impl Histogram {
    fn new() -> Self {
        Self { buckets: alloc::vec![0; 10_001], count: 0, longest: Duration::ZERO }
    }

    fn add(&mut self, time: Duration) {
        let bucket = (time.as_micros() as usize / 10).min(self.buckets.len() - 1);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    /// Returns the upper end of the bucket that `percent` of all values do not exceed.
    fn percentile(&self, percent: u64) -> Duration {
        let mut left = self.count * percent / 100;
        for (i, n) in self.buckets.iter().enumerate() {
            if u64::from(*n) > left {
                return Duration::from_micros((i as u64 + 1) * 10);
            }
            left -= u64::from(*n);
        }
        Duration::MAX
    }
}

/// The poller's observations while the task computes.
struct Gaps {
    last: Instant,
    /// The times between two polls.
    all: Histogram,
    /// The part of each interval up to the last time at which the task ran. The rest is time that the host
    /// gave to other machines.
    running: Histogram,
}

struct Watch {
    gaps: Arc<IrqMutex<Option<Gaps>>>,
    /// The time at which the task last read the clock, in nanoseconds.
    beat: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
}

impl Poller for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn poll(&mut self, now: Instant, _budget: u32) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(gaps) = self.gaps.lock().as_mut() {
            let beat = Instant::from_nanos(self.beat.load(Ordering::Relaxed));
            gaps.all.add(now.saturating_since(gaps.last));
            gaps.running.add(beat.saturating_since(gaps.last));
            gaps.last = now;
        }
        false
    }

    fn next_deadline(&self) -> Instant {
        Instant::MAX
    }

    fn arm(&mut self) -> bool {
        false
    }
}

/// The number of times that the other task sleeps in [`polls_in_task`].
const SLEEPS: u64 = 20;

/// Polls within a task until another task of the core, which sleeps between its steps, has ended: timers and
/// tasks do not wait for a task that looks at memory. Returns the number of polls.
async fn polls_in_task() -> Result<u64, String> {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = steps.clone();
    let sleeper = exec::spawn_on(0, "sleeper", async move {
        for _ in 0..SLEEPS {
            exec::sleep(Duration::from_millis(1)).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut polls = 0;
    while steps.load(Ordering::Relaxed) < SLEEPS {
        while exec::poll_in_task() {
            polls += 1;
        }
        platform::yield_now().await;
    }
    sleeper.await;
    ensure!(polls > 0, "a task that looks at memory did not poll");
    Ok(polls)
}

/// Polls within a task that has set a timer. Once the timer is due, the task must yield, even if the core has
/// just looked at its timers.
async fn timers_end_polls() -> Result<(), String> {
    for _ in 0..SLEEPS {
        let until = time::now() + Duration::from_micros(50);
        let mut sleep = pin!(exec::sleep_until(until));
        poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_ready())).await;
        loop {
            let before = time::now();
            if exec::poll_in_task() {
                ensure!(before < until, "a task polled on after a timer of its core was due");
                continue;
            }
            platform::yield_now().await;
            if before >= until {
                break;
            }
        }
        sleep.await;
    }
    Ok(())
}

/// The number of tasks of [`takes_turns`], and of the turns of each.
const TURNS: (u64, u64) = (3, 40);

/// Lets tasks of one core yield in turn: each turn of a task must come after a turn of each other. A core
/// keeps the first ready task apart from the others, so an order in which one task overtakes would show
/// here.
async fn takes_turns() -> Result<(), String> {
    let log = Arc::new(IrqMutex::new(Vec::with_capacity((TURNS.0 * TURNS.1) as usize)));
    let tasks: Vec<_> = (0..TURNS.0)
        .map(|task| {
            let log = log.clone();
            exec::spawn_on(0, "turns", async move {
                for _ in 0..TURNS.1 {
                    log.lock().push(task);
                    platform::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    let log = log.lock();
    ensure!(log.len() as u64 == TURNS.0 * TURNS.1, "{} turns were taken", log.len());
    for (at, round) in log.chunks(TURNS.0 as usize).enumerate() {
        ensure!(round.iter().copied().eq(0..TURNS.0), "the tasks ran in the order {round:?} in round {at}");
    }
    Ok(())
}

/// Computes in a task without `await` while a poller on the same core records its calls.
///
/// The test judges the number of polls, and the median time for which the task ran after a poll without
/// another. Longer gaps are only printed: a busy host delays the virtual processor, or the thread of its
/// timer. Before that, it judges polls by a task, their end by a timer, and the order in which tasks take
/// turns.
pub(super) async fn progress() -> Outcome {
    let gaps = Arc::new(IrqMutex::new(None));
    let (beat, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    exec::register_poller(
        0,
        Box::new(Watch { gaps: gaps.clone(), beat: beat.clone(), calls: calls.clone() }),
    );
    let length = seconds(10);
    // The main loop needs one iteration to add the poller.
    while calls.load(Ordering::Relaxed) == 0 {
        exec::sleep(Duration::from_millis(1)).await;
    }
    let looks = polls_in_task().await?;
    timers_end_polls().await?;
    takes_turns().await?;
    let before = exec::stats(0).unwrap_or_default().interrupt_polls;
    let mut now = time::now();
    let end = now + length;
    *gaps.lock() = Some(Gaps { last: now, all: Histogram::new(), running: Histogram::new() });
    let mut x = 1.0f64;
    while now < end {
        for i in 1..100u32 {
            x = core::hint::black_box(x + 1.0 / f64::from(i));
        }
        now = time::now();
        beat.store(now.as_nanos(), Ordering::Relaxed);
    }
    let seen = gaps.lock().take();
    let polls = exec::stats(0).unwrap_or_default().interrupt_polls - before;
    let g = seen.ok_or("no figures")?;
    ensure!(g.all.count >= length.as_secs() * 10, "only {} polls in {} s", g.all.count, length.as_secs());
    let (median, p99) = (g.running.percentile(50), g.running.percentile(99));
    let figures = alloc::format!(
        "{polls} polls from interrupts in {} s of computing; ran without a poll for {} us median, {} us p99, {} us at most; \
         gap on this host {} us p99, {} us at most; {looks} polls in a task",
        length.as_secs(),
        median.as_micros(),
        p99.as_micros(),
        g.running.longest.as_micros(),
        g.all.percentile(99).as_micros(),
        g.all.longest.as_micros()
    );
    if median <= Duration::from_millis(2) { Ok(figures) } else { Err(figures) }
}
