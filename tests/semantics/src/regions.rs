//! Regions: the placement, length and lifetime of their memory.

use crate::context::{Context, RW, SHARED, TIMEOUT, USE, all_of, pattern};
use crate::failure::{Failure, Outcome, ensure, fails, refused, same, same_bytes};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use lite::{Error, Lmr, NodeId, Permissions, Placement};

/// New memory is zero, for any placement and length.
pub(crate) async fn new_memory_is_zero(cx: &Context) -> Outcome {
    for len in [64, 1000, 4097, 300_001] {
        for (what, lmr) in cx.everywhere(len).await? {
            same(lmr.len(), len)?;
            if let Some(at) = all_of(&lmr).await?.iter().position(|b| *b != 0) {
                return Err(Failure::new(format!("byte {at} of {len} {what} is not zero")));
            }
            // The memory is filled for its next user.
            lmr.memset(0, len, 0xee).await?;
            lmr.free().await?;
        }
    }
    Ok(())
}

/// With any placement, a region is an array of bytes: bytes written at an offset are read there, and nothing
/// else changes.
pub(crate) async fn a_region_is_a_flat_array(cx: &Context) -> Outcome {
    const LEN: usize = 100_003;
    for (_, lmr) in cx.everywhere(LEN as u64).await? {
        let mut model = vec![0; LEN];
        for (i, (at, len)) in
            [(0, LEN), (1, 1), (4095, 2), (33_333, 8), (4_000, 50_000), (LEN - 1, 1), (65_530, 30_001)]
                .into_iter()
                .enumerate()
        {
            let data = pattern(len, i);
            lmr.write(at as u64, &data).await?;
            model.splice(at..at + len, data);
            let mut got = vec![0xaa; 9_000];
            for from in [0, at.saturating_sub(10).min(LEN - 9_000), LEN - 9_000] {
                lmr.read(from as u64, &mut got).await?;
                same_bytes(&got, model.get(from..from + 9_000).unwrap_or_default())?;
            }
        }
        same_bytes(&all_of(&lmr).await?, &model)?;
        lmr.free().await?;
    }
    Ok(())
}

/// A region reports the placement of its bytes: its owner, which is the node of its first byte, and all its
/// shares.
pub(crate) async fn shares_say_where_the_bytes_lie(cx: &Context) -> Outcome {
    const LEN: u64 = 30_000;
    let [here, there, third] = [cx.me(), cx.next(), cx.after_next()];
    let one = cx.lite.alloc(there, LEN, RW).await?;
    same((one.owner(), one.node(), one.shares()), (there, there, vec![(there, LEN)]))?;
    let list = vec![(third, 8_000), (here, 16), (there, LEN - 8_016)];
    let parts = cx.lite.alloc(Placement::Shares(list.clone()), LEN, RW).await?;
    same((parts.owner(), parts.node(), parts.shares()), (third, third, list))?;
    let nodes = vec![there, here];
    let striped = cx.lite.alloc(Placement::Striped { nodes, stripe: 10_000 }, LEN, RW).await?;
    same((striped.owner(), striped.shares()), (there, vec![(there, 20_000), (here, 10_000)]))?;
    let anywhere = cx.lite.alloc(Placement::Anywhere, LEN, RW).await?;
    ensure(cx.nodes().contains(&anywhere.owner()), "`Anywhere` chose no node of this cluster")?;
    same(anywhere.shares(), vec![(anywhere.owner(), LEN)])?;
    for lmr in [one, parts, striped, anywhere] {
        lmr.free().await?;
    }
    Ok(())
}

/// The last byte is in bounds, the next one is not; an offset whose end overflows is out of bounds; for zero
/// bytes, any offset up to the end is in bounds.
pub(crate) async fn bounds_are_exact(cx: &Context) -> Outcome {
    const LEN: u64 = 1000;
    for (_, lmr) in cx.everywhere(LEN).await? {
        let before = pattern(LEN as usize, 1);
        lmr.write(0, &before).await?;
        let mut byte = [0];
        lmr.read(LEN - 1, &mut byte).await?;
        same(Some(&byte[0]), before.last())?;
        lmr.write(LEN - 1, &byte).await?;
        lmr.fetch_add(LEN - 8, 0).await?;
        for at in [0, 500, LEN] {
            lmr.read(at, &mut []).await?;
            lmr.write(at, &[]).await?;
            lmr.memset(at, 0, 1).await?;
            lmr.memmove(at, &lmr, 0, 0).await?;
            lmr.memcpy(0, &lmr, at, 0).await?;
        }
        let mut got = vec![0; LEN as usize + 1];
        for (at, len) in [
            (0, 1001),
            (1, 1000),
            (LEN - 1, 2),
            (LEN, 1),
            (LEN + 1, 0),
            (u64::MAX, 0),
            (u64::MAX, 1),
            (u64::MAX - 7, 8),
            (u64::MAX - 500, 700),
            (1 << 63, 8),
        ] {
            let into = got.get_mut(..len).unwrap_or_default();
            fails(lmr.read(at, into).await, Error::OutOfBounds)?;
            fails(lmr.write(at, into).await, Error::OutOfBounds)?;
            fails(lmr.read_vectored(&mut [(0, &mut [0]), (at, into)]).await, Error::OutOfBounds)?;
            fails(lmr.write_vectored(&[(0, &[!before[0]]), (at, into)]).await, Error::OutOfBounds)?;
            fails(lmr.memset(at, len as u64, 0xff).await, Error::OutOfBounds)?;
            fails(lmr.memmove(at, &lmr, 0, len as u64).await, Error::OutOfBounds)?;
            fails(lmr.memcpy(0, &lmr, at, len as u64).await, Error::OutOfBounds)?;
        }
        fails(lmr.memset(1, u64::MAX, 0xff).await, Error::OutOfBounds)?;
        for at in [LEN - 4, LEN, 1 << 63, u64::MAX - 7] {
            fails(lmr.fetch_add(at, 1).await, Error::OutOfBounds)?;
            fails(lmr.compare_swap(at, 0, 1).await, Error::OutOfBounds)?;
            fails(lmr.test_and_set(at).await, Error::OutOfBounds)?;
        }
        same_bytes(&all_of(&lmr).await?, &before)?;
        lmr.free().await?;
    }
    Ok(())
}

/// A region may be empty: it has a name and an end like any other.
pub(crate) async fn a_region_may_be_empty(cx: &Context) -> Outcome {
    for node in [cx.me(), cx.next()] {
        let lmr = cx.lite.alloc(node, 0, SHARED).await?;
        ensure(lmr.is_empty(), "a region of no bytes is empty")?;
        lmr.read(0, &mut []).await?;
        lmr.write(0, &[]).await?;
        fails(lmr.read(0, &mut [0]).await, Error::OutOfBounds)?;
        let name = cx.name_of("empty", cx.rank());
        lmr.publish(&name).await?;
        same(cx.lite.map(&name, RW).await?.len(), 0)?;
        lmr.free().await?;
    }
    Ok(())
}

/// Critical offsets in a large region, each with a length.
const EDGES: [(u64, usize); 6] = [
    (0, 9),
    ((4 << 20) - 5, 10),
    ((32 << 20) - 70_000, 140_000),
    ((64 << 20) - 1, 2),
    ((128 << 20) - 4097, 8194),
    (130 << 20, 77),
];

/// A region may be larger than 4 MB, 64 MB and 128 MB, on one node and on several, and is still an array of
/// bytes.
pub(crate) async fn a_region_may_be_larger_than_128_mb(cx: &Context) -> Outcome {
    const LEN: u64 = (130 << 20) + 77;
    if cx.rank() == 0 {
        for placement in
            [Placement::Node(cx.next()), Placement::Striped { nodes: cx.nodes().to_vec(), stripe: 1 << 20 }]
        {
            let lmr = cx.lite.alloc(placement, LEN, SHARED).await?;
            for (i, (at, len)) in EDGES.into_iter().enumerate() {
                let data = pattern(len, i);
                lmr.write(at, &data).await?;
            }
            for (i, (at, len)) in EDGES.into_iter().enumerate() {
                let mut got = vec![0; len + 2];
                let (from, skip) = if at == 0 { (0, 0) } else { (at - 1, 1) };
                let into = got.get_mut(..(len + 2).min((LEN - from) as usize)).unwrap_or_default();
                lmr.read(from, into).await?;
                let mut expected = vec![0; into.len()];
                expected.splice(skip..skip + len, pattern(len, i));
                same_bytes(into, &expected)?;
            }
            same(lmr.fetch_add(128 << 20, 0).await? != 0, true)?;
            let last = (LEN / 8 - 1) * 8 - 160;
            same((lmr.fetch_add(last, 7).await?, lmr.compare_swap(last, 7, 0).await?), (0, 7))?;
            lmr.memset((64 << 20) - 3, 6, 0x5a).await?;
            lmr.memmove((64 << 20) - 4, &lmr, (100 << 20) - 4, 8).await?;
            let mut got = [0; 8];
            lmr.read((100 << 20) - 4, &mut got).await?;
            same_bytes(&got, &[0, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0])?;
            fails(lmr.read(LEN - 1, &mut [0; 2]).await, Error::OutOfBounds)?;
            lmr.free().await?;
        }
    }
    cx.meet().await
}

/// A placement that is impossible is refused with the amount of free memory: more than the memory, or parts
/// that form no region.
pub(crate) async fn what_cannot_be_placed_is_refused(cx: &Context) -> Outcome {
    const HUGE: u64 = 1 << 40;
    let all = || cx.nodes().to_vec();
    for placement in [
        Placement::Node(cx.me()),
        Placement::Node(cx.next()),
        Placement::Striped { nodes: all(), stripe: 1 << 30 },
        Placement::Anywhere,
    ] {
        match cx.lite.alloc(placement.clone(), HUGE, RW).await {
            Err(Error::NoMemory { asked, free }) if asked > free && asked <= HUGE => {}
            other => return Err(Failure::new(format!("{placement:?}: {other:?}"))),
        }
    }
    let striped = |nodes, stripe| Placement::Striped { nodes, stripe };
    for placement in [
        striped(vec![], 8),
        striped(all(), 0),
        striped(all(), 12),
        Placement::Shares(vec![]),
        Placement::Shares(vec![(cx.me(), 64), (cx.next(), 64)]),
        Placement::Shares(vec![(cx.me(), 63), (cx.next(), 37)]),
        Placement::Shares(vec![(cx.me(), 0), (cx.next(), 100)]),
        Placement::Shares(vec![(cx.me(), u64::MAX), (cx.next(), 101)]),
    ] {
        refused(cx.lite.alloc(placement, 100, RW).await)?;
    }
    let nobody = NodeId(4000);
    fails(cx.lite.alloc(nobody, 100, RW).await, Error::NoSuchNode)?;
    fails(cx.lite.alloc(striped(vec![cx.me(), nobody], 8), 100, RW).await, Error::NoSuchNode)?;
    // The refused placements left nothing allocated: a region that fits can be allocated.
    cx.lite.alloc(cx.next(), 1 << 20, RW).await?.free().await?;
    Ok(())
}

/// Memory that an application has filled becomes a region, in place and with its contents.
pub(crate) async fn memory_of_ones_own_becomes_a_region(cx: &Context) -> Outcome {
    const LEN: u64 = 50_001;
    let mut memory = cx.lite.local_memory(LEN).await?;
    same(memory.len(), LEN)?;
    let data = pattern(20_000, cx.rank());
    memory.write(30_001, &data)?;
    let mut got = vec![1; 30_001];
    memory.read(0, &mut got)?;
    same_bytes(&got, &vec![0; 30_001])?;
    fails(memory.write(LEN - 1, &[1, 2]), Error::OutOfBounds)?;
    fails(memory.read(u64::MAX, &mut [0]), Error::OutOfBounds)?;
    let lmr = cx.lite.register_memory(memory, Permissions::READ | Permissions::SHARE).await?;
    same((lmr.owner(), lmr.node()), (cx.me(), cx.me()))?;
    lmr.publish(&cx.name_of("own", cx.rank())).await?;
    let theirs =
        cx.lite.map_wait(&cx.name_of("own", (cx.rank() + 1) % cx.count()), Permissions::READ).await?;
    let mut got = vec![0; 20_000];
    theirs.read(30_001, &mut got).await?;
    same_bytes(&got, &pattern(20_000, (cx.rank() + 1) % cx.count()))?;
    fails(theirs.write(0, &[1]).await, Error::Permission)?;
    cx.meet().await?;
    lmr.free().await?;
    Ok(())
}

/// Counts and writes in a slot of its own until `stop` is set. Returns the number of rounds.
async fn work(cx: &Context, lmr: &Lmr, stop: &Lmr) -> Result<u64, Failure> {
    let slot = cx.rank() as u64;
    let mut rounds = 0;
    while stop.fetch_add(0, 0).await? == 0 {
        lmr.fetch_add(slot * 8, 1).await?;
        let data = pattern(20_000, rounds as usize);
        lmr.write(4096 + slot * 20_001, &data).await?;
        let mut got = vec![0; 20_000];
        lmr.read(4096 + slot * 20_001, &mut got).await?;
        same_bytes(&got, &data)?;
        rounds += 1;
        cx.lite.sleep(Duration::from_micros(300)).await;
    }
    Ok(rounds)
}

/// A region moves to another node, to several and back while others read, write and count in it without
/// noticing.
pub(crate) async fn a_region_moves_while_it_is_in_use(cx: &Context) -> Outcome {
    let (region, flag) = (cx.name("moving"), cx.name("stop"));
    let mut mine = None;
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(1), 200_000, SHARED).await?;
        let stop = cx.lite.alloc(cx.node(0), 8, SHARED).await?;
        lmr.publish(&region).await?;
        stop.publish(&flag).await?;
        mine = Some((lmr, stop));
    }
    let lmr = cx.lite.map_wait(&region, USE).await?;
    let stop = cx.lite.map_wait(&flag, USE).await?;
    cx.meet().await?;
    let rounds = match &mine {
        Some((master, stop)) => {
            let nodes = cx.nodes().to_vec();
            let places: [Placement; 5] = [
                cx.node(2).into(),
                Placement::Striped { nodes, stripe: 4096 },
                cx.node(0).into(),
                Placement::Anywhere,
                cx.node(1).into(),
            ];
            for to in places {
                // Between two moves, each of the others makes progress.
                for slot in 1..cx.count() as u64 {
                    let before = master.fetch_add(slot * 8, 0).await?;
                    while master.fetch_add(slot * 8, 0).await? == before {
                        cx.lite.sleep(Duration::from_micros(200)).await;
                    }
                }
                master.move_to(to).await?;
            }
            same((master.owner(), master.node()), (cx.node(1), cx.node(1)))?;
            stop.fetch_add(0, 1).await?;
            0
        }
        None => work(cx, &lmr, &stop).await?,
    };
    cx.meet().await?;
    same(lmr.fetch_add(cx.rank() as u64 * 8, 0).await?, rounds)?;
    ensure(rounds >= 5 || cx.rank() == 0, "this node did too little while the region moved")?;
    fails(lmr.move_to(cx.node(2)).await, Error::Permission)?;
    cx.meet().await?;
    if let Some((master, stop)) = mine {
        master.free().await?;
        stop.free().await?;
    }
    Ok(())
}

/// A freed region no longer exists for any node that maps it, and neither do its names, from the moment the
/// call returns.
pub(crate) async fn freed_is_freed_for_all(cx: &Context) -> Outcome {
    let (one, two) = (cx.name("one"), cx.name("two"));
    let mut master = None;
    if cx.rank() == 0 {
        let lmr = cx
            .lite
            .alloc(Placement::Striped { nodes: cx.nodes().to_vec(), stripe: 64 }, 10_000, SHARED)
            .await?;
        lmr.publish(&one).await?;
        lmr.publish(&two).await?;
        master = Some(lmr);
    }
    let lmr = cx.lite.map_wait(&two, USE).await?;
    lmr.fetch_add(0, 1).await?;
    cx.meet().await?;
    if let Some(lmr) = master {
        lmr.free().await?;
    }
    cx.meet().await?;
    fails(lmr.read(0, &mut [0]).await, Error::Freed)?;
    fails(lmr.read(0, &mut []).await, Error::Freed)?;
    fails(lmr.write(9_999, &[1]).await, Error::Freed)?;
    fails(lmr.fetch_add(8, 1).await, Error::Freed)?;
    fails(lmr.memset(0, 10_000, 1).await, Error::Freed)?;
    fails(lmr.memmove(0, &lmr, 8, 8).await, Error::Freed)?;
    fails(lmr.read_vectored(&mut [(0, &mut [0])]).await, Error::Freed)?;
    for name in [&one, &two] {
        fails(cx.lite.map(name, RW).await, Error::NoSuchName)?;
    }
    cx.meet().await?;
    // The name can be used again, by the first node that publishes it.
    let again = cx.lite.alloc(cx.me(), 8, SHARED).await?;
    if cx.rank() == 1 {
        again.publish(&one).await?;
        cx.lite.map(&one, RW).await?;
    }
    again.free().await?;
    Ok(())
}

/// Waits until the number of free bytes on this node satisfies `enough`.
async fn has_free(cx: &Context, enough: impl Fn(u64) -> bool) -> Outcome {
    let platform = cx.lite.platform();
    let end = platform.now() + TIMEOUT;
    while !enough(platform.memory().stats().free) {
        if platform.now() > end {
            return Err(Failure::new(format!("{} bytes are free", platform.memory().stats().free)));
        }
        cx.lite.sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// A dropped handle is unmapped, and memory without mappings and without a name becomes free.
pub(crate) async fn dropped_means_unmapped(cx: &Context) -> Outcome {
    const LEN: u64 = 8 << 20;
    // Memory that other parts of a node allocate and free in the meantime.
    const SLACK: u64 = 2 << 20;
    let name = cx.name("kept");
    let before = cx.lite.platform().memory().stats().free;
    cx.meet().await?;
    for published in [false, true] {
        let mut held = None;
        if cx.rank() == 0 {
            let lmr = cx.lite.alloc(cx.node(1), LEN, SHARED).await?;
            lmr.write(LEN - 3, b"end").await?;
            if published {
                lmr.publish(&name).await?;
            }
            held = Some(lmr.clone());
            // The clone keeps the region.
            drop(lmr);
        }
        cx.meet().await?;
        if cx.rank() == 1 {
            has_free(cx, |free| free <= before - LEN + SLACK).await?;
        }
        cx.meet().await?;
        if let Some(held) = held {
            held.read(0, &mut [0]).await?;
        }
        if published {
            cx.meet().await?;
            // A name keeps it as well.
            let mut end = [0; 3];
            cx.lite.map(&name, RW).await?.read(LEN - 3, &mut end).await?;
            same_bytes(&end, b"end")?;
            cx.meet().await?;
            if cx.rank() == 0 {
                cx.lite.unpublish(&name).await?;
            }
        }
        if cx.rank() == 1 {
            has_free(cx, |free| free >= before - SLACK).await?;
        }
        cx.meet().await?;
    }
    Ok(())
}

/// Regions that many nodes allocate on one node in parallel do not overlap.
pub(crate) async fn regions_are_apart(cx: &Context) -> Outcome {
    let mut mine: Vec<(Lmr, u8)> = Vec::new();
    for i in 0..20u8 {
        let lmr = cx.lite.alloc(cx.node(0), 100 + 1000 * u64::from(i), USE).await?;
        let byte = i * 8 + cx.rank() as u8 + 1;
        lmr.memset(0, lmr.len(), byte).await?;
        mine.push((lmr, byte));
    }
    cx.meet().await?;
    for (lmr, byte) in mine {
        let bytes = all_of(&lmr).await?;
        ensure(bytes.iter().all(|b| *b == byte), "another region's bytes are in this one")?;
        lmr.free().await?;
    }
    Ok(())
}
