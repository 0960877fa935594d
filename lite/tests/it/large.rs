//! Regions of more memory than a test's machine has, over memory that exists once it is written.

use lite::testing::{Cluster, Sparse, SparseHost};
use lite::{Config, Error, Lite, NodeId, Permissions, Placement};
use platform::{IoAddr, Memory, MemoryStats};
use std::sync::Arc;
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const GIB: u64 = 1 << 30;
const STEP: u64 = 16 << 20;

/// Returns node 1 with little memory and node 2 with 200 GiB from a high address.
fn cluster() -> (Cluster, Arc<SparseHost>) {
    let mut c = Cluster::new(1, 1, 16 << 20, &Config::default());
    let host = c.world.host(IoAddr(2 << 32), 4096);
    let large = SparseHost::new(host.clone(), Sparse::new(IoAddr(1 << 40), 200 * GIB));
    c.join_as(2, &host, large.clone(), &Config::default());
    c.world.run_for(Duration::from_millis(1));
    // Connected, so that rings and slots are allocated already.
    let a = c.lite(1);
    c.world.run(LIMIT, async move { a.alloc(NodeId(2), 1, RW).await.unwrap().free().await.unwrap() });
    (c, large)
}

fn stats(host: &SparseHost) -> MemoryStats {
    host.sparse().stats()
}

/// Writes a word at each of some offsets, then reads all of them.
async fn mark(lite: &Lite, placement: Placement, len: u64) {
    let lmr = lite.alloc(placement, len, RW).await.unwrap();
    assert_eq!(lmr.shares().iter().map(|(_, len)| len).sum::<u64>(), len);
    let places = [0, STEP - 4, len / 2, 64 * GIB - 4, 65 * GIB, len - 8].map(|at| at.min(len - 8));
    for at in places {
        lmr.write(at, &at.to_le_bytes()).await.unwrap();
    }
    for at in places {
        let mut word = [0; 8];
        lmr.read(at, &mut word).await.unwrap();
        assert_eq!(u64::from_le_bytes(word), at);
    }
    assert_eq!(lmr.read(len - 7, &mut [0; 8]).await, Err(Error::OutOfBounds));
    lmr.free().await.unwrap();
}

/// Allocated by another node, by the node itself, and as memory of its own that becomes a region.
#[test]
fn a_share_of_a_hundred_gigabytes_is_had() {
    let (mut c, large) = cluster();
    let before = stats(&large);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        mark(&a, NodeId(2).into(), 70_000_000_000).await;
        mark(&b, NodeId(2).into(), 100_000_000_000).await;
        mark(&a, Placement::Shares(vec![(NodeId(1), 8), (NodeId(2), 100_000_000_000)]), 100_000_000_008)
            .await;
        // Memory that other nodes hold for a region is freed after the region.
        b.sleep(Duration::from_millis(1)).await;
        let mut memory = b.local_memory(150 * GIB).await.unwrap();
        memory.write(149 * GIB, b"far away").unwrap();
        let lmr = b.register_memory(memory, RW).await.unwrap();
        let mut got = [0; 8];
        lmr.read(149 * GIB, &mut got).await.unwrap();
        assert_eq!(&got, b"far away");
        lmr.free().await.unwrap();
        let free = before.free;
        let more = a.alloc(NodeId(2), free + 1, RW).await.unwrap_err();
        assert_eq!(more, Error::NoMemory { asked: free + 1, free });
        mark(&a, NodeId(2).into(), free).await;
    });
    assert_eq!(stats(&large), before, "all is given back");
    assert!(large.sparse().written() < 8 << 20, "{} bytes were written", large.sparse().written());
}

/// Memory in too many pieces: the free memory that the error reports can be had.
#[test]
fn a_refusal_says_how_much_can_be_had() {
    let (mut c, large) = cluster();
    let memory = large.sparse();
    // A page that is not free follows each piece.
    let mut fences = Vec::new();
    let mut holes = Vec::new();
    while let Some(hole) = memory.lend(STEP) {
        holes.push(hole);
        fences.extend(memory.lend(4096));
    }
    assert!(holes.len() > 8000);
    drop(holes);
    let before = stats(&large);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        for lite in [&a, &b] {
            let asked = 70_000_000_000;
            let refused = lite.alloc(NodeId(2), asked, RW).await.unwrap_err();
            let Error::NoMemory { asked: said, free } = refused else { panic!("{refused:?}") };
            assert_eq!(said, asked);
            assert!(free < asked, "{free} bytes can be had, and {asked} cannot");
            assert_eq!(free, 4096 * STEP);
            mark(lite, NodeId(2).into(), free).await;
        }
        // Two shares can be had.
        let half = 35_000_000_000;
        mark(&a, Placement::Shares(vec![(NodeId(2), half), (NodeId(2), half)]), 2 * half).await;
    });
    assert_eq!(stats(&large), before, "what was refused takes nothing");
}

/// A region of several nodes may not have more pieces than its users accept.
#[test]
fn a_region_in_too_many_pieces_is_refused_with_what_can_be_had() {
    let (mut c, large) = cluster();
    let memory = large.sparse();
    let mut pages: Vec<_> = (0..160_000).map(|_| memory.lend(4096)).collect();
    // The rest in one run, so that single pages are left.
    let rest = memory.largest_free();
    let rest = memory.lend(rest).unwrap();
    pages.iter_mut().step_by(2).for_each(|page| drop(page.take()));
    let before = stats(&large);
    let a = c.lite(1);
    let share = 4000 * 4096;
    let shares = move |count: u64| Placement::Shares(vec![(NodeId(2), share); count as usize]);
    c.world.run(LIMIT, async move {
        let asked = 17 * share;
        let refused = a.alloc(shares(17), asked, RW).await.unwrap_err();
        assert_eq!(refused, Error::NoMemory { asked, free: 16 * share });
        mark(&a, shares(16), 16 * share).await;
    });
    assert_eq!(stats(&large), before);
    drop((rest, pages));
}
