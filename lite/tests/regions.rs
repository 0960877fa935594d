//! Regions of several pieces, over the instant RNIC.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use lite::testing::Cluster;
use lite::{Config, Error, NodeId, Permissions};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 64 << 20, &Config::default())
}

/// A region may take all memory of a node, whatever runs it lies in; and gives it all back.
#[test]
fn a_region_takes_all_that_is_free() {
    let mut c = cluster(2);
    let a = c.lite(1);
    let host = c.nodes[1].0.clone();
    c.world.run(LIMIT, async move {
        // Connected, so that rings and slots are taken already.
        a.alloc(NodeId(2), 1, RW).await.unwrap().free().await.unwrap();
        // Every second page of a stretch is taken by others.
        let memory = platform::Platform::memory(&*host);
        let pages: Vec<_> = (0..401).map(|_| memory.alloc(PAGE).unwrap()).collect();
        for page in pages.iter().step_by(2) {
            memory.free(*page, PAGE);
        }
        let free = memory.stats().free;
        let big = a.alloc(NodeId(2), free + 1, RW).await.unwrap_err();
        assert_eq!(big, Error::NoMemory { asked: free + 1, free });
        assert_eq!(memory.stats().free, free, "what was refused takes nothing");
        let lmr = a.alloc(NodeId(2), free, RW | Permissions::ATOMIC).await.unwrap();
        assert_eq!(memory.stats().free, 0);
        let data: Vec<u8> = (0..free).map(|i| (i / PAGE * 31 + i) as u8).collect();
        let mut got = vec![1; free as usize];
        lmr.read(0, &mut got).await.unwrap();
        assert!(got.iter().all(|b| *b == 0), "new memory is zero");
        lmr.write(0, &data).await.unwrap();
        lmr.read(0, &mut got).await.unwrap();
        assert!(got == data, "over all borders");
        // Across several borders, and from within a piece.
        for (at, len) in [(PAGE - 3, 7), (5 * PAGE - 1, 3 * PAGE as usize), (free - 9, 9), (free, 0)] {
            let data: Vec<u8> = (0..len).map(|i| (i * 13 + 5) as u8).collect();
            lmr.write(at, &data).await.unwrap();
            let mut got = vec![0; len];
            lmr.read(at, &mut got).await.unwrap();
            assert_eq!(got, data, "{at}");
        }
        assert_eq!(lmr.write(free - 9, &[0; 10]).await, Err(Error::OutOfBounds));
        lmr.memset(PAGE - 1, 9 * PAGE, 0x77).await.unwrap();
        lmr.read(0, &mut got).await.unwrap();
        let (from, to) = (PAGE as usize - 1, 10 * PAGE as usize - 1);
        assert!(got[from..to].iter().all(|b| *b == 0x77));
        // Up to what was written last.
        assert!(
            got[..from - 2] == data[..from - 2] && got[to..free as usize - 9] == data[to..free as usize - 9]
        );
        lmr.write(3 * PAGE, &7u64.to_ne_bytes()).await.unwrap();
        assert_eq!(lmr.fetch_add(3 * PAGE, 1).await, Ok(7));
        lmr.free().await.unwrap();
        assert_eq!(memory.stats().free, free);
    });
}
