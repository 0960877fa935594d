//! Locks, barriers, counters and events.

use crate::context::{BRIEF, Context, RW, SHARED};
use crate::failure::{Outcome, ensure, fails, refused, same};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use futures_util::future::{join, join_all};
use lite::{Error, Lmr};

/// Changes a word in the memory of some node in two steps: a read and then a write.
async fn step(word: &Lmr, change: impl Fn(u64) -> u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    word.read(0, &mut bytes).await?;
    let before = u64::from_ne_bytes(bytes);
    word.write(0, &change(before).to_ne_bytes()).await?;
    Ok(before)
}

/// A lock has one holder: tasks of all nodes work under it one after the other.
pub(crate) async fn a_lock_has_one_holder(cx: &Context) -> Outcome {
    const TASKS: usize = 3;
    const ROUNDS: u64 = 6;
    let mut own = None;
    if cx.rank() == 0 {
        let word = cx.lite.alloc(cx.node(2), 8, SHARED).await?;
        word.publish(&cx.name("word")).await?;
        let lock = cx.lite.create_lock(cx.node(1), &cx.name("lock")).await?;
        same(lock.home(), cx.node(1))?;
        own = Some((word, lock));
    }
    cx.meet().await?;
    let word = cx.lite.map(&cx.name("word"), RW).await?;
    let task = async |_: usize| -> Outcome {
        let lock = cx.lite.open_lock(&cx.name("lock")).await?;
        for round in 0..ROUNDS {
            let held = lock.lock().await?;
            ensure(!held.after_death() && !held.is_lost(), "no holder has died")?;
            step(&word, |n| n + 1).await?;
            // Released in either way.
            if round % 2 == 0 { held.unlock().await? } else { drop(held) }
        }
        Ok(())
    };
    join_all((0..TASKS).map(task)).await.into_iter().collect::<Outcome>()?;
    cx.meet().await?;
    same(step(&word, |n| n).await?, cx.count() as u64 * TASKS as u64 * ROUNDS)?;
    cx.meet().await?;
    if let Some((word, lock)) = own {
        word.free().await?;
        lock.destroy().await?;
    }
    Ok(())
}

/// Shared holders of a lock hold it in parallel, and never together with an exclusive holder.
pub(crate) async fn shared_holders_hold_it_together(cx: &Context) -> Outcome {
    let name = cx.name("lock");
    let own = if cx.rank() == 0 { Some(cx.lite.create_lock(cx.node(0), &name).await?) } else { None };
    cx.meet().await?;
    let lock = cx.lite.open_lock(&name).await?;
    let held = lock.lock_shared().await?;
    let again = lock.lock_shared().await?;
    // All hold the lock, twice each.
    cx.meet().await?;
    ensure(lock.try_lock().await?.is_none(), "the lock was held exclusively and shared in parallel")?;
    cx.meet().await?;
    held.unlock().await?;
    again.unlock().await?;
    cx.meet().await?;
    if cx.rank() == 1 {
        let alone = lock.lock().await?;
        cx.meet().await?;
        cx.meet().await?;
        alone.unlock().await?;
    } else {
        cx.meet().await?;
        let brief = lock.with_deadline(BRIEF);
        fails(brief.lock_shared().await, Error::Deadline)?;
        fails(brief.lock().await, Error::Deadline)?;
        ensure(lock.try_lock().await?.is_none(), "it has two holders")?;
        cx.meet().await?;
    }
    // Tasks that gave up do not block others.
    lock.lock().await?.unlock().await?;
    cx.meet().await?;
    if let Some(own) = own {
        own.destroy().await?;
    }
    Ok(())
}

/// A lock is granted in the order in which requests arrive at its home; requests of one node's tasks arrive
/// in the order in which they were made.
pub(crate) async fn a_lock_is_fair(cx: &Context) -> Outcome {
    const TASKS: usize = 6;
    let mut own = None;
    if cx.rank() == 0 {
        let turns = cx.lite.create_counter(cx.node(0), &cx.name("turns")).await?;
        own = Some((turns, cx.lite.create_lock(cx.node(1), &cx.name("lock")).await?));
    }
    cx.meet().await?;
    let lock = cx.lite.open_lock(&cx.name("lock")).await?;
    let turns = cx.lite.open_counter(&cx.name("turns")).await?;
    // The connection to the lock's home exists from here on.
    lock.lock().await?.unlock().await?;
    cx.meet().await?;
    let take = async |_: usize| -> Result<u64, Error> {
        let held = lock.lock().await?;
        let turn = turns.add(1).await?;
        held.unlock().await?;
        Ok(turn)
    };
    let taken: Vec<u64> = join_all((0..TASKS).map(take)).await.into_iter().collect::<Result<_, _>>()?;
    ensure(taken.is_sorted(), "a task got the lock before one that had asked for it earlier")?;
    cx.meet().await?;
    if let Some((turns, lock)) = own {
        same(turns.get().await?, (TASKS * cx.count()) as u64)?;
        turns.destroy().await?;
        lock.destroy().await?;
    }
    Ok(())
}

/// A destroyed lock no longer exists for any node, including waiting ones; its name is free.
pub(crate) async fn a_destroyed_lock_is_gone(cx: &Context) -> Outcome {
    let name = cx.name("lock");
    let own = if cx.rank() == 0 { Some(cx.lite.create_lock(cx.node(2), &name).await?) } else { None };
    cx.meet().await?;
    let lock = cx.lite.open_lock(&name).await?;
    let held = if cx.rank() == 1 { Some(lock.lock().await?) } else { None };
    cx.meet().await?;
    if let Some(own) = own {
        cx.lite.sleep(BRIEF).await;
        own.destroy().await?;
    } else if cx.rank() > 1 {
        // They wait for the holder, and then fail.
        fails(lock.lock().await, Error::Freed)?;
    }
    cx.meet().await?;
    drop(held);
    fails(lock.lock().await, Error::Freed)?;
    fails(lock.lock_shared().await, Error::Freed)?;
    fails(lock.try_lock().await, Error::Freed)?;
    // The home of the lock frees its name in the background, after the lock has ended.
    while cx.lite.open_lock(&name).await.is_ok() {
        cx.lite.sleep(BRIEF).await;
    }
    fails(cx.lite.open_lock(&name).await, Error::NoSuchName)?;
    cx.meet().await?;
    if cx.rank() == 1 {
        cx.lite.create_lock(cx.me(), &name).await?.destroy().await?;
    }
    Ok(())
}

/// No node leaves a barrier before all have arrived, however often it is used.
pub(crate) async fn nobody_leaves_a_barrier_before_all_have_come(cx: &Context) -> Outcome {
    const ROUNDS: u64 = 15;
    let name = cx.name("counter");
    let own = if cx.rank() == 0 { Some(cx.lite.create_counter(cx.node(1), &name).await?) } else { None };
    cx.meet().await?;
    let counter = cx.lite.open_counter(&name).await?;
    for round in 1..=ROUNDS {
        if round % cx.count() as u64 == cx.rank() as u64 {
            cx.lite.sleep(Duration::from_millis(2)).await;
        }
        counter.add(1).await?;
        cx.lite.barrier(&cx.name("barrier"), cx.nodes()).await?;
        ensure(
            counter.get().await? >= round * cx.count() as u64,
            "a barrier opened before all nodes had arrived",
        )?;
        cx.lite.barrier(&cx.name("barrier"), cx.nodes()).await?;
    }
    if let Some(own) = own {
        own.destroy().await?;
    }
    Ok(())
}

/// Any subset of the nodes is a group, in any order of naming, and a node can wait at many barriers in
/// parallel.
pub(crate) async fn barriers_are_of_any_group(cx: &Context) -> Outcome {
    let nodes = cx.nodes();
    let mut pairs = Vec::new();
    for i in 0..cx.count() {
        for j in i + 1..cx.count() {
            if i == cx.rank() || j == cx.rank() {
                let group = if cx.rank() == i { [cx.node(i), cx.node(j)] } else { [cx.node(j), cx.node(i)] };
                pairs.push((alloc::format!("{} {i} {j}", cx.name("pair")), group.to_vec()));
            }
        }
    }
    for i in 0..20 {
        pairs.push((cx.name_of("all", i), nodes.to_vec()));
    }
    let all = pairs.iter().map(|(name, group)| cx.lite.barrier(name, group));
    for met in join_all(all).await {
        met?;
    }
    // A barrier of one node does not wait.
    cx.lite.barrier(&cx.name_of("alone", cx.rank()), &[cx.me()]).await?;
    Ok(())
}

/// A node outside of the group, a node that names another group, and a second task of a node are refused.
pub(crate) async fn a_barrier_is_for_its_group(cx: &Context) -> Outcome {
    refused(cx.lite.barrier(&cx.name("none"), &[]).await)?;
    refused(cx.lite.barrier(&cx.name("others"), &[cx.next(), cx.after_next()]).await)?;
    cx.meet().await?;
    // The node with the lowest id keeps the barrier, and the first group to arrive determines its group.
    let mut sorted = cx.nodes().to_vec();
    sorted.sort_unstable();
    let name = cx.name("barrier");
    if sorted.first() == Some(&cx.me()) {
        let come = cx.lite.barrier(&name, cx.nodes());
        let twice = async {
            cx.lite.sleep(BRIEF).await;
            let again = cx.lite.barrier(&name, cx.nodes()).await;
            let pair = vec![cx.me(), cx.next()];
            let other = cx.lite.barrier(&name, &pair).await;
            cx.lite.barrier(&cx.name("go on"), cx.nodes()).await?;
            refused(again)?;
            refused(other)
        };
        let (came, refused): (Result<(), Error>, Outcome) = join(come, twice).await;
        refused?;
        came?;
    } else {
        cx.lite.barrier(&cx.name("go on"), cx.nodes()).await?;
        cx.lite.barrier(&name, cx.nodes()).await?;
    }
    Ok(())
}

/// If one node stops waiting, all waiting nodes get an error; afterwards the barrier can be used again.
pub(crate) async fn a_barrier_fails_for_all(cx: &Context) -> Outcome {
    let name = cx.name("barrier");
    cx.meet().await?;
    match cx.rank() {
        0 => {}
        1 => {
            let hasty = cx.lite.with_deadline(BRIEF);
            let given_up = hasty.barrier(&name, cx.nodes()).await;
            ensure(matches!(given_up, Err(Error::Deadline | Error::Unknown)), "not all nodes have arrived")?;
        }
        _ => {
            let failed = cx.lite.barrier(&name, cx.nodes()).await;
            // A node that arrives later waits in vain.
            ensure(matches!(failed, Err(Error::Deadline | Error::Unknown)), "one of the nodes has left")?;
        }
    }
    cx.meet().await?;
    cx.lite.barrier(&name, cx.nodes()).await?;
    Ok(())
}

/// A counter can be used from every node, and each count is a different number.
pub(crate) async fn counters_count_from_everywhere(cx: &Context) -> Outcome {
    const ROUNDS: u64 = 20;
    let name = cx.name("counter");
    let own = if cx.rank() == 0 { Some(cx.lite.create_counter(cx.node(2), &name).await?) } else { None };
    cx.meet().await?;
    let counter = cx.lite.open_counter(&name).await?;
    let mut last = None;
    for _ in 0..ROUNDS {
        let number = counter.add(2).await?;
        ensure(last < Some(number) && number % 2 == 0, "a number came twice")?;
        last = Some(number);
    }
    cx.meet().await?;
    let all = 2 * ROUNDS * cx.count() as u64;
    same(counter.get().await?, all)?;
    cx.meet().await?;
    // Of all nodes that try, exactly one changes it.
    let before = counter.compare_swap(all, 1000 + cx.rank() as u64).await?;
    cx.meet().await?;
    let now = counter.get().await?;
    ensure((1000..1000 + cx.count() as u64).contains(&now), "one of them has changed it")?;
    same(before == all, now == 1000 + cx.rank() as u64)?;
    cx.meet().await?;
    if let Some(own) = own {
        same(own.add(u64::MAX).await?, now)?;
        same(own.get().await?, now - 1)?;
        own.destroy().await?;
    }
    cx.meet().await?;
    fails(counter.get().await, Error::Freed)?;
    fails(cx.lite.open_counter(&name).await, Error::NoSuchName)
}

/// An event wakes all waiting tasks, and a task that comes late misses nothing.
pub(crate) async fn events_wake_all_who_wait(cx: &Context) -> Outcome {
    let name = cx.name("event");
    let own = if cx.rank() == 0 { Some(cx.lite.create_event(cx.node(1), &name).await?) } else { None };
    cx.meet().await?;
    let event = cx.lite.open_event(&name).await?;
    same(event.home(), cx.node(1))?;
    fails(event.with_deadline(BRIEF).wait(0).await, Error::Deadline)?;
    cx.meet().await?;
    if let Some(own) = &own {
        cx.lite.sleep(Duration::from_millis(5)).await;
        same((own.signal().await?, own.signal().await?), (1, 2))?;
    } else {
        let seen = join_all((0..5).map(|past| event.wait(past % 2))).await;
        for (past, count) in (0u64..).zip(seen) {
            let count = count?;
            ensure(count > past % 2 && count <= 2, "it waited for another count")?;
        }
    }
    cx.meet().await?;
    same((event.wait(0).await?, event.wait(1).await?), (2, 2))?;
    fails(event.with_deadline(BRIEF).wait(2).await, Error::Deadline)?;
    // All signal, and all wait for all.
    cx.meet().await?;
    event.signal().await?;
    same(event.wait(1 + cx.count() as u64).await?, 2 + cx.count() as u64)?;
    cx.meet().await?;
    if let Some(own) = own {
        cx.lite.sleep(BRIEF).await;
        own.destroy().await?;
    } else {
        fails(event.wait(1_000_000).await, Error::Freed)?;
    }
    cx.meet().await?;
    fails(event.signal().await, Error::Freed)?;
    fails(event.wait(0).await, Error::Freed)?;
    fails(cx.lite.open_event(&name).await, Error::NoSuchName)
}
