//! Regions of several pieces, over the instant RNIC.

use lite::testing::Cluster;
use lite::{Config, Error, Grantee, Lite, Lmr, NodeId, Permissions, Placement};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 64 << 20, &Config::default())
}

/// A region may take all memory of a node, in any runs; and all of it is free again afterwards.
#[test]
fn a_region_takes_all_that_is_free() {
    let mut c = cluster(2);
    let a = c.lite(1);
    let host = c.nodes[1].0.clone();
    c.world.run(LIMIT, async move {
        // Connected, so that rings and slots are allocated already.
        a.alloc(NodeId(2), 1, RW).await.unwrap().free().await.unwrap();
        // Every second page of a range is taken by others.
        let memory = platform::Platform::memory(&*host);
        let mut pages: Vec<_> = (0..401).map(|_| memory.lend(PAGE)).collect();
        pages.iter_mut().step_by(2).for_each(|page| drop(page.take()));
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
        // Up to the last write.
        assert!(
            got[..from - 2] == data[..from - 2] && got[to..free as usize - 9] == data[to..free as usize - 9]
        );
        lmr.write(3 * PAGE, &7u64.to_ne_bytes()).await.unwrap();
        assert_eq!(lmr.fetch_add(3 * PAGE, 1).await, Ok(7));
        lmr.free().await.unwrap();
        assert_eq!(memory.stats().free, free);
    });
}

/// Handles of regions of many lengths, with clones, and clones with other deadlines: each uses its own
/// region, each region is unmapped with its last handle, and shared data is shared and freed with the
/// handles.
#[test]
fn handles_share_what_they_have_in_common() {
    let mut c = cluster(2);
    let a = c.lite(1);
    let (lite, world) = (a.clone(), c.lite(2));
    c.world.run(LIMIT, async move {
        let count = |what| lite.audit().iter().find(|(kind, _)| *kind == what).map_or(0, |(_, n)| *n);
        let mut all = Vec::new();
        for i in 0..60u64 {
            let lmr = lite.alloc(NodeId(2), 8 * (i % 3 + 1), RW).await.unwrap();
            lmr.write(0, &i.to_ne_bytes()).await.unwrap();
            all.push(lmr);
        }
        assert_eq!((count("mappings"), count("terms of handles")), (60, 3), "as many as lengths");
        let clones: Vec<_> = all.iter().rev().cloned().collect();
        let mut patient: Vec<_> = all.iter().map(|l| l.with_deadline(Duration::from_secs(9))).collect();
        for kept in [&clones, &patient] {
            for lmr in kept {
                let mut got = [0; 8];
                lmr.read(0, &mut got).await.unwrap();
                let i = u64::from_ne_bytes(got);
                assert_eq!(lmr.len(), 8 * (i % 3 + 1));
                assert_eq!(lmr.write(lmr.len() - 7, &[0; 8]).await, Err(Error::OutOfBounds));
            }
        }
        drop(all);
        drop(clones);
        assert_eq!((count("mappings"), count("terms of handles")), (60, 0), "others have these terms");
        patient.truncate(20);
        lite.sleep(Duration::from_millis(100)).await;
        assert_eq!(count("mappings"), 20);
        drop(patient);
        lite.sleep(Duration::from_millis(100)).await;
        assert_eq!((count("mappings"), world.audit().iter().any(|(kind, _)| *kind == "regions")), (0, false));
    });
}

/// Returns the free bytes of each node.
fn free(c: &Cluster) -> Vec<u64> {
    c.nodes.iter().map(|(host, _)| platform::Platform::memory(&**host).stats().free).collect()
}

/// All are connected to all, so that rings and slots are allocated already.
fn connect(c: &mut Cluster) {
    let lites: Vec<Lite> = c.nodes.iter().map(|(_, lite)| lite.clone()).collect();
    c.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                lite.alloc(other.node_id(), 1, RW).await.unwrap().free().await.unwrap();
            }
        }
    });
}

/// Does random operations on a region and on a flat array, and compares them.
async fn as_an_array(lmr: &Lmr, seed: u64, steps: u32) {
    let len = lmr.len();
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below.max(1)
    };
    let mut model = vec![0u8; len as usize];
    lmr.read(0, &mut model).await.unwrap();
    for _ in 0..steps {
        let at = random(len);
        let n = random((len - at).min(40_000) + 1);
        let range = at as usize..(at + n) as usize;
        match random(4) {
            0 => {
                let data: Vec<u8> = (0..n).map(|i| (i * 7 + at) as u8).collect();
                lmr.write(at, &data).await.unwrap();
                model[range].copy_from_slice(&data);
            }
            1 => {
                lmr.memset(at, n, at as u8).await.unwrap();
                model[range].fill(at as u8);
            }
            2 if len >= 8 => {
                let at = random(len - 7) / 8 * 8;
                let place = &mut model[at as usize..at as usize + 8];
                let before = u64::from_ne_bytes(place.try_into().unwrap());
                assert_eq!(lmr.fetch_add(at, n).await, Ok(before));
                place.copy_from_slice(&before.wrapping_add(n).to_ne_bytes());
            }
            _ => {
                let mut got = vec![0; n as usize];
                lmr.read(at, &mut got).await.unwrap();
                assert!(got == model[range], "{at}+{n}");
            }
        }
    }
    let mut got = vec![0; len as usize];
    lmr.read(0, &mut got).await.unwrap();
    assert!(got == model);
}

#[test]
fn everywhere_a_region_is_a_flat_array() {
    let mut c = cluster(4);
    connect(&mut c);
    let before = free(&c);
    let a = c.lite(1);

    let striped =
        |ids: &[u16], stripe| Placement::Striped { nodes: ids.iter().copied().map(NodeId).collect(), stripe };
    let shares =
        |s: &[(u16, u64)]| Placement::Shares(s.iter().map(|(id, len)| (NodeId(*id), *len)).collect());
    let cases = [
        (Placement::Node(NodeId(3)), 100_000, vec![(3, 100_000)]),
        (Placement::Node(NodeId(3)), 0, vec![(3, 0)]),
        (striped(&[2, 1, 4], 4096), 100_001, vec![(2, 34_465), (1, 32_768), (4, 32_768)]),
        (striped(&[2, 3], 8), 1000, vec![(2, 504), (3, 496)]),
        (striped(&[2, 3, 4], 65_536), 65_537, vec![(2, 65_536), (3, 1)]),
        (shares(&[(4, 8), (1, 50_000), (2, 3)]), 50_011, vec![(4, 8), (1, 50_000), (2, 3)]),
    ];
    c.world.run(LIMIT, async move {
        for (i, (placement, len, expected)) in cases.into_iter().enumerate() {
            let lmr = a.alloc(placement.clone(), len, Permissions::all()).await.unwrap();
            let got: Vec<_> = lmr.shares().into_iter().map(|(node, len)| (node.0, len)).collect();
            assert_eq!(got, expected, "{placement:?}");
            assert_eq!(lmr.owner().0, expected[0].0);
            as_an_array(&lmr, i as u64, 100).await;
            // Another node that maps the region sees the same.
            lmr.publish("region").await.unwrap();
            as_an_array(&a.map("region", RW | Permissions::ATOMIC).await.unwrap(), 7, 30).await;
            lmr.free().await.unwrap();
        }
        let odd = a.alloc(striped(&[1], 7), 10, RW).await;
        assert!(matches!(odd, Err(Error::Refused(_))), "{odd:?}");
        let nobody = a.alloc(shares(&[(1, 8), (9, 8)]), 16, RW).await.unwrap_err();
        assert_eq!(nobody, Error::NoSuchNode);
        // One node of several has no room: nothing is taken anywhere.
        let big = a.alloc(shares(&[(1, 8), (2, 4096), (3, 1 << 30)]), 8 + 4096 + (1 << 30), RW).await;
        assert!(matches!(big, Err(Error::NoMemory { .. })), "{big:?}");
    });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(free(&c), before);
}

#[test]
fn anywhere_is_where_memory_is_free() {
    let mut c = cluster(3);
    connect(&mut c);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let most = 40 << 20;
        let big = a.alloc(NodeId(2), most, RW).await.unwrap();
        let other = a.alloc(NodeId(1), 20 << 20, RW).await.unwrap();
        a.sleep(Duration::from_millis(1)).await;
        let lmr = a.alloc(Placement::Anywhere, 30 << 20, RW).await.unwrap();
        assert_eq!(lmr.owner(), NodeId(3));
        a.sleep(Duration::from_millis(1)).await;
        // More than any node has: in shares.
        let spread = a.alloc(Placement::Anywhere, 60 << 20, RW).await.unwrap();
        assert!(spread.shares().len() >= 2, "{:?}", spread.shares());
        spread.write((60 << 20) - 3, b"end").await.unwrap();
        let more = a.alloc(Placement::Anywhere, 1 << 40, RW).await.unwrap_err();
        assert!(matches!(more, Error::NoMemory { asked, .. } if asked == 1 << 40), "{more}");
        for lmr in [big, other, lmr, spread] {
            lmr.free().await.unwrap();
        }
        // Freed memory is reported as well.
        a.sleep(Duration::from_millis(1)).await;
        a.alloc(Placement::Anywhere, 50 << 20, RW).await.unwrap();
    });
}

#[test]
fn memory_of_an_applications_own_becomes_a_region() {
    let mut c = cluster(2);
    connect(&mut c);
    let before = free(&c);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let mut memory = a.local_memory(10_000).await.unwrap();
        memory.write(5000, b"mine").unwrap();
        assert_eq!(memory.write(9_999, b"ab"), Err(Error::OutOfBounds));
        let region = a.register_memory(memory, RW | Permissions::SHARE).await.unwrap();
        region.publish("own").await.unwrap();
        let there = b.map("own", RW).await.unwrap();
        let mut got = [0; 4];
        there.read(5000, &mut got).await.unwrap();
        assert_eq!(&got, b"mine");
        there.write(5000, b"ours").await.unwrap();
        region.read(5000, &mut got).await.unwrap();
        assert_eq!((&got, region.owner(), region.len()), (b"ours", NodeId(1), 10_000));
        let foreign = b.local_memory(10).await.unwrap();
        assert!(matches!(a.register_memory(foreign, RW).await, Err(Error::Refused(_))));
        region.free().await.unwrap();
        assert_eq!(there.read(0, &mut got).await, Err(Error::Freed));
        drop(a.local_memory(1 << 20).await.unwrap());
    });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(free(&c), before);
}

#[test]
fn rights_are_granted_and_revoked_at_run_time() {
    let mut c = cluster(3);
    let (a, b, d) = (c.lite(1), c.lite(2), c.lite(3));
    c.world.run(LIMIT, async move {
        let (read, write, share) = (Permissions::READ, Permissions::WRITE, Permissions::SHARE);
        let lmr = a.alloc(NodeId(3), 4096, read | share).await.unwrap();
        lmr.publish("r").await.unwrap();
        assert_eq!(b.map("r", RW).await.unwrap_err(), Error::Permission);
        lmr.grant(NodeId(2), write | Permissions::ATOMIC).await.unwrap();
        let writer = b.map("r", RW | Permissions::ATOMIC).await.unwrap();
        assert_eq!(d.map("r", RW).await.unwrap_err(), Error::Permission);
        let reader = d.map("r", read).await.unwrap();
        writer.write(0, b"one").await.unwrap();
        writer.memset(10, 5, 1).await.unwrap();
        assert_eq!(reader.grant(Grantee::Everyone, write).await, Err(Error::Permission));
        // Revoked from one node.
        lmr.revoke(NodeId(2), write | Permissions::ATOMIC).await.unwrap();
        assert_eq!(writer.write(0, b"two").await, Err(Error::Permission));
        assert_eq!(writer.memset(0, 1, 1).await, Err(Error::Permission));
        assert_eq!(writer.fetch_add(0, 1).await, Err(Error::Permission));
        assert_eq!(writer.permissions(), read);
        let mut got = [0; 3];
        writer.read(0, &mut got).await.unwrap();
        assert_eq!(&got, b"one");
        assert_eq!(b.map("r", RW).await.unwrap_err(), Error::Permission);
        // Revoked from all nodes, but never from the master.
        lmr.revoke(Grantee::Everyone, read).await.unwrap();
        assert_eq!(reader.read(0, &mut got).await, Err(Error::Permission));
        assert_eq!(writer.read(0, &mut got).await, Err(Error::Permission));
        lmr.read(0, &mut got).await.unwrap();
        // A node without SHARE cannot map, and a region that grants SHARE to no node cannot be published.
        lmr.grant(Grantee::Everyone, RW).await.unwrap();
        lmr.revoke(NodeId(3), share).await.unwrap();
        assert_eq!(d.map("r", read).await.unwrap_err(), Error::Permission);
        drop(b.map("r", RW).await.unwrap());
        lmr.revoke(Grantee::Everyone, share).await.unwrap();
        assert_eq!(lmr.publish("s").await, Err(Error::Permission));
        lmr.free().await.unwrap();
    });
}

/// Operations in flight when a right is revoked end before the revocation returns, and none passes after
/// it.
#[test]
fn revoking_waits_for_what_is_under_way() {
    let mut c = cluster(3);
    connect(&mut c);
    let (a, b) = (c.lite(1), c.lite(2));
    let (lmr, writer) = c.world.run(LIMIT, {
        let a = a.clone();
        async move {
            let lmr = a.alloc(NodeId(3), 1 << 20, RW | Permissions::SHARE).await.unwrap();
            lmr.publish("r").await.unwrap();
            (lmr, b.map("r", RW).await.unwrap())
        }
    });
    // Posted, and abandoned: it may still arrive.
    c.fabric.hold(true);
    let hasty = writer.with_deadline(Duration::from_millis(1));
    let result = c.world.run(LIMIT, async move { hasty.write(0, &[1; 300_000]).await });
    assert_eq!(result, Err(Error::Unknown));
    let revoked = Arc::new(AtomicU64::new(0));
    let (done, master) = (revoked.clone(), lmr.clone());
    let task = async move {
        master.revoke(NodeId(2), Permissions::WRITE).await.unwrap();
        done.store(1, Ordering::SeqCst);
    };
    a.platform().spawn("revokes", Box::pin(task));
    c.world.run_for(Duration::from_millis(50));
    assert_eq!(revoked.load(Ordering::SeqCst), 0);
    c.fabric.hold(false);
    let end = c.world.now() + LIMIT;
    assert!(c.world.run_until(end, || revoked.load(Ordering::SeqCst) == 1));
    c.world.run(LIMIT, async move {
        lmr.memset(0, 1 << 20, 9).await.unwrap();
        assert_eq!(writer.write(0, &[2; 300_000]).await, Err(Error::Permission));
        a.sleep(Duration::from_secs(1)).await;
        let mut got = vec![0; 1 << 20];
        lmr.read(0, &mut got).await.unwrap();
        assert!(got.iter().all(|b| *b == 9), "a write landed after the revocation");
    });
}

#[test]
fn a_secret_is_checked_at_the_owner() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(1), 64, RW | Permissions::SHARE).await.unwrap();
        lmr.set_secret(b"sesame").await.unwrap();
        lmr.publish("cave").await.unwrap();
        assert_eq!(b.map("cave", RW).await.unwrap_err(), Error::Permission);
        for wrong in [&b""[..], b"sesam", b"sesamf", b"sesames"] {
            assert_eq!(b.map_secret("cave", RW, wrong).await.unwrap_err(), Error::Permission);
        }
        let there = b.map_secret("cave", RW, b"sesame").await.unwrap();
        // The change applies to later mappings.
        lmr.set_secret(b"").await.unwrap();
        drop(b.map("cave", RW).await.unwrap());
        there.write(0, b"x").await.unwrap();
        assert_eq!(lmr.set_secret(&[0; 257]).await, Err(Error::TooLarge { max: 256 }));
        assert_eq!(there.set_secret(b"").await, Err(Error::Permission));
    });
}

#[test]
fn whoever_has_admin_publishes_hands_over_and_frees() {
    let mut c = cluster(3);
    connect(&mut c);
    let before = free(&c);
    let (a, b, d) = (c.lite(1), c.lite(2), c.lite(3));
    let (lmr, there) = c.world.run(LIMIT, {
        let (a, b, d) = (a.clone(), b.clone(), d.clone());
        async move {
            let all = Permissions::all();
            let lmr = a.alloc(NodeId(3), 64, RW | Permissions::SHARE).await.unwrap();
            lmr.publish("one").await.unwrap();
            assert_eq!(b.map("one", all).await.unwrap_err(), Error::Permission);
            lmr.grant(NodeId(2), all).await.unwrap();
            let admin = b.map("one", all).await.unwrap();
            admin.publish("two").await.unwrap();
            assert_eq!(admin.publish("one").await, Err(Error::NameTaken));
            assert_eq!(d.unpublish("one").await, Err(Error::Permission));
            b.unpublish("one").await.unwrap();
            assert_eq!(d.map("one", RW).await.unwrap_err(), Error::NoSuchName);
            assert_eq!(b.unpublish("one").await, Err(Error::NoSuchName));
            let user = d.map("two", RW).await.unwrap();
            admin.free().await.unwrap();
            assert_eq!(user.read(0, &mut [0]).await, Err(Error::Freed));
            assert_eq!(lmr.read(0, &mut [0]).await, Err(Error::Freed));
            assert_eq!(d.map("two", RW).await.unwrap_err(), Error::NoSuchName);
            drop((lmr, user));
            // Without names and handles there is nothing left.
            let lmr = a.alloc(NodeId(3), 1 << 20, RW | Permissions::SHARE).await.unwrap();
            lmr.publish("last").await.unwrap();
            drop(lmr);
            a.sleep(Duration::from_millis(10)).await;
            drop(b.map("last", RW).await.unwrap());
            a.unpublish("last").await.unwrap();
            a.sleep(Duration::from_millis(10)).await;
            assert_eq!(b.map("last", RW).await.unwrap_err(), Error::NoSuchName);
            // The new master takes over.
            let lmr = a.alloc(NodeId(3), 64, RW | Permissions::SHARE).await.unwrap();
            lmr.publish("handed").await.unwrap();
            assert_eq!(lmr.hand_over(NodeId(9)).await, Err(Error::NoSuchNode));
            lmr.hand_over(NodeId(2)).await.unwrap();
            let there = b.map("handed", all).await.unwrap();
            there.revoke(NodeId(1), Permissions::ADMIN | Permissions::WRITE).await.unwrap();
            assert_eq!(lmr.write(0, b"x").await, Err(Error::Permission));
            assert_eq!(lmr.clone().free().await, Err(Error::Permission));
            lmr.read(0, &mut [0]).await.unwrap();
            (lmr, there)
        }
    });
    // The former master leaves, and the region stays.
    c.nodes[0].0.kill();
    c.hub.declare_dead(NodeId(1));
    c.world.run_for(Duration::from_millis(10));
    c.world.run(LIMIT, async move {
        there.write(0, b"still here").await.unwrap();
        there.free().await.unwrap();
    });
    drop(lmr);
    c.world.run_for(Duration::from_secs(1));
    // The connections to the dead node have ended with it.
    assert!(free(&c)[1..].iter().zip(&before[1..]).all(|(now, then)| now >= then));
}

/// Some nodes count in a region and write to it while it is moved: nothing is lost, and no operation fails.
#[test]
fn a_region_moves_while_it_is_in_use() {
    for seed in 1..6 {
        // Every second region moves in many windows.
        let move_window = if seed % 2 == 0 { 4096 + seed * 8 } else { 4 << 20 };
        let mut c = Cluster::new(seed, 4, 64 << 20, &Config { move_window, ..Config::default() });
        connect(&mut c);
        let before = free(&c);
        let (done, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let a = c.lite(1);
        let lmr = c.world.run(LIMIT, async move {
            let lmr = a.alloc(NodeId(2), 400_000, Permissions::all()).await.unwrap();
            lmr.publish("moves").await.unwrap();
            lmr
        });
        for i in 2..=4u64 {
            let (lite, done, sum) = (c.lite(i as usize), done.clone(), sum.clone());
            let task = async move {
                let lmr = lite.map("moves", RW | Permissions::ATOMIC).await.unwrap();
                let mut round = 0u64;
                while done.load(Ordering::SeqCst) == 0 {
                    round += 1;
                    lmr.fetch_add(0, 1).await.unwrap();
                    sum.fetch_add(1, Ordering::SeqCst);
                    let (at, data) = ((i - 1) * 90_000, vec![(round * i) as u8; 80_000]);
                    lmr.write(at, &data).await.unwrap();
                    let mut got = vec![0; data.len()];
                    lmr.read(at, &mut got).await.unwrap();
                    assert!(got == data, "round {round} of node {i}");
                    lmr.memset(at, 100, 1).await.unwrap();
                    lite.sleep(Duration::from_micros(7)).await;
                }
                done.fetch_add(1, Ordering::SeqCst);
            };
            c.nodes[i as usize - 1].1.platform().spawn("works", Box::pin(task));
        }
        let (late, nodes) = (c.lite(3), vec![NodeId(4), NodeId(1), NodeId(3)]);
        let mover = lmr.clone();
        c.world.run(LIMIT, async move {
            for placement in [
                Placement::Node(NodeId(3)),
                Placement::Striped { nodes, stripe: 4096 },
                Placement::Node(NodeId(1)),
                Placement::Shares(vec![(NodeId(2), 200_000), (NodeId(4), 200_000)]),
                Placement::Anywhere,
            ] {
                late.sleep(Duration::from_micros(300)).await;
                // Another node maps it in the middle.
                let mapper = late.clone();
                let map = async move { drop(mapper.map("moves", RW).await.unwrap()) };
                late.platform().spawn("maps", Box::pin(map));
                mover.move_to(placement.clone()).await.unwrap();
                if let Placement::Node(node) = placement {
                    assert_eq!(mover.shares(), [(node, 400_000)]);
                }
            }
            assert_eq!(mover.owner(), NodeId(2));
            // There is no room on that node, so the region stays where it is.
            let before = mover.shares();
            let big = Placement::Shares(vec![(NodeId(9), 400_000)]);
            assert_eq!(mover.move_to(big).await, Err(Error::NoSuchNode));
            assert_eq!(mover.shares(), before);
        });
        done.store(1, Ordering::SeqCst);
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || done.load(Ordering::SeqCst) == 4), "{done:?}");
        c.world.run(LIMIT, async move {
            let counted = lmr.fetch_add(0, 0).await.unwrap();
            assert_eq!(counted, sum.load(Ordering::SeqCst), "seed {seed}");
            assert!(counted > 20);
            lmr.free().await.unwrap();
        });
        c.world.run_for(Duration::from_secs(1));
        assert_eq!(free(&c), before, "seed {seed}");
    }
}
