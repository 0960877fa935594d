//! Asynchronous operations: posted, in flight, and received as they end.

use crate::context::{Context, RW, SHARED, USE, pattern};
use crate::failure::{Failure, Outcome, ensure, fails, same, same_bytes};
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use lite::{Completed, CompletionQueue, Error, Lmr, Op, OpKind};

/// Each posted operation ends once, with its tag and its result, on any node.
pub(crate) async fn each_ends_once_with_its_number(cx: &Context) -> Outcome {
    const OPS: usize = 90;
    let regions = cx.everywhere(200_000).await?;
    let region = |i: usize| {
        regions.get(i % regions.len()).map(|(_, lmr)| lmr).ok_or_else(|| Failure::new("no region"))
    };
    let data: Vec<_> = (0..OPS).map(|i| pattern(1 + i * 97, i)).collect();
    let mut ops = Vec::new();
    for (i, data) in data.iter().enumerate() {
        ops.push(Op {
            tag: 1000 + i as u64,
            lmr: region(i)?,
            offset: (i / regions.len()) as u64 * 9_001,
            kind: OpKind::Write(data),
        });
    }
    let queue = cx.lite.completion_queue(16);
    let (mut posted, mut ended) = (0, BTreeSet::new());
    while ended.len() < OPS {
        posted += queue.post(ops.get(posted..).unwrap_or_default()).await?;
        ensure(queue.len() <= 16 && !queue.is_empty(), "the queue holds at most its capacity")?;
        let Some(done) = queue.next(&mut []).await else { return Err(Failure::new("no operation ends")) };
        let len = data.get((done.tag - 1000) as usize).map(Vec::len);
        same(done.result.ok(), len.map(|len| len as u64))?;
        ensure(ended.insert(done.tag), "an operation has ended twice")?;
    }
    same((posted, queue.next(&mut []).await), (OPS, None))?;
    for (op, data) in ops.iter().zip(&data) {
        let read = Op { kind: OpKind::Read(data.len()), ..*op };
        same(queue.post(&[read]).await?, 1)?;
        let mut into = vec![0; data.len() + 5];
        let done = queue.next(&mut into).await;
        same(done, Some(Completed { tag: op.tag, result: Ok(data.len() as u64) }))?;
        same_bytes(into.get(..data.len()).unwrap_or_default(), data)?;
    }
    for (_, lmr) in regions {
        lmr.free().await?;
    }
    Ok(())
}

/// Atomics end with the previous value.
pub(crate) async fn atomics_bring_the_value_before(cx: &Context) -> Outcome {
    let queue = cx.lite.completion_queue(4);
    for (_, lmr) in cx.everywhere(64).await? {
        let kinds = [
            (OpKind::FetchAdd(5), 0),
            (OpKind::FetchAdd(u64::MAX), 5),
            (OpKind::CompareSwap(4, 9), 4),
            (OpKind::CompareSwap(4, 1), 9),
            (OpKind::FetchAdd(0), 9),
        ];
        for (kind, before) in kinds {
            same(queue.post(&[Op { tag: 1, lmr: &lmr, offset: 56, kind }]).await?, 1)?;
            same(queue.next(&mut []).await, Some(Completed { tag: 1, result: Ok(before) }))?;
        }
        lmr.free().await?;
    }
    Ok(())
}

/// A queue accepts as many operations as it has room for, and returns their number.
pub(crate) async fn a_full_queue_takes_no_more(cx: &Context) -> Outcome {
    let queue = cx.lite.completion_queue(3);
    for node in [cx.me(), cx.next()] {
        let lmr = cx.lite.alloc(node, 64, RW).await?;
        let op = Op { tag: 7, lmr: &lmr, offset: 0, kind: OpKind::Write(&[1; 8]) };
        same(queue.post(&[op; 10]).await?, 3)?;
        same((queue.post(&[op]).await?, queue.len()), (0, 3))?;
        ensure(queue.next(&mut []).await.is_some(), "an operation ends")?;
        same(queue.post(&[op; 10]).await?, 1)?;
        queue.fence().await;
        // Operations that have ended stay in the queue until they are received.
        same(queue.len(), 3)?;
        while queue.next(&mut []).await.is_some() {}
        ensure(queue.is_empty(), "all have been taken")?;
        same(queue.post(&[]).await?, 0)?;
        lmr.free().await?;
    }
    Ok(())
}

/// An invalid operation is refused, and none of those posted with it is performed.
pub(crate) async fn nothing_is_posted_if_one_is_wrong(cx: &Context) -> Outcome {
    const LEN: u64 = 1 << 20;
    let queue = cx.lite.completion_queue(16);
    for node in [cx.me(), cx.next()] {
        let lmr = cx.lite.alloc(node, LEN, SHARED).await?;
        lmr.publish(&cx.name_of("region", cx.rank())).await?;
        let reader = cx.lite.map(&cx.name_of("region", cx.rank()), lite::Permissions::READ).await?;
        let op = |lmr, offset, kind| Op { tag: 1, lmr, offset, kind };
        let good = op(&lmr, 0, OpKind::FetchAdd(1));
        for (bad, why) in [
            (op(&lmr, LEN - 7, OpKind::Read(8)), Error::OutOfBounds),
            (op(&lmr, u64::MAX, OpKind::Write(&[1])), Error::OutOfBounds),
            (op(&lmr, LEN, OpKind::FetchAdd(1)), Error::OutOfBounds),
            (op(&lmr, 12, OpKind::CompareSwap(0, 1)), Error::Misaligned),
            (op(&reader, 0, OpKind::Write(&[1])), Error::Permission),
            (op(&reader, 0, OpKind::FetchAdd(1)), Error::Permission),
        ] {
            fails(queue.post(&[good, good, bad]).await, why)?;
            ensure(queue.is_empty(), "nothing has been posted")?;
        }
        // One operation is at most one chunk.
        let long = queue.post(&[good, op(&lmr, 0, OpKind::Read(LEN as usize))]).await;
        ensure(
            matches!(long, Err(Error::TooLarge { max }) if max < LEN),
            "a read of many chunks is too large",
        )?;
        same(lmr.fetch_add(0, 0).await?, 0)?;
        lmr.clone().free().await?;
        fails(queue.post(&[op(&lmr, 0, OpKind::Read(1))]).await, Error::Freed)?;
        fails(queue.post(&[op(&reader, 0, OpKind::Read(1))]).await, Error::Freed)?;
    }
    Ok(())
}

/// Only the data of a read into a buffer that is too short is lost.
pub(crate) async fn a_buffer_may_be_too_short(cx: &Context) -> Outcome {
    let queue = cx.lite.completion_queue(4);
    for node in [cx.me(), cx.next()] {
        let lmr = cx.lite.alloc(node, 64, RW).await?;
        let read = |tag| Op { tag, lmr: &lmr, offset: 0, kind: OpKind::Read(8) };
        same(queue.post(&[read(1)]).await?, 1)?;
        let short = queue.next(&mut [0; 7]).await;
        same(short, Some(Completed { tag: 1, result: Err(Error::TooLarge { max: 7 }) }))?;
        same(queue.post(&[read(2)]).await?, 1)?;
        same(queue.next(&mut [0; 8]).await, Some(Completed { tag: 2, result: Ok(8) }))?;
        lmr.free().await?;
    }
    Ok(())
}

/// Operations of one queue on one node are performed in the order of posting.
pub(crate) async fn to_one_node_in_order(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 64, USE).await?;
    let queue = cx.lite.completion_queue(64);
    for round in 0..10u64 {
        let values: Vec<_> = (0..40).map(|i| (round * 100 + i).to_ne_bytes()).collect();
        let ops: Vec<_> =
            values.iter().map(|v| Op { tag: 1, lmr: &lmr, offset: 8, kind: OpKind::Write(v) }).collect();
        post_all(&queue, &ops).await?;
        post_all(&queue, &[Op { tag: 2, lmr: &lmr, offset: 8, kind: OpKind::Read(8) }]).await?;
        let (mut last, mut into) = ([0; 8], [0; 8]);
        while let Some(done) = queue.next(&mut into).await {
            done.result?;
            if done.tag == 2 {
                last = into;
            }
        }
        // The read was performed after all the writes.
        same(u64::from_ne_bytes(last), round * 100 + 39)?;
    }
    lmr.free().await?;
    Ok(())
}

/// Operations posted before a fence take effect before those posted after it, on any nodes: a node that sees
/// the flag on one node sees all the data on the others.
pub(crate) async fn a_fence_comes_between(cx: &Context) -> Outcome {
    const ROUNDS: u64 = 8;
    /// The length of one write in bytes, and the number of writes to each node: more than is in flight at a
    /// time.
    const WRITE: usize = 50_000;
    const WRITES: usize = 6;
    let names = [cx.name("data 1"), cx.name("data 2"), cx.name("flag")];
    let mut own: Vec<Lmr> = Vec::new();
    if cx.rank() == 0 {
        for (name, (rank, len)) in names.iter().zip([(1, WRITE * WRITES), (2, WRITE * WRITES), (0, 16)]) {
            let lmr = cx.lite.alloc(cx.node(rank), len as u64, SHARED).await?;
            lmr.publish(name).await?;
            own.push(lmr);
        }
    }
    let mut regions = Vec::new();
    for name in &names {
        regions.push(cx.lite.map_wait(name, USE).await?);
    }
    let [one, two, flag] = &regions[..] else { return Err(Failure::new("a region is missing")) };
    cx.meet().await?;
    for round in 1..=ROUNDS {
        let data = [round as u8; WRITE];
        if cx.rank() == 0 {
            let queue = cx.lite.completion_queue(2 * WRITES + 1);
            let mut ops = Vec::new();
            for i in 0..WRITES {
                for lmr in [one, two] {
                    ops.push(Op { tag: 1, lmr, offset: (i * WRITE) as u64, kind: OpKind::Write(&data) });
                }
            }
            post_all(&queue, &ops).await?;
            queue.fence().await;
            post_all(&queue, &[Op { tag: 2, lmr: flag, offset: 0, kind: OpKind::FetchAdd(1) }]).await?;
            while let Some(done) = queue.next(&mut []).await {
                done.result?;
            }
        } else {
            while flag.fetch_add(0, 0).await? < round {
                platform::yield_now().await;
            }
            // The last bytes are checked first.
            for i in (0..WRITES).rev() {
                for lmr in [one, two] {
                    let mut got = [0; 8];
                    lmr.read(((i + 1) * WRITE - 8) as u64, &mut got).await?;
                    same_bytes(&got, &[round as u8; 8])?;
                }
            }
        }
        cx.meet().await?;
    }
    for lmr in own {
        lmr.free().await?;
    }
    Ok(())
}

/// Posts all operations, and receives ended ones when there is no room.
async fn post_all(queue: &CompletionQueue, ops: &[Op<'_>]) -> Outcome {
    let mut posted = 0;
    while let Some(rest) = ops.get(posted..).filter(|rest| !rest.is_empty()) {
        posted += queue.post(rest).await?;
        if posted < ops.len()
            && let Some(done) = queue.next(&mut []).await
        {
            done.result?;
        }
    }
    Ok(())
}

/// A dropped queue abandons its operations in flight, which use no slots of others.
pub(crate) async fn a_queue_may_be_dropped(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 4096, USE).await?;
    for _ in 0..200 {
        let queue = cx.lite.completion_queue(16);
        let op = Op { tag: 1, lmr: &lmr, offset: 0, kind: OpKind::Write(&[1; 4096]) };
        ensure(queue.post(&[op; 16]).await? > 0, "the queue has room")?;
    }
    same(lmr.fetch_add(8, 0).await?, 0x0101_0101_0101_0101)?;
    lmr.free().await?;
    Ok(())
}
