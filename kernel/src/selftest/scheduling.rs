//! Halts when idle, and polls while a task computes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;

use super::heap::Xorshift;
use super::{Outcome, ensure, seconds};
use crate::arch::percpu;
use crate::exec::{self, Poller};
use crate::sync::IrqMutex;
use crate::time;

/// Sleeps, and looks how long the processors were halted and how late tasks woke.
pub async fn idle() -> Outcome {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    let mut late: Vec<u64> = Vec::new();
    for _ in 0..300 {
        let until = time::now() + Duration::from_micros(50 + random.below(1500));
        exec::sleep_until(until).await;
        ensure!(time::now() >= until, "a sleep ended early");
        late.push(time::now().saturating_since(until).as_nanos() as u64 / 1000);
    }
    late.sort_unstable();
    let length = seconds(2);
    let cpus = percpu::count();
    let stats = || (0..cpus).filter_map(exec::stats).collect::<Vec<_>>();
    let before = stats();
    let begun = time::now();
    exec::sleep(length).await;
    // What a core that halts still has not added to its figures counts as not halted: others are woken for that.
    for cpu in 1..cpus {
        exec::spawn_on(cpu, "wake", async {}).await;
    }
    let elapsed = time::now().saturating_since(begun);
    let after = stats();
    let mut worst = 1.0f64;
    let mut halts = 0;
    for (cpu, (b, a)) in before.iter().zip(&after).enumerate() {
        let share = (a.halted - b.halted).as_secs_f64() / elapsed.as_secs_f64();
        ensure!(share > 0.97, "cpu {cpu} was halted only {:.1} % of an idle time", share * 100.0);
        worst = worst.min(share);
        halts += a.halts - b.halts;
    }
    Ok(alloc::format!(
        "halted {:.2} % of {} s, {halts} halts on {cpus} cpus; sleeps late by {} us median, {} us p99",
        worst * 100.0,
        length.as_secs(),
        late[late.len() / 2],
        late[late.len() * 99 / 100]
    ))
}

/// Gaps between polls, in buckets of 10 us.
struct Gaps {
    last: Option<Instant>,
    buckets: Vec<u32>,
    count: u64,
    longest: Duration,
}

struct Watch(Arc<IrqMutex<Gaps>>);

impl Poller for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn poll(&mut self, now: Instant, _budget: u32) -> bool {
        let mut gaps = self.0.lock();
        if let Some(last) = gaps.last {
            let gap = now.saturating_since(last);
            let bucket = (gap.as_micros() as usize / 10).min(gaps.buckets.len() - 1);
            gaps.buckets[bucket] += 1;
            gaps.count += 1;
            gaps.longest = gaps.longest.max(gap);
        }
        gaps.last = Some(now);
        false
    }

    fn next_deadline(&self) -> Instant {
        Instant::MAX
    }

    fn arm(&mut self) -> bool {
        false
    }
}

/// A task computes without `await` while a poller on the same core notes how often it is called.
pub async fn progress() -> Outcome {
    let gaps = Gaps { last: None, buckets: alloc::vec![0; 2001], count: 0, longest: Duration::ZERO };
    let gaps = Arc::new(IrqMutex::new(gaps));
    exec::register_poller(0, Box::new(Watch(gaps.clone())));
    let length = seconds(10);
    // Give the main loop a turn to take the poller in, then count from here.
    exec::sleep(Duration::from_millis(2)).await;
    {
        let mut g = gaps.lock();
        g.buckets.fill(0);
        g.count = 0;
        g.longest = Duration::ZERO;
        g.last = Some(time::now());
    }
    let before = exec::stats(0).unwrap_or_default().interrupt_polls;
    let end = time::now() + length;
    let mut x = 1.0f64;
    while time::now() < end {
        for i in 1..1000u32 {
            x = core::hint::black_box(x + 1.0 / f64::from(i));
        }
    }
    let polls = exec::stats(0).unwrap_or_default().interrupt_polls - before;
    let g = gaps.lock();
    let p99 = percentile(&g.buckets, g.count, 99);
    let longest = g.longest;
    ensure!(g.count > 0, "no poll in {} s", length.as_secs());
    ensure!(p99 <= Duration::from_millis(5), "p99 of the gaps between polls is {p99:?} ({longest:?} at most)");
    Ok(alloc::format!(
        "{polls} polls from interrupts in {} s of computing, gap p99 {} us, longest {} us",
        length.as_secs(),
        p99.as_micros(),
        longest.as_micros()
    ))
}

/// The upper end of the bucket that `percent` of all values do not exceed.
fn percentile(buckets: &[u32], count: u64, percent: u64) -> Duration {
    let mut left = count * percent / 100;
    for (i, n) in buckets.iter().enumerate() {
        if u64::from(*n) > left {
            return Duration::from_micros((i as u64 + 1) * 10);
        }
        left -= u64::from(*n);
    }
    Duration::MAX
}
