//! Checks that processors work together: tasks on each, locks, mutual wake-ups, consistent clocks.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use super::{Outcome, ensure};
use crate::arch::{percpu, this_cpu_index};
use crate::sync::IrqMutex;
use crate::{exec, time};

/// Rounds of ping-pong with each processor.
const ROUNDS: u64 = 2000;
/// Increments under the lock by each processor.
const INCREMENTS: u64 = 100_000;

pub(crate) async fn run() -> Outcome {
    let cpus = percpu::count();
    locks(cpus).await?;
    clocks(cpus).await?;
    let mut slowest = 0;
    for cpu in 1..cpus {
        let nanos = ping_pong(cpu).await;
        slowest = slowest.max(nanos);
    }
    Ok(alloc::format!("{cpus} cpus, slowest wake round trip {} us", slowest / 1000))
}

async fn locks(cpus: usize) -> Result<(), alloc::string::String> {
    let counter = Arc::new(IrqMutex::new(0u64));
    let tasks: Vec<_> = (0..cpus)
        .map(|cpu| {
            let counter = counter.clone();
            exec::spawn_on(cpu, "locks", async move {
                for i in 0..INCREMENTS {
                    *counter.lock() += 1;
                    if i % 1000 == 0 {
                        platform::yield_now().await;
                    }
                }
                this_cpu_index()
            })
        })
        .collect();
    for (cpu, task) in tasks.into_iter().enumerate() {
        let ran_on = task.await;
        ensure!(ran_on == cpu, "a task for cpu {cpu} ran on cpu {ran_on}");
    }
    let total = *counter.lock();
    ensure!(total == INCREMENTS * cpus as u64, "{total} increments, not {}", INCREMENTS * cpus as u64);
    Ok(())
}

/// Checks the clocks: each processor publishes the latest time that it has seen, and no processor may find
/// that time in the future.
async fn clocks(cpus: usize) -> Result<(), alloc::string::String> {
    let latest = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..cpus)
        .map(|cpu| {
            let latest = latest.clone();
            exec::spawn_on(cpu, "clocks", async move {
                let mut worst = 0;
                for i in 0..100_000 {
                    let seen = latest.load(Ordering::SeqCst);
                    let now = time::at_tsc(crate::arch::cpu::tsc_ordered()).as_nanos();
                    worst = worst.max(seen.saturating_sub(now));
                    latest.fetch_max(now, Ordering::SeqCst);
                    if i % 1000 == 0 {
                        platform::yield_now().await;
                    }
                }
                worst
            })
        })
        .collect();
    for (cpu, task) in tasks.into_iter().enumerate() {
        let back = task.await;
        ensure!(back < 10_000, "cpu {cpu}'s clock is {back} ns behind another's");
    }
    Ok(())
}

/// A turn that two tasks pass to each other.
struct Ball {
    at: AtomicU64,
    wakers: [IrqMutex<Option<Waker>>; 2],
}

async fn wait_turn(ball: &Ball, me: usize, turn: u64) {
    poll_fn(|cx| {
        *ball.wakers[me].lock() = Some(cx.waker().clone());
        if ball.at.load(Ordering::SeqCst) >= turn { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn pass(ball: &Ball, to: usize, turn: u64) {
    ball.at.store(turn, Ordering::SeqCst);
    let waker = ball.wakers[to].lock().take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns the nanoseconds of a round trip between a task on core 0 and one on `cpu`. If a wake-up is lost,
/// this never returns.
async fn ping_pong(cpu: usize) -> u64 {
    let ball = Arc::new(Ball { at: AtomicU64::new(0), wakers: [IrqMutex::new(None), IrqMutex::new(None)] });
    let other = ball.clone();
    let task = exec::spawn_on(cpu, "pong", async move {
        for round in 0..ROUNDS {
            wait_turn(&other, 1, round * 2 + 1).await;
            pass(&other, 0, round * 2 + 2);
        }
    });
    let begun = time::now();
    for round in 0..ROUNDS {
        pass(&ball, 1, round * 2 + 1);
        wait_turn(&ball, 0, round * 2 + 2).await;
    }
    let nanos = time::now().saturating_since(begun).as_nanos() as u64 / ROUNDS;
    task.await;
    nanos
}
