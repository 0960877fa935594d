//! Bytes go between regions and an application's own memory without a copy.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, LocalMemory, NodeId, Permissions, Placement};
use platform::Platform;
use std::time::Duration;
use verbs::Gid;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 64 << 20, &Config::default())
}

fn copied(lite: &Lite) -> u64 {
    let mut value = None;
    lite.counters(&mut |(name, count)| value = if name == "lite_bytes_copied" { Some(count) } else { value });
    value.unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

async fn filled(lite: &Lite, data: &[u8]) -> LocalMemory {
    let mut memory = lite.local_memory(data.len() as u64).await.unwrap();
    memory.write(0, data).unwrap();
    memory
}

fn content(memory: &LocalMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_mebibyte_is_read_and_written_without_a_copy() {
    let mut c = cluster(4);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let wide = Placement::Striped { nodes: [2, 3, 4].map(NodeId).to_vec(), stripe: 4096 };
        for placement in [Placement::Node(NodeId(2)), wide] {
            let lmr = a.alloc(placement.clone(), MIB, RW).await.unwrap();
            let (data, mut back) = (pattern(MIB as usize, 1), a.local_memory(MIB).await.unwrap());
            let memory = filled(&a, &data).await;
            let before = copied(&a);
            lmr.write_from(0, &memory, 0..MIB).await.unwrap();
            assert_eq!(copied(&a) - before, 0, "a write to {placement:?}");
            lmr.read_to(0, &mut back, 0..MIB).await.unwrap();
            assert_eq!(copied(&a) - before, 0, "a read from {placement:?}");
            assert!(content(&back) == data);
            // The counter counts: slices go through bounce buffers.
            let mut got = vec![0; MIB as usize];
            lmr.read(0, &mut got).await.unwrap();
            assert_eq!(copied(&a) - before, MIB);
            lmr.write(0, &got).await.unwrap();
            assert_eq!(copied(&a) - before, 2 * MIB);
            lmr.read(0, &mut got[..4096]).await.unwrap();
            lmr.write(0, &got[..4096]).await.unwrap();
            assert_eq!(copied(&a) - before, 2 * MIB + 8192);
            assert!(got == data);
        }
    });
}

/// Any range goes to and from any offset of any region, this node's own included.
#[test]
fn any_range_goes_to_any_offset() {
    let mut c = cluster(3);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let (b, d) = (NodeId(2), NodeId(3));
        let placements = [
            Placement::Node(a.node_id()),
            Placement::Node(b),
            Placement::Striped { nodes: vec![b, a.node_id(), d], stripe: 1000 },
            Placement::Shares(vec![(b, 100_000), (d, 56), (a.node_id(), 200_000)]),
        ];
        const LEN: usize = 300_056;
        for placement in placements {
            let lmr = a.alloc(placement.clone(), LEN as u64, RW).await.unwrap();
            let mut model = vec![0; LEN];
            let source = pattern(LEN, 5);
            let mut memory = filled(&a, &source).await;
            let cases =
                [(0, 0, 1), (3, 7, 0), (9, 100, 256), (1, 5, 257), (99_999, 3, 4096), (17, 1, LEN - 17)];
            for (at, from, len) in cases {
                lmr.write_from(at as u64, &memory, from as u64..(from + len) as u64).await.unwrap();
                model[at..at + len].copy_from_slice(&source[from..][..len]);
            }
            let mut got = vec![1; LEN];
            lmr.read(0, &mut got).await.unwrap();
            assert!(got == model, "{placement:?}");
            let mut mirror = source;
            for (at, into, len) in [(0, 9, 1), (3, 3, 0), (5, 100_000, 3000), (17, 1000, 290_000)] {
                lmr.read_to(at as u64, &mut memory, into..into + len).await.unwrap();
                mirror[into as usize..][..len as usize].copy_from_slice(&model[at..][..len as usize]);
            }
            assert!(content(&memory) == mirror, "{placement:?}");
            let (end, beyond) = (LEN as u64, LEN as u64 + 1);
            assert_eq!(lmr.read_to(0, &mut memory, 1..beyond).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.read_to(1, &mut memory, 0..end).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.write_from(1, &memory, 0..end).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.write_from(0, &memory, u64::MAX - 1..u64::MAX).await, Err(Error::OutOfBounds));
            lmr.clone().free().await.unwrap();
            assert_eq!(lmr.write_from(0, &memory, 0..end).await, Err(Error::Freed));
        }
    });
}

#[test]
fn a_list_is_one_work_request() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let fabric = c.fabric.clone();
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(2), 65_536, RW).await.unwrap();
        let data = pattern(40_000, 2);
        let mut memory = filled(&a, &data).await;
        // Four ranges fit the lists of this RNIC, the fifth does not.
        let ranges = [30_000..31_000, 0..1000, 5000..5500, 20_000..29_000, 7..8];
        for (count, posts) in [(4, 1), (5, 2)] {
            let before = fabric.posts();
            lmr.write_gathered(10, &memory, &ranges[..count]).await.unwrap();
            assert_eq!(fabric.posts() - before, posts);
        }
        let gathered: Vec<u8> =
            ranges.iter().flat_map(|r| &data[r.start as usize..r.end as usize]).copied().collect();
        let mut got = vec![0; gathered.len()];
        lmr.read(10, &mut got).await.unwrap();
        assert!(got == gathered);
        let news = pattern(11_501, 9);
        lmr.write(10, &news).await.unwrap();
        let before = fabric.posts();
        lmr.read_scattered(10, &mut memory, &ranges).await.unwrap();
        assert_eq!(fabric.posts() - before, 2);
        let (mut model, mut rest) = (data, &news[..]);
        for range in ranges {
            let (now, after) = rest.split_at((range.end - range.start) as usize);
            model[range.start as usize..range.end as usize].copy_from_slice(now);
            rest = after;
        }
        assert!(content(&memory) == model);
        let foreign = b.local_memory(8192).await.unwrap();
        assert!(matches!(lmr.write_from(0, &foreign, 0..8192).await, Err(Error::Refused(_))));
    });
}

/// The operations of a dropped future keep the memory until they have ended.
#[test]
fn what_is_given_up_keeps_the_memory() {
    for drops in [false, true] {
        let mut c = cluster(2);
        let a = c.lite(1);
        let (lmr, mut memory) = c.world.run(LIMIT, {
            let a = a.clone();
            async move {
                let lmr = a.alloc(NodeId(2), MIB, RW).await.unwrap();
                lmr.write(0, &pattern(MIB as usize, 3)).await.unwrap();
                (lmr, a.local_memory(MIB).await.unwrap())
            }
        });
        let host = c.nodes[0].0.clone();
        let free = || Platform::memory(&*host).stats().free;
        let had = free();
        let (from, to) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
        c.fabric.hold_between(from, to, true);
        let hasty = lmr.with_deadline(Duration::from_millis(1));
        let (memory, ended) = c.world.run(LIMIT, async move {
            let ended = hasty.read_to(0, &mut memory, 0..MIB).await;
            (memory, ended)
        });
        assert_eq!(ended, Err(Error::Deadline));
        if drops {
            drop(memory);
            c.world.run_for(Duration::from_millis(10));
            assert_eq!(free(), had, "the RNIC may still write to the memory");
            c.fabric.hold_between(from, to, false);
            c.world.run_for(Duration::from_millis(10));
            assert_eq!(free(), had + MIB);
            continue;
        }
        let refused = Err(Error::Refused("an operation that was given up still uses the memory".into()));
        let mut memory = memory;
        assert_eq!(memory.read(0, &mut [0]), refused);
        assert_eq!(memory.write(0, &[0]), refused);
        let (lmr, memory) = c.world.run(LIMIT, async move {
            let refused = Err(Error::Refused("an operation that was given up still uses the memory".into()));
            assert_eq!(lmr.read_to(0, &mut memory, 0..1).await, refused);
            assert_eq!(lmr.write_from(0, &memory, 0..1).await, refused);
            (lmr, memory)
        });
        c.fabric.hold_between(from, to, false);
        c.world.run(LIMIT, async move {
            memory.settled().await;
            let mut got = [0; 4096];
            memory.read(0, &mut got).unwrap();
            assert!(got[..] == pattern(4096, 3), "what was given up has happened");
            drop(lmr);
        });
    }
}

/// A write that is given up only reads the memory: the owner may read it, and must not change it.
#[test]
fn what_is_being_written_from_stays_as_it_is() {
    let mut c = cluster(2);
    let a = c.lite(1);
    let data = pattern(65_536, 4);
    let (lmr, mut memory) = c.world.run(LIMIT, {
        let (a, data) = (a.clone(), data.clone());
        async move { (a.alloc(NodeId(2), 65_536, RW).await.unwrap(), filled(&a, &data).await) }
    });
    let (from, to) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    c.fabric.hold_between(from, to, true);
    let hasty = lmr.with_deadline(Duration::from_millis(1));
    let (mut memory, ended) = c.world.run(LIMIT, async move {
        let ended = hasty.write_from(0, &memory, 0..65_536).await;
        assert!(matches!(memory.write(0, &[0]), Err(Error::Refused(_))));
        (memory, ended)
    });
    assert_eq!(ended, Err(Error::Unknown));
    assert!(content(&memory) == data);
    c.fabric.hold_between(from, to, false);
    c.world.run(LIMIT, async move {
        // The memory becomes a region once nothing uses it.
        memory.settled().await;
        memory.write(0, &[9]).unwrap();
        let mut got = vec![0; data.len()];
        lmr.read(0, &mut got).await.unwrap();
        assert!(got == data);
        let region = a.register_memory(memory, RW).await.unwrap();
        region.read(0, &mut got).await.unwrap();
        assert_eq!((got[0], &got[1..]), (9, &data[1..]));
    });
}

/// Pages become memory that can be a region, with their content, and return when the region is freed.
#[test]
fn pages_become_a_region() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        // The first calls make the connection.
        let mut free = None;
        for len in [1, 0, 4096, 5_000_001] {
            let mut pages = a.platform().memory().pages(len).unwrap();
            pages.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at * 7) as u8);
            let memory = a.own_pages(pages).await.unwrap();
            assert_eq!(memory.len(), len as u64);
            let lmr = a.register_memory(memory, Permissions::READ | Permissions::SHARE).await.unwrap();
            lmr.publish("table").await.unwrap();
            let there = b.map("table", Permissions::READ).await.unwrap();
            let mut got = vec![0; len];
            there.read(0, &mut got).await.unwrap();
            assert!(got.iter().zip(0u32..).all(|(byte, at)| *byte == (at * 7) as u8), "{len}");
            drop(there);
            lmr.free().await.unwrap();
            a.sleep(Duration::from_millis(100)).await;
            let now = a.platform().memory().stats().free;
            assert_eq!(*free.get_or_insert(now), now, "{len}");
        }
        let pages = a.platform().memory().pages(32 << 20).unwrap();
        assert!(matches!(a.own_pages(pages).await, Err(Error::NoMemory { .. })), "no room for a copy");
        assert_eq!(Some(a.platform().memory().stats().free), free);
    });
}
