//! Two to four nodes over the instant RNIC.

use futures_util::future::{join, join_all};
use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions, RpcOptions};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 64 << 20, &Config::default())
}

/// Serves function 7 on a node: replies with the request reversed.
async fn reverse(lite: Lite) -> Error {
    let server = lite.register(7, RpcOptions { max_request: 4 << 20, queue: 8 }).unwrap();
    loop {
        match server.receive().await {
            Ok(call) => {
                let reply: Vec<u8> = call.request().iter().rev().copied().collect();
                call.reply(&reply).await.unwrap();
            }
            Err(error) => return error,
        }
    }
}

#[test]
fn memory_of_any_size_and_place() {
    let mut c = cluster(2);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        for node in [NodeId(1), NodeId(2)] {
            let lmr = a.alloc(node, 3_000_001, RW).await.unwrap();
            let mut got = vec![1; 3_000_001];
            lmr.read(0, &mut got).await.unwrap();
            assert!(got.iter().all(|b| *b == 0), "new memory is zero");
            for (at, len) in [(0, 0), (3, 1), (17, 128), (100, 129), (5, 4096), (77, 65537), (1, 3_000_000)] {
                let data: Vec<u8> = (0..len).map(|i: usize| (i * 7 + at) as u8).collect();
                lmr.write(at as u64, &data).await.unwrap();
                let mut got = vec![0; len];
                lmr.read(at as u64, &mut got).await.unwrap();
                assert_eq!(got, data);
            }
            lmr.memset(10, 2_000_000, 0xab).await.unwrap();
            let mut got = vec![0; 3_000_001];
            lmr.read(0, &mut got).await.unwrap();
            assert!(got[10..2_000_010].iter().all(|b| *b == 0xab));
            assert_ne!(got[9], 0xab);
            assert_ne!(got[2_000_010], 0xab);
            assert_eq!(
                lmr.fetch_add(2_100_000, 5).await.unwrap(),
                u64::from_ne_bytes(got[2_100_000..2_100_008].try_into().unwrap())
            );
            lmr.write(64, &9u64.to_ne_bytes()).await.unwrap();
            assert_eq!(lmr.fetch_add(64, u64::MAX).await, Ok(9));
            assert_eq!(lmr.compare_swap(64, 9, 1).await, Ok(8));
            assert_eq!(lmr.compare_swap(64, 8, 1).await, Ok(8));
            assert_eq!(lmr.fetch_add(64, 0).await, Ok(1));
            assert_eq!(lmr.fetch_add(65, 0).await, Err(Error::Misaligned));
            assert_eq!(lmr.fetch_add(3_000_000, 0).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.read(3_000_000, &mut [0; 2]).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.write(u64::MAX, &[0; 2]).await, Err(Error::OutOfBounds));
            assert_eq!(lmr.memset(3_000_001, 1, 0).await, Err(Error::OutOfBounds));
            lmr.free().await.unwrap();
        }
    });
}

#[test]
fn calls_of_any_size() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let p = b.platform().clone();
        p.spawn("reverse", Box::pin(async move { drop(reverse(b).await) }));
        a.sleep(Duration::from_millis(1)).await;
        for len in [0, 1, 100, 4072, 4073, 30000, 33000, 2_000_000] {
            let request: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
            let mut reply = a.call(NodeId(2), 7, &request, len).await.unwrap();
            reply.reverse();
            assert_eq!(reply, request, "{len}");
        }
        // More than fits the ring and the slots.
        let calls = (0..1000u32).map(|i| {
            let a = a.clone();
            async move {
                let request = vec![i as u8; (i as usize * 37) % 9000];
                assert_eq!(a.call(NodeId(2), 7, &request, 9000).await.unwrap(), request);
            }
        });
        join_all(calls).await;
        assert_eq!(a.call(NodeId(2), 8, b"", 0).await, Err(Error::NoSuchFunction));
        assert_eq!(a.call(NodeId(1), 7, b"", 0).await, Err(Error::NoSuchFunction));
        assert_eq!(a.call(NodeId(2), 7, &vec![0; 5 << 20], 0).await, Err(Error::TooLarge { max: 4 << 20 }));
        assert_eq!(a.call(NodeId(9), 7, b"", 0).await, Err(Error::NoSuchNode));
    });
}

#[test]
fn names_permissions_and_free() {
    let mut c = cluster(3);
    let (a, b) = (c.lite(1), c.lite(2));
    let before = c.nodes[2].1.platform().memory().stats();
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(3), 10000, RW | Permissions::SHARE).await.unwrap();
        assert_eq!(b.map("x", RW).await.unwrap_err(), Error::NoSuchName);
        lmr.publish("x").await.unwrap();
        assert_eq!(lmr.publish("x").await, Err(Error::NameTaken));
        lmr.write(0, b"hello").await.unwrap();
        let there = b.map_wait("x", RW).await.unwrap();
        let reader = b.map("x", Permissions::READ).await.unwrap();
        assert_eq!(b.map("x", Permissions::ATOMIC).await.unwrap_err(), Error::Permission);
        assert_eq!(b.map("x", Permissions::ADMIN).await.unwrap_err(), Error::Permission);
        let mut got = [0; 5];
        reader.read(0, &mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        assert_eq!(reader.write(0, b"x").await, Err(Error::Permission));
        assert_eq!(reader.memset(0, 1, 1).await, Err(Error::Permission));
        assert_eq!(there.fetch_add(0, 1).await, Err(Error::Permission));
        assert_eq!(there.clone().free().await, Err(Error::Permission));
        there.write(0, b"world").await.unwrap();
        lmr.free().await.unwrap();
        assert_eq!(there.write(0, b"x").await, Err(Error::Freed));
        assert_eq!(reader.read(0, &mut got).await, Err(Error::Freed));
        assert_eq!(b.map("x", RW).await.unwrap_err(), Error::NoSuchName);
        let private = a.alloc(NodeId(2), 10, RW).await.unwrap();
        assert_eq!(private.publish("y").await, Err(Error::Permission));
        let big = a.alloc(NodeId(2), 1 << 40, RW).await.unwrap_err();
        assert!(matches!(big, Error::NoMemory { asked, .. } if asked == 1 << 40), "{big}");
    });
    c.world.run_for(Duration::from_secs(1));
    // The ring and slots of two connections are all that is left.
    let after = c.nodes[2].1.platform().memory().stats();
    assert_eq!(before.free - after.free, 2 * Config::default().peer_memory());
}

#[test]
fn dropped_handles_free_what_nobody_can_reach() {
    let mut c = cluster(2);
    let a = c.lite(1);
    c.world.run(LIMIT, {
        let a = a.clone();
        async move { drop(a.alloc(NodeId(2), 10, RW).await.unwrap()) }
    });
    c.world.run_for(Duration::from_secs(1));
    let before = c.nodes[1].1.platform().memory().stats().free;
    c.world.run(LIMIT, async move { drop(a.alloc(NodeId(2), 1 << 20, RW).await.unwrap()) });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(c.nodes[1].1.platform().memory().stats().free, before);
}

#[test]
fn barriers_open_together_or_fail_together() {
    let mut c = cluster(4);
    let lites: Vec<Lite> = (1..=4).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, async move {
        let group = [NodeId(2), NodeId(1), NodeId(4), NodeId(3)];
        for _ in 0..3 {
            let all = lites.iter().map(|l| l.barrier("b", &group));
            assert!(join_all(all).await.into_iter().all(|r| r.is_ok()));
        }
        // One gives up: all fail.
        let hasty = lites[3].with_deadline(Duration::from_millis(50));
        let mut all: Vec<_> = lites[..2].iter().map(|l| l.barrier("b", &group)).collect();
        all.push(hasty.barrier("b", &group));
        let results = join_all(all).await;
        assert_eq!(results, [Err(Error::Deadline), Err(Error::Deadline), Err(Error::Unknown)]);
        // A node outside of the group does not wait, and a part of the nodes is a group.
        for group in [&[][..], &[NodeId(2), NodeId(3)]] {
            assert!(matches!(lites[0].barrier("b", group).await, Err(Error::Refused(_))));
        }
        let part = [NodeId(4), NodeId(2)];
        let both = join_all([lites[1].barrier("part", &part), lites[3].barrier("part", &part)]);
        assert_eq!(both.await, [Ok(()), Ok(())]);
        // Two tasks of a node do not stand for two nodes; nor do two groups meet at a name.
        let other = [NodeId(2), NodeId(3)];
        let waits = [(1, &part), (1, &part), (1, &other), (3, &part)];
        let results = join_all(waits.map(|(l, group)| lites[l].barrier("part", group))).await;
        assert_eq!([&results[0], &results[3]], [&Ok(()), &Ok(())]);
        assert!(results[1..3].iter().all(|r| matches!(r, Err(Error::Refused(_)))), "{results:?}");
    });
}

#[test]
fn a_full_queue_makes_callers_wait() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let server = b.register(1, RpcOptions { max_request: 10, queue: 2 }).unwrap();
        let hasty = a.with_deadline(Duration::from_millis(20));
        let calls = (0..4u8).map(|i| {
            let (a, hasty) = (a.clone(), hasty.clone());
            async move {
                if i == 3 {
                    hasty.call(NodeId(2), 1, &[i], 1).await
                } else {
                    a.call(NodeId(2), 1, &[i], 1).await
                }
            }
        });
        let serve = async {
            b.sleep(Duration::from_millis(100)).await;
            for _ in 0..3 {
                let call = server.receive().await.unwrap();
                let request = call.request().to_vec();
                call.reply(&request).await.unwrap();
            }
        };
        let (results, ()) = join(join_all(calls), serve).await;
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 3, "{results:?}");
        let failed = results.iter().position(|r| r.is_err()).unwrap();
        // Refused until its deadline: it has not happened, and the others were served once each.
        assert_eq!((failed, results[failed].clone()), (3, Err(Error::Deadline)));
        // A handler that drops a call.
        let (result, ()) = join(a.call(NodeId(2), 1, b"", 0), async { drop(server.receive().await) }).await;
        assert!(matches!(result, Err(Error::Refused(_))));
        drop(server);
        assert_eq!(a.call(NodeId(2), 1, b"", 0).await, Err(Error::NoSuchFunction));
    });
}
