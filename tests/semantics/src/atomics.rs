//! Fetch-and-add, compare-and-swap and test-and-set are atomic, at any aligned offset, from any node.

use crate::context::{Context, SHARED, USE};
use crate::failure::{Outcome, ensure, fails, same};
use alloc::vec::Vec;
use lite::{Error, Placement};

/// Atomics work at every offset that is a multiple of 8, including the last, with wrapping sums; nothing else
/// changes.
pub(crate) async fn at_every_aligned_offset(cx: &Context) -> Outcome {
    const LEN: u64 = 400;
    for (_, lmr) in cx.everywhere(LEN).await? {
        for at in (0..LEN).step_by(8) {
            same(lmr.fetch_add(at, at + 1).await?, 0)?;
            same(lmr.fetch_add(at, u64::MAX).await?, at + 1)?;
            same(lmr.compare_swap(at, at, 9).await?, at)?;
            same(lmr.compare_swap(at, at + 100, 5).await?, 9)?;
        }
        for at in (0..LEN).step_by(8) {
            let mut word = [0; 8];
            lmr.read(at, &mut word).await?;
            same(u64::from_ne_bytes(word), 9)?;
        }
        lmr.free().await?;
    }
    Ok(())
}

/// Atomics at other offsets are refused.
pub(crate) async fn other_offsets_are_refused(cx: &Context) -> Outcome {
    for (_, lmr) in cx.everywhere(100).await? {
        for at in [1, 4, 7, 9, 63, 65, 91] {
            fails(lmr.fetch_add(at, 1).await, Error::Misaligned)?;
            fails(lmr.compare_swap(at, 0, 1).await, Error::Misaligned)?;
            fails(lmr.test_and_set(at).await, Error::Misaligned)?;
        }
        lmr.free().await?;
    }
    Ok(())
}

/// Counts of all nodes add up, and no number comes twice.
pub(crate) async fn counts_of_all_nodes_add_up(cx: &Context) -> Outcome {
    const ROUNDS: u64 = 50;
    let mut own = None;
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(1), 4096, SHARED).await?;
        lmr.publish(&cx.name("words")).await?;
        own = Some(lmr);
    }
    let words = cx.lite.map_wait(&cx.name("words"), USE).await?;
    cx.meet().await?;
    let mut last = None;
    for _ in 0..ROUNDS {
        let number = words.fetch_add(8, 1).await?;
        ensure(last < Some(number), "a number came twice")?;
        last = Some(number);
        // Each number has a word, which the owner of the number finds unused.
        same(words.fetch_add(16 + 8 * number, 1).await?, 0)?;
        let mut seen = words.fetch_add(0, 0).await?;
        loop {
            let before = words.compare_swap(0, seen, seen + 3).await?;
            if before == seen {
                break;
            }
            seen = before;
        }
    }
    cx.meet().await?;
    let all = cx.count() as u64 * ROUNDS;
    same((words.fetch_add(8, 0).await?, words.fetch_add(0, 0).await?), (all, 3 * all))?;
    cx.meet().await?;
    if let Some(own) = own {
        own.free().await?;
    }
    Ok(())
}

/// A test-and-set of a word by all nodes in parallel succeeds for exactly one of them.
pub(crate) async fn one_is_the_first(cx: &Context) -> Outcome {
    const WORDS: u64 = 20;
    let mut own = None;
    if cx.rank() == 0 {
        let nodes = cx.nodes().to_vec();
        let lmr = cx.lite.alloc(Placement::Striped { nodes, stripe: 8 }, 8 * (WORDS + 1), SHARED).await?;
        lmr.publish(&cx.name("words")).await?;
        own = Some(lmr);
    }
    let words = cx.lite.map_wait(&cx.name("words"), USE).await?;
    cx.meet().await?;
    let mut first = Vec::new();
    for word in 0..WORDS {
        if !words.test_and_set(8 * word).await? {
            first.push(word);
        }
    }
    words.fetch_add(8 * WORDS, first.len() as u64).await?;
    cx.meet().await?;
    same(words.fetch_add(8 * WORDS, 0).await?, WORDS)?;
    for word in 0..WORDS {
        same(words.fetch_add(8 * word, 0).await?, 1)?;
    }
    cx.meet().await?;
    if let Some(own) = own {
        own.free().await?;
    }
    Ok(())
}

/// An atomic and a read or write of the same word see each other's effects.
pub(crate) async fn atomics_and_writes_see_each_other(cx: &Context) -> Outcome {
    for (_, lmr) in cx.everywhere(64).await? {
        lmr.write(24, &1_000_000_007u64.to_ne_bytes()).await?;
        same(lmr.fetch_add(24, 1).await?, 1_000_000_007)?;
        let mut word = [0; 8];
        lmr.read(24, &mut word).await?;
        same(u64::from_ne_bytes(word), 1_000_000_008)?;
        lmr.memset(24, 8, 0xff).await?;
        same(lmr.compare_swap(24, u64::MAX, 0).await?, u64::MAX)?;
        same(lmr.test_and_set(24).await?, false)?;
        same(lmr.test_and_set(24).await?, true)?;
        lmr.memset(24, 8, 0x02).await?;
        // Any value but 0 counts as set, and does not change.
        same(lmr.test_and_set(24).await?, true)?;
        same(lmr.fetch_add(24, 0).await?, 0x0202_0202_0202_0202)?;
        lmr.free().await?;
    }
    Ok(())
}
