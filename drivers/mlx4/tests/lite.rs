//! LITE over the driver: a cluster in one process under virtual time, two nodes on emulated cards and one on the software
//! RNIC, on one wire.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::Machine;
use common::soft::{Soft, SoftWire};
use common::wire::{Station, exchange_lossy};
use connectx3::device::Profile;
use lite::testing::{Device, Host, Hub, Poller, World};
use lite::{Config, Error, Lite, NodeId, Permissions, RpcOptions};
use mlx4::Config as CardConfig;
use platform::{Instant, IoAddr, Platform};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{Gid, MacAddr, Rnic};

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: u64 = 64 << 20;

/// Everything between the nodes, and the cards themselves.
struct Wire {
    machines: Vec<Arc<Machine>>,
    soft: Option<Soft>,
    /// Of 1000 frames so many are lost.
    loss: u32,
    chance: Mutex<u32>,
}

impl Device for Wire {
    fn poll(&self, _: Instant) -> bool {
        let writes = || self.machines.iter().map(|m| m.bus.writes.load(Ordering::Relaxed)).sum::<u64>();
        let before = writes();
        let soft = self.soft.as_ref().map(SoftWire);
        let mut stations: Vec<&dyn Station> = self.machines.iter().map(|m| m as &dyn Station).collect();
        stations.extend(soft.as_ref().map(|soft| soft as &dyn Station));
        let frames = exchange_lossy(&stations, |_| {
            let mut chance = self.chance.lock().unwrap();
            *chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*chance >> 8) % 1000 < self.loss
        });
        frames > 0 || writes() != before
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadline = |machine: &Arc<Machine>| {
            let at = machine.card.lock().unwrap().next_deadline()?;
            Some(Instant::from_nanos(at.as_nanos().saturating_sub(machine.waited().as_nanos() as u64)))
        };
        self.machines.iter().filter_map(deadline).min()
    }
}

/// A cluster whose first nodes have cards of the profiles; the last has none.
fn cluster(profiles: &[&str], with_soft: bool, loss: u32) -> (World, Vec<Lite>) {
    let mut world = World::new(1);
    let hub = Hub::new();
    let (mut machines, mut nodes, mut soft) = (Vec::new(), Vec::new(), None);
    let mut join = |world: &mut World, host: Arc<Host>, rnic: Arc<dyn Rnic>| {
        let (link, welcome) = hub.join(&*rnic);
        let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, Config::default()).unwrap();
        world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
        nodes.push(lite);
    };
    let gid = |number| Gid::from_ipv4([10, 9, 0, number]);
    for (number, profile) in (1..).zip(profiles) {
        let host = world.host(IoAddr(u64::from(number) << 32), MEMORY);
        let profile = Profile::named(profile, MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        let clock = host.clone();
        let machine = Machine::with_clock(profile, host.arena(), Box::new(move || clock.now()));
        let driver = machine.start(&CardConfig::default()).unwrap();
        driver.set_gid(gid(number)).unwrap();
        machines.push(machine);
        join(&mut world, host, Arc::new(driver));
    }
    if with_soft {
        let number = profiles.len() as u8 + 1;
        let host = world.host(IoAddr(u64::from(number) << 32), MEMORY);
        let software = Soft::new(number, gid(number), host.arena());
        join(&mut world, host, software.rnic.clone());
        soft = Some(software);
    }
    world.attach_free(Arc::new(Wire { machines, soft, loss, chance: Mutex::new(1) }));
    world.run_for(Duration::from_millis(1));
    (world, nodes)
}

/// Serves function 7: replies with the request reversed.
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

/// Memory, atomics and calls from one node to another.
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
    let (mut world, nodes) = cluster(profiles, with_soft, loss);
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
