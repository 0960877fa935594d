//! Vectors, asynchronous operations, fences, and copies between any regions: as documented, on this and on
//! other nodes.

use lite::testing::{Cluster, Native};
use lite::{Completed, Config, Error, Lmr, NodeId, Op, OpKind, Permissions};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verbs::{Gid, Rnic};

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);
const LIMIT: Duration = Duration::from_secs(60);

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 64 << 20, &Config::default())
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

async fn all_of(lmr: &Lmr) -> Vec<u8> {
    let mut bytes = vec![0; lmr.len() as usize];
    lmr.read(0, &mut bytes).await.unwrap();
    bytes
}

#[test]
fn vectors_scatter_and_gather() {
    let mut c = cluster(2);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        for node in [NodeId(1), NodeId(2)] {
            let lmr = a.alloc(node, 1 << 20, RIGHTS).await.unwrap();
            let mut model = vec![0; 1 << 20];
            // More pieces than are in flight at once, of all lengths, one over many chunks.
            let data: Vec<_> = (0..20).map(|i| pattern([0, 1, 64, 200, 5000, 200_000][i % 6], i)).collect();
            let pieces: Vec<_> = data.iter().enumerate().map(|(i, d)| (i as u64 * 40_000, &d[..])).collect();
            for (offset, data) in &pieces {
                model[*offset as usize..][..data.len()].copy_from_slice(data);
            }
            for piece in &pieces {
                // One by one, because they overlap.
                lmr.write_vectored(&[*piece]).await.unwrap();
            }
            assert_eq!(all_of(&lmr).await, model);
            let apart: Vec<_> =
                (0..20u64).map(|i| (i * 300 + 7, &model[i as usize * 100..][..100])).collect();
            let mut expected = model.clone();
            for (offset, data) in &apart {
                expected[*offset as usize..][..100].copy_from_slice(data);
            }
            lmr.write_vectored(&apart).await.unwrap();
            assert_eq!(all_of(&lmr).await, expected);
            let mut got: Vec<_> = (0..20).map(|i| vec![0; [3, 70_000, 64][i % 3]]).collect();
            let mut into: Vec<_> =
                got.iter_mut().enumerate().map(|(i, b)| (i as u64 * 1001, &mut b[..])).collect();
            lmr.read_vectored(&mut into).await.unwrap();
            for (i, bytes) in got.iter().enumerate() {
                assert_eq!(bytes[..], expected[i * 1001..][..bytes.len()]);
            }
            // Nothing is done if one of them is wrong.
            let bad = [(0, &[0xff; 8][..]), ((1 << 20) - 4, &[0xff; 8][..])];
            assert_eq!(lmr.write_vectored(&bad).await, Err(Error::OutOfBounds));
            assert_eq!(all_of(&lmr).await, expected);
            assert_eq!(lmr.test_and_set(512 << 10).await.map(|_| ()), Ok(()));
            lmr.write(8, &[0; 8]).await.unwrap();
            assert_eq!(lmr.test_and_set(8).await, Ok(false));
            assert_eq!(lmr.test_and_set(8).await, Ok(true));
            assert_eq!(lmr.test_and_set(9).await, Err(Error::Misaligned));
        }
    });
}

#[test]
fn completions_come_for_all_that_was_posted() {
    let mut c = cluster(3);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let mut regions = Vec::new();
        for node in [1, 2, 3] {
            regions.push(a.alloc(NodeId(node), 1 << 16, RIGHTS).await.unwrap());
        }
        let queue = a.completion_queue(64);
        let data: Vec<_> = (0..60).map(|i| pattern(10 + i * 40, i)).collect();
        let ops: Vec<_> = (0..60u64)
            .map(|tag| {
                let (lmr, kind) = (&regions[tag as usize % 3], OpKind::Write(&data[tag as usize]));
                Op { tag, lmr, offset: (tag / 3) * 3000, kind }
            })
            .collect();
        let mut posted = 0;
        let mut ended = BTreeSet::new();
        while posted < ops.len() {
            posted += queue.post(&ops[posted..]).await.unwrap();
            queue.fence().await;
            while let Some(done) = queue.next(&mut []).await {
                assert_eq!(done.result, Ok(data[done.tag as usize].len() as u64));
                assert!(ended.insert(done.tag), "each ends once");
            }
        }
        assert_eq!(ended.len(), 60);
        for op in &ops {
            let read = Op { kind: OpKind::Read(data[op.tag as usize].len()), ..*op };
            assert_eq!(queue.post(&[read]).await, Ok(1));
            let mut into = vec![0; 3000];
            let done = queue.next(&mut into).await.unwrap();
            assert_eq!(done, Completed { tag: op.tag, result: Ok(data[op.tag as usize].len() as u64) });
            assert_eq!(into[..data[op.tag as usize].len()], data[op.tag as usize]);
        }
        assert_eq!(queue.next(&mut []).await, None);
        for lmr in &regions {
            let op = |tag, kind| Op { tag, lmr, offset: 60_000, kind };
            let atomics =
                [op(1, OpKind::FetchAdd(5)), op(2, OpKind::CompareSwap(5, 9)), op(3, OpKind::Read(8))];
            assert_eq!(queue.post(&atomics[..1]).await, Ok(1));
            assert_eq!(queue.next(&mut []).await.unwrap().result, Ok(0));
            assert_eq!(queue.post(&atomics[1..2]).await, Ok(1));
            assert_eq!(queue.next(&mut []).await.unwrap().result, Ok(5));
            assert_eq!(queue.post(&atomics[2..]).await, Ok(1));
            let mut word = [0; 8];
            assert_eq!(queue.next(&mut word[..7]).await.unwrap().result, Err(Error::TooLarge { max: 7 }));
            assert_eq!(queue.post(&atomics[2..]).await, Ok(1));
            assert_eq!(queue.next(&mut word).await.unwrap().result, Ok(8));
            assert_eq!(u64::from_ne_bytes(word), 9);
            // An access to this node's part and one to another node's part fail alike; nothing is posted for
            // either.
            let at = |offset, kind| Op { tag: 1, lmr, offset, kind };
            for (bad, why) in [
                (at(65_530, OpKind::Read(8)), Error::OutOfBounds),
                (at(1, OpKind::FetchAdd(1)), Error::Misaligned),
                (at(u64::MAX, OpKind::Write(&[0])), Error::OutOfBounds),
            ] {
                assert_eq!(queue.post(&[op(7, OpKind::FetchAdd(1)), bad]).await, Err(why));
                assert!(queue.is_empty());
            }
        }
        // A freed region is refused from then on.
        let gone = regions.remove(1);
        gone.clone().free().await.unwrap();
        let op = Op { tag: 1, lmr: &gone, offset: 0, kind: OpKind::Read(1) };
        assert_eq!(queue.post(&[op]).await, Err(Error::Freed));
        // A full queue accepts no more until a completion is taken.
        let small = a.completion_queue(2);
        let op = Op { tag: 1, lmr: &regions[1], offset: 0, kind: OpKind::Write(&[1]) };
        assert_eq!(small.post(&[op; 5]).await, Ok(2));
        assert_eq!(small.post(&[op]).await, Ok(0));
        assert!(small.next(&mut []).await.unwrap().result.is_ok());
        assert_eq!(small.post(&[op; 5]).await, Ok(1));
    });
}

/// A completion that is not taken keeps the only buffer. An operation on two nodes needs it, and is posted
/// later.
#[test]
fn an_operation_does_not_wait_for_a_completion_of_its_own_queue() {
    let bounce = [(64, 1), (256, 1), (16384, 1)];
    let mut c = Cluster::new(1, 3, 8 << 20, &Config { bounce, ..Config::default() });
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let one = a.alloc(NodeId(2), 1 << 16, RIGHTS).await.unwrap();
        let striped = lite::Placement::Striped { nodes: vec![NodeId(2), NodeId(3)], stripe: 4096 };
        let two = a.alloc(striped, 1 << 16, RIGHTS).await.unwrap();
        let data = pattern(1000, 7);
        two.write(4000, &data).await.unwrap();
        let queue = a.with_deadline(Duration::from_secs(1)).completion_queue(4);
        let read = |tag, lmr, offset| Op { tag, lmr, offset, kind: OpKind::Read(1000) };
        let ops = [read(1, &one, 0), read(2, &two, 4000)];
        assert_eq!(queue.post(&ops).await, Ok(1));
        let mut got = [0; 1000];
        assert_eq!(queue.next(&mut got).await, Some(Completed { tag: 1, result: Ok(1000) }));
        assert_eq!(queue.post(&ops[1..]).await, Ok(1));
        assert_eq!(queue.next(&mut got).await, Some(Completed { tag: 2, result: Ok(1000) }));
        assert_eq!(got[..], data);
    });
}

#[test]
fn what_is_late_or_cut_off_ends_too() {
    let mut c = cluster(2);
    let (a, fabric) = (c.lite(1), c.fabric.clone());
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(2), 4096, RIGHTS).await.unwrap();
        let op = |kind| Op { tag: 1, lmr: &lmr, offset: 0, kind };
        let hasty = a.with_deadline(Duration::from_millis(5)).completion_queue(8);
        fabric.hold(true);
        assert_eq!(hasty.post(&[op(OpKind::Read(8)), op(OpKind::Write(&[1]))]).await, Ok(2));
        let first = hasty.next(&mut [0; 8]).await.unwrap();
        let second = hasty.next(&mut [0; 8]).await.unwrap();
        assert_eq!([first.result, second.result], [Err(Error::Deadline), Err(Error::Unknown)]);
        // The fast path of a plain operation ends on time as well.
        let impatient = lmr.with_deadline(Duration::from_millis(5));
        assert_eq!(impatient.read(0, &mut [0; 8]).await, Err(Error::Deadline));
        assert_eq!(impatient.write(0, &[1]).await, Err(Error::Unknown));
        fabric.hold(false);
        // A dropped operation leaves nothing behind: the queue goes on.
        drop(hasty);
        let queue = a.completion_queue(8);
        assert_eq!(queue.post(&[op(OpKind::Read(8))]).await, Ok(1));
        assert_eq!(queue.next(&mut [0; 8]).await.unwrap().result, Ok(8));
        fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), true);
        assert_eq!(queue.post(&[op(OpKind::Read(8))]).await, Ok(1));
        assert_eq!(queue.next(&mut [0; 8]).await.unwrap().result, Err(Error::Unknown));
        fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), false);
        assert_eq!(queue.post(&[op(OpKind::Read(8))]).await, Ok(1));
        assert_eq!(queue.next(&mut [0; 8]).await.unwrap().result, Ok(8));
    });
}

#[test]
fn many_go_out_with_one_doorbell() {
    fn clock() -> u64 {
        static NOW: AtomicU64 = AtomicU64::new(0);
        NOW.fetch_add(1, Ordering::Relaxed)
    }
    let native = Native::new(&[16 << 20; 2], clock, &Config::default());
    let lite = native.nodes[0].lite.clone();
    let lmr = native.run(lite.alloc(NodeId(2), 4096, RIGHTS)).unwrap();
    let rnic = native.nodes[0].rnic.clone();
    let count = |name| {
        let mut value = 0;
        rnic.counters(&mut |(n, v)| value += if n == name { v } else { 0 });
        value
    };
    let queue = lite.completion_queue(16);
    let ops = [Op { tag: 1, lmr: &lmr, offset: 0, kind: OpKind::Write(&[1; 64]) }; 16];
    native.run(async {
        for _ in 0..2 {
            let before = (count("direct_posts"), count("direct_doorbells"));
            assert_eq!(queue.post(&ops).await, Ok(16));
            // The first time a connection is opened as well.
            let after = (count("direct_posts"), count("direct_doorbells"));
            assert_eq!(after.0 - before.0, 16);
            assert_eq!(after.1 - before.1, 1);
            while queue.next(&mut []).await.is_some() {}
        }
    });
    let allocated = allocation_counter::measure(|| {
        native.run_on(1, async {
            for _ in 0..10 {
                assert_eq!(queue.post(&ops).await, Ok(16));
                while queue.next(&mut []).await.is_some() {}
            }
        });
    });
    assert_eq!(allocated.count_total, 1, "the executor's waker: {allocated:?}");
}

#[test]
fn copies_between_any_regions() {
    let mut c = cluster(4);
    let lites: Vec<_> = (1..=4).map(|i| c.lite(i)).collect();
    let bytes_of = |lite: &lite::Lite| {
        let mut n = 0;
        lite.counters(&mut |(name, v)| {
            if name == "lite_bytes_read" || name == "lite_bytes_written" {
                n += v;
            }
        });
        n
    };
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        const LEN: usize = 300_000;
        for (from, to) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 4)] {
            let source = a.alloc(NodeId(from), LEN as u64, RIGHTS).await.unwrap();
            let target = a.alloc(NodeId(to), LEN as u64, RIGHTS).await.unwrap();
            let (there, mut model) = (pattern(LEN, 3), pattern(LEN, 4));
            source.write(0, &there).await.unwrap();
            target.write(0, &model).await.unwrap();
            for (offset, to_offset, len) in [(0, 0, 0), (5, 9, 1), (100, 7, 200_000), (0, 0, LEN)] {
                let before = bytes_of(&a);
                source.memcpy(offset as u64, &target, to_offset as u64, len as u64).await.unwrap();
                // The bytes pass through this node only if it holds one of the two regions.
                if from != 1 && to != 1 {
                    assert_eq!(bytes_of(&a), before, "{from} to {to}");
                }
                model[to_offset..to_offset + len].copy_from_slice(&there[offset..offset + len]);
                assert_eq!(all_of(&target).await, model, "{from} to {to}");
            }
            // Within a region, overlapping, in both directions.
            let mut model = there;
            for (offset, to_offset, len) in [(0, 1000, 250_000), (1000, 0, 250_000), (10, 10, 100)] {
                source.memmove(offset as u64, &source, to_offset as u64, len as u64).await.unwrap();
                model.copy_within(offset..offset + len, to_offset);
                assert!(all_of(&source).await == model, "{from}: {offset} to {to_offset}");
                let refused = source.memcpy(offset as u64, &source, to_offset as u64, len as u64).await;
                assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
            }
            assert_eq!(source.memmove(1, &target, 0, LEN as u64).await, Err(Error::OutOfBounds));
            assert_eq!(source.memmove(0, &target, 1, LEN as u64).await, Err(Error::OutOfBounds));
            let gone = target.clone();
            target.free().await.unwrap();
            assert_eq!(source.memmove(0, &gone, 0, 1).await, Err(Error::Freed));
            source.free().await.unwrap();
        }
        // Rights count, and those of one node only.
        let shared = RIGHTS | Permissions::SHARE;
        let source = a.alloc(NodeId(2), 4096, shared).await.unwrap();
        source.publish("source").await.unwrap();
        let target = a.alloc(NodeId(3), 4096, shared).await.unwrap();
        target.publish("target").await.unwrap();
        let b = &lites[3];
        let (reader, writer) = (
            b.map("source", Permissions::READ).await.unwrap(),
            b.map("target", Permissions::WRITE).await.unwrap(),
        );
        source.write(0, b"through and through").await.unwrap();
        reader.memmove(0, &writer, 0, 19).await.unwrap();
        let mut got = [0; 19];
        target.read(0, &mut got).await.unwrap();
        assert_eq!(&got, b"through and through");
        assert_eq!(writer.memmove(0, &reader, 0, 1).await, Err(Error::Permission));
    });
}
