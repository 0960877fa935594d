//! LITE over the driver: a cluster in one process under virtual time, with two nodes on emulated cards and
//! one on the software RNIC, on one wire.

use crate::common::lite::{Cluster, cluster};
use connectx3::device::cost::{Costs, Parameters};
use lite::{Error, Lite, NodeId, Permissions, RpcOptions};
use std::sync::Arc;
use std::time::Duration;
use verbs::Rnic;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: u64 = 64 << 20;

/// Serves function 7, which replies with the request reversed.
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

/// Uses memory, atomics and calls from one node to another.
async fn use_each_other(a: Lite, b: Lite, to: NodeId) {
    let lmr = a.alloc(to, 3_000_001, RW | Permissions::SHARE).await.unwrap();
    for (at, len) in [(0, 0), (3, 1), (17, 128), (100, 129), (5, 4096), (77, 65537), (1, 3_000_000)] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i * 7 + at) as u8).collect();
        lmr.write(at as u64, &data).await.unwrap();
        let mut got = vec![0; len];
        lmr.read(at as u64, &mut got).await.unwrap();
        assert_eq!(got, data, "{at} {len}");
    }
    lmr.write(64, &9u64.to_ne_bytes()).await.unwrap();
    assert_eq!(lmr.fetch_add(64, u64::MAX).await, Ok(9));
    assert_eq!(lmr.compare_swap(64, 9, 1).await, Ok(8));
    assert_eq!(lmr.compare_swap(64, 8, 1).await, Ok(8));
    assert_eq!(lmr.fetch_add(64, 0).await, Ok(1));
    lmr.publish("shared").await.unwrap();
    let there = b.map_wait("shared", RW).await.unwrap();
    there.write(1000, b"from the other side").await.unwrap();
    let mut got = [0; 19];
    lmr.read(1000, &mut got).await.unwrap();
    assert_eq!(&got, b"from the other side");
    lmr.free().await.unwrap();
    assert_eq!(there.read(0, &mut got).await, Err(Error::Freed));
    for len in [0, 1, 100, 4072, 30_000, 500_000] {
        let request: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
        let mut reply = a.call(to, 7, &request, len).await.unwrap();
        reply.reverse();
        assert_eq!(reply, request, "{len}");
    }
}

fn run(profiles: &[&str], with_soft: bool, loss: u32) {
    let Cluster { mut world, nodes, .. } = cluster(profiles, with_soft, loss, MEMORY);
    let nodes: Vec<Lite> = nodes.into_iter().map(|(_, lite)| lite).collect();
    let ids: Vec<_> = (1..).map(NodeId).take(nodes.len()).collect();
    for lite in &nodes {
        let lite = lite.clone();
        lite.platform().clone().spawn("reverse", Box::pin(async move { drop(reverse(lite).await) }));
    }
    world.run_for(Duration::from_millis(1));
    for (a, _) in nodes.iter().zip(&ids) {
        for (b, to) in nodes.iter().zip(&ids) {
            let (a, b, to) = (a.clone(), b.clone(), *to);
            world.run(LIMIT, use_each_other(a, b, to));
        }
    }
}

#[test]
fn two_nodes_on_cards() {
    run(&["pro", "pro"], false, 0);
}

#[test]
fn a_card_with_all_it_has_one_with_little_and_a_node_without() {
    run(&["blueflame", "large-entries"], true, 0);
}

#[test]
fn by_the_first_roce_and_with_loss() {
    run(&["cx3", "cx3"], false, 5);
}

#[test]
fn a_virtual_function_a_physical_one_and_a_node_without_by_the_first_roce() {
    run(&["vf", "cx3"], true, 0);
}

#[test]
fn by_lid_on_infiniband() {
    run(&["ib", "ib"], false, 0);
    run(&["ib", "ib", "ib"], false, 5);
}

/// A card fails while the nodes are connected, on one node and then on the other. LITE connects again over
/// the restarted card, with the same key, and continues.
#[test]
fn lite_goes_on_over_a_card_that_was_reset() {
    let Cluster { mut world, nodes, cards } = cluster(&["pro", "pro"], false, 0, MEMORY);
    let nodes: Vec<Lite> = nodes.into_iter().map(|(_, lite)| lite).collect();
    let [a, b] = &nodes[..] else { panic!("two nodes") };
    for lite in &nodes {
        let lite = lite.clone();
        lite.platform().clone().spawn("reverse", Box::pin(async move { drop(reverse(lite).await) }));
    }
    world.run_for(Duration::from_millis(1));
    world.run(LIMIT, use_each_other(a.clone(), b.clone(), NodeId(2)));
    for (machine, driver) in &cards {
        machine.fail_until_reset(0xdead);
        // Until the driver checks the card's health.
        let lost = world.run(LIMIT, {
            let a = a.clone();
            async move {
                let mut lost = 0;
                let until = a.platform().now() + Duration::from_secs(12);
                while a.platform().now() < until {
                    if a.call(NodeId(2), 7, b"going on?", 9).await.is_err() {
                        lost += 1;
                    }
                    a.sleep(Duration::from_millis(20)).await;
                }
                lost
            }
        });
        let mut resets = 0;
        driver.counters(&mut |(name, count)| resets += if name == "card_resets" { count } else { 0 });
        println!("{lost} calls were lost");
        assert_eq!(resets, 1);
        for (from, to, id) in [(a, b, NodeId(2)), (b, a, NodeId(1))] {
            world.run(LIMIT, use_each_other(from.clone(), to.clone(), id));
        }
    }
}

/// The card's key lookups for LITE do not grow with the memory or regions in use.
#[test]
fn the_key_over_all_memory_has_a_handful_of_pages_to_look_up() {
    const BYTES: u64 = 40 << 20;
    const STEP: u64 = 16 << 10;
    let Cluster { mut world, nodes, cards } = cluster(&["pro", "pro"], false, 0, MEMORY);
    let costs = Arc::new(Costs::new(Parameters::default()));
    cards[1].0.card.lock().unwrap().set_costs(costs.clone());
    let lite = nodes[0].1.clone();
    world.run(LIMIT, async move {
        let lmr = lite.alloc(NodeId(2), BYTES, RW).await.unwrap();
        for at in (0..BYTES).step_by(STEP as usize) {
            lmr.write(at, &[7; 64]).await.unwrap();
        }
    });
    let pages = costs.account().mtt;
    assert!(pages.hits + pages.misses >= BYTES / STEP, "the writes were looked up: {pages:?}");
    // The machine's memory is one page of 64 MiB. The other lookups are for queues, in pages of 4 KiB.
    assert!(pages.misses <= 64, "{pages:?}");
}
