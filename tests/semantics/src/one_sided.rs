//! Reads, writes, memset and copies: any offset, any length, any node.

use crate::context::{BRIEF, Context, RW, SHARED, all_of, pattern};
use crate::failure::{Failure, Outcome, ensure, fails, refused, same, same_bytes};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use futures_util::future::try_join;
use lite::{Error, Lite, Lmr, NodeId, Placement};

/// Lengths around each size at which an operation works in another way: inline, short and long buffers,
/// chunks.
const LENGTHS: [usize; 17] =
    [0, 1, 7, 8, 63, 64, 65, 255, 257, 1023, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_001];

/// Bytes written with any length at any offset are read back, and their neighbours do not change.
pub(crate) async fn any_length_at_any_offset(cx: &Context) -> Outcome {
    const LEN: u64 = 200_100;
    for (what, lmr) in cx.everywhere(LEN).await? {
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let at = [1, 3, 8, 50][i % 4];
            lmr.write(0, &vec![0xa5; len + at + 30]).await?;
            let data = pattern(len, i);
            lmr.write(at as u64, &data).await?;
            let mut got = vec![0; len + 2];
            lmr.read(at as u64 - 1, &mut got).await?;
            let mut expected = vec![0xa5];
            expected.extend(&data);
            expected.push(0xa5);
            if let Err(failure) = same_bytes(&got, &expected) {
                return Err(Failure::new(format!("{len} bytes at {at} {what}: {failure}")));
            }
        }
        lmr.free().await?;
    }
    Ok(())
}

/// A region on this node behaves like one on another node: the same operations have the same results and
/// errors and leave the same bytes.
pub(crate) async fn here_means_the_same_as_there(cx: &Context) -> Outcome {
    const LEN: usize = 70_000;
    let (mut results, mut contents) = (Vec::new(), Vec::new());
    for node in [cx.me(), cx.next(), cx.after_next()] {
        let lmr = cx.lite.alloc(node, LEN as u64, SHARED).await?;
        let done = vec![
            lmr.write(5, &pattern(60_000, 1)).await.map(|()| 0),
            lmr.memset(30_000, 10_000, 0x11).await.map(|()| 0),
            lmr.memmove(100, &lmr, 20_000, 40_000).await.map(|()| 0),
            lmr.fetch_add(64, 3).await,
            lmr.fetch_add(64, u64::MAX).await,
            lmr.compare_swap(64, 0, 1).await,
            lmr.compare_swap(LEN as u64 - 8, 0, 77).await,
            lmr.test_and_set(LEN as u64 - 16).await.map(u64::from),
            lmr.test_and_set(LEN as u64 - 16).await.map(u64::from),
            lmr.fetch_add(63, 3).await,
            lmr.write(LEN as u64 - 1, &[1, 2]).await.map(|()| 0),
            lmr.memcpy(0, &lmr, 10, 20).await.map(|()| 0),
            lmr.write_vectored(&[(1, b"a"), (50_000, b"bc"), (3, b"")]).await.map(|()| 0),
        ];
        results.push(done);
        contents.push(all_of(&lmr).await?);
        lmr.free().await?;
    }
    let [here, there, further] = &results[..] else { return Err(Failure::new("a node is missing")) };
    same(here.iter().filter(|result| result.is_ok()).count(), 10)?;
    same((there, further), (here, here))?;
    for other in &contents {
        same_bytes(other, contents.first().unwrap_or(other))?;
    }
    Ok(())
}

/// All nodes read the bytes that one node has written, from the moment the write returns.
pub(crate) async fn what_is_written_is_there_for_all(cx: &Context) -> Outcome {
    let mut own = None;
    if cx.rank() == 0 {
        let nodes = cx.nodes().to_vec();
        let lmr = cx.lite.alloc(Placement::Striped { nodes, stripe: 512 }, 5_000, SHARED).await?;
        lmr.publish(&cx.name("region")).await?;
        own = Some(lmr);
    }
    let lmr = cx.lite.map_wait(&cx.name("region"), RW).await?;
    cx.meet().await?;
    for turn in 0..2 * cx.count() {
        if turn % cx.count() == cx.rank() {
            lmr.write(0, &pattern(5_000, turn)).await?;
        }
        cx.meet().await?;
        same_bytes(&all_of(&lmr).await?, &pattern(5_000, turn))?;
        cx.meet().await?;
    }
    if let Some(own) = own {
        own.free().await?;
    }
    Ok(())
}

/// A node that looks at a word until it has changed sees what another node has written, whether the word is
/// here or there.
pub(crate) async fn who_looks_sees_what_is_written(cx: &Context) -> Outcome {
    const ROUNDS: u64 = 20;
    let own = cx.lite.alloc(cx.me(), 4096, SHARED).await?;
    own.publish(&cx.name_of("words", cx.rank())).await?;
    let next = cx.lite.map_wait(&cx.name_of("words", (cx.rank() + 1) % cx.count()), RW).await?;
    cx.meet().await?;
    // A round passes from node to node: each waits for its word, and then writes the word of the next.
    for round in 1..=ROUNDS {
        if cx.rank() > 0 {
            same(own.poll_until(8, |word| word >= round).await?, round)?;
        }
        next.write(8, &round.to_ne_bytes()).await?;
        if cx.rank() == 0 {
            same(own.poll_until(8, |word| word >= round).await?, round)?;
        }
    }
    // The word of the next node has been written by this one.
    same(next.poll_until(8, |word| word == ROUNDS).await?, ROUNDS)?;
    for region in [&own, &next] {
        fails(region.with_deadline(BRIEF).poll_until(8, |word| word > ROUNDS).await, Error::Deadline)?;
        fails(region.poll_until(4, |_| true).await, Error::Misaligned)?;
        fails(region.poll_until(4096, |_| true).await, Error::OutOfBounds)?;
    }
    cx.meet().await?;
    // The region moves to the next node while a task looks at its word.
    let last = ROUNDS + 1;
    let change = async {
        own.move_to(cx.node(cx.rank() + 1)).await?;
        own.write(8, &last.to_ne_bytes()).await
    };
    let (seen, ()) = try_join(own.poll_until(8, |word| word == last), change).await?;
    same(seen, last)?;
    cx.meet().await?;
    own.clone().free().await?;
    fails(own.poll_until(8, |_| true).await, Error::Freed)
}

/// memset accepts any byte, offset and length.
pub(crate) async fn memset_takes_any_byte_and_range(cx: &Context) -> Outcome {
    const LEN: usize = 150_000;
    for (_, lmr) in cx.everywhere(LEN as u64).await? {
        let mut model = vec![0; LEN];
        for (at, len, byte) in
            [(0, LEN, 0xff), (1, 1, 0), (4090, 70_000, 0x5a), (LEN - 1, 1, 7), (50, 0, 9), (77_777, 8, 1)]
        {
            lmr.memset(at as u64, len as u64, byte).await?;
            model.splice(at..at + len, vec![byte; len]);
        }
        same_bytes(&all_of(&lmr).await?, &model)?;
        lmr.free().await?;
    }
    Ok(())
}

/// Returns the number of bytes of the reads and writes that this node has begun.
fn bytes_moved(lite: &Lite) -> u64 {
    let mut bytes = 0;
    lite.counters(&mut |(name, count)| {
        if name == "lite_bytes_read" || name == "lite_bytes_written" {
            bytes += count;
        }
    });
    bytes
}

/// memcpy and memmove copy from any region to any other, on any nodes.
pub(crate) async fn copies_go_between_any_two_regions(cx: &Context) -> Outcome {
    const LEN: usize = 80_000;
    let sources = cx.everywhere(LEN as u64).await?;
    for (i, (_, source)) in sources.iter().enumerate() {
        source.write(0, &pattern(LEN, i)).await?;
    }
    for (i, (from, source)) in sources.iter().enumerate() {
        for (into, target) in cx.everywhere(LEN as u64).await? {
            let mut model = vec![0; LEN];
            let there = pattern(LEN, i);
            for (at, to, len) in [(0, 3, 5), (11, 30_000, 4097), (100, 40_000, 39_999), (0, 0, 0)] {
                if i % 2 == 0 {
                    source.memcpy(at as u64, &target, to as u64, len as u64).await?;
                } else {
                    source.memmove(at as u64, &target, to as u64, len as u64).await?;
                }
                model.splice(to..to + len, there.iter().skip(at).take(len).copied());
            }
            if let Err(failure) = same_bytes(&all_of(&target).await?, &model) {
                return Err(Failure::new(format!("from {from} to {into}: {failure}")));
            }
            target.free().await?;
        }
    }
    for (_, source) in sources {
        source.free().await?;
    }
    Ok(())
}

/// A copy between two other nodes does not pass through the requesting node.
pub(crate) async fn a_copy_does_not_pass_through_who_asks(cx: &Context) -> Outcome {
    const LEN: u64 = 50_000;
    if cx.rank() == 0 {
        for (from, to) in [(1, 2), (1, 1)] {
            let source = cx.lite.alloc(cx.node(from), LEN, RW).await?;
            let target = cx.lite.alloc(cx.node(to), LEN, RW).await?;
            source.write(0, &pattern(LEN as usize, 5)).await?;
            let before = bytes_moved(&cx.lite);
            source.memcpy(0, &target, 0, LEN).await?;
            target.memmove(0, &target, 1000, LEN - 1000).await?;
            same(bytes_moved(&cx.lite), before)?;
            let mut got = vec![0; 1000];
            target.read(LEN - 1000, &mut got).await?;
            same_bytes(&got, pattern(LEN as usize, 5).get(48_000..49_000).unwrap_or_default())?;
            source.free().await?;
            target.free().await?;
        }
    }
    cx.meet().await
}

/// memmove within a region works like C's: after overlapping ranges were copied, the target has the source's
/// old bytes. memcpy refuses overlapping ranges.
pub(crate) async fn memmove_overlaps_as_in_c(cx: &Context) -> Outcome {
    const LEN: usize = 150_000;
    for (what, lmr) in cx.everywhere(LEN as u64).await? {
        let mut model = pattern(LEN, 2);
        lmr.write(0, &model).await?;
        for (from, to, len) in [
            (0, 1, 1000),
            (1, 0, 1000),
            (10, 4_106, 120_000),
            (70_000, 3, 80_000),
            (5, 5, 100),
            (0, 8, LEN - 8),
        ] {
            fails_or_apart(&lmr, from, to, len).await?;
            lmr.memmove(from as u64, &lmr, to as u64, len as u64).await?;
            model.copy_within(from..from + len, to);
            if let Err(failure) = same_bytes(&all_of(&lmr).await?, &model) {
                return Err(Failure::new(format!("{len} bytes from {from} to {to} {what}: {failure}")));
            }
        }
        // Adjacent ranges do not overlap.
        lmr.memcpy(0, &lmr, 1000, 1000).await?;
        model.copy_within(0..1000, 1000);
        same_bytes(&all_of(&lmr).await?, &model)?;
        lmr.free().await?;
    }
    Ok(())
}

/// Checks that memcpy of overlapping ranges is refused, also through another handle of the region.
async fn fails_or_apart(lmr: &Lmr, from: usize, to: usize, len: usize) -> Outcome {
    if from.abs_diff(to) < len {
        refused(lmr.memcpy(from as u64, lmr, to as u64, len as u64).await)?;
        refused(lmr.memcpy(from as u64, &lmr.clone(), to as u64, len as u64).await)?;
    }
    Ok(())
}

/// Two handles that were mapped separately refer to the same region, so ranges through them can overlap.
pub(crate) async fn overlap_is_of_regions_not_of_handles(cx: &Context) -> Outcome {
    let name = cx.name_of("region", cx.rank());
    let lmr = cx.lite.alloc(cx.next(), 1000, SHARED).await?;
    lmr.publish(&name).await?;
    let (one, two) = (cx.lite.map(&name, RW).await?, cx.lite.map(&name, RW).await?);
    let mut model = pattern(1000, 9);
    lmr.write(0, &model).await?;
    refused(one.memcpy(0, &two, 10, 500).await)?;
    one.memmove(0, &two, 10, 500).await?;
    model.copy_within(0..500, 10);
    two.memmove(400, &one, 3, 600).await?;
    model.copy_within(400..1000, 3);
    same_bytes(&all_of(&lmr).await?, &model)?;
    lmr.free().await?;
    Ok(())
}

/// Operations of many tasks on one region in parallel do not disturb each other.
pub(crate) async fn many_operations_at_once(cx: &Context) -> Outcome {
    const TASKS: usize = 24;
    let lmr =
        cx.lite.alloc(Placement::Striped { nodes: cx.nodes().to_vec(), stripe: 4096 }, 480_000, RW).await?;
    let task = async |i: usize| -> Outcome {
        let at = i as u64 * 20_000;
        for round in 0..3 {
            let len = LENGTHS[(i + round) % LENGTHS.len()] % 20_000;
            let data = pattern(len, i + round);
            lmr.write(at, &data).await?;
            let mut got = vec![0; len];
            lmr.read(at, &mut got).await?;
            same_bytes(&got, &data)?;
        }
        Ok(())
    };
    for done in futures_util::future::join_all((0..TASKS).map(task)).await {
        done?;
    }
    lmr.free().await?;
    Ok(())
}

/// The deadline of a handle applies to its operations: after it nothing is done.
pub(crate) async fn a_handle_has_a_deadline(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 1 << 20, RW).await?;
    lmr.write(0, &[1; 8]).await?;
    let late = lmr.with_deadline(core::time::Duration::ZERO);
    let written = late.write(0, &vec![2; 1 << 20]).await;
    ensure(matches!(written, Err(Error::Deadline | Error::Unknown)), "a write was done after its deadline")?;
    fails(late.read(0, &mut vec![0; 1 << 20]).await, Error::Deadline)?;
    // The original handle has its own deadline.
    lmr.write(0, &[3; 8]).await?;
    let mut got = [0; 8];
    lmr.read(0, &mut got).await?;
    same_bytes(&got, &[3; 8])?;
    lmr.free().await?;
    Ok(())
}

/// Requests to a node that does not exist are refused immediately.
pub(crate) async fn a_node_that_is_not_there_is_named(cx: &Context) -> Outcome {
    let nobody = NodeId(4000);
    fails(cx.lite.alloc(nobody, 8, RW).await, Error::NoSuchNode)?;
    fails(cx.lite.call(nobody, 1, b"", 0).await, Error::NoSuchNode)?;
    fails(cx.lite.send(nobody, 1, b"").await, Error::NoSuchNode)?;
    fails(cx.lite.create_lock(nobody, &cx.name_of("lock", cx.rank())).await, Error::NoSuchNode)?;
    fails(cx.lite.create_event(nobody, &cx.name_of("event", cx.rank())).await, Error::NoSuchNode)?;
    fails(cx.lite.create_counter(nobody, &cx.name_of("counter", cx.rank())).await, Error::NoSuchNode)?;
    let lmr = cx.lite.alloc(cx.next(), 8, RW).await?;
    fails(lmr.move_to(nobody).await, Error::NoSuchNode)?;
    fails(lmr.hand_over(nobody).await, Error::NoSuchNode)?;
    lmr.write(0, &[1]).await?;
    lmr.free().await?;
    Ok(())
}
