//! LITE over the driver: a cluster in one process under virtual time, with nodes on emulated cards and one on
//! the software RNIC, on one wire.

use super::nodes::MTU_4096;
use super::soft::{Soft, SoftWire};
use super::subnet::{configure, train};
use super::wire::{Station, exchange_lossy};
use super::{Driver, Machine};
use connectx3::device::Profile;
use lite::testing::{Device, Host, Hub, Poller, World};
use lite::{Config, Lite};
use mlx4::{Config as CardConfig, Health, Remote};
use platform::{Instant, IoAddr, Platform};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{Gid, LinkKind, MacAddr, Rnic};

/// The network and the cards.
struct Wire {
    machines: Vec<Arc<Machine>>,
    drivers: Vec<Arc<Driver>>,
    soft: Option<Soft>,
    /// The number of frames lost out of 1000.
    loss: u32,
    chance: Mutex<u32>,
}

impl Wire {
    /// Recovers cards that have failed, and returns for each the time of its next step.
    fn recover(&self) -> impl Iterator<Item = Option<Instant>> {
        self.machines.iter().zip(&self.drivers).map(|(machine, driver)| {
            match driver.recover(machine.bus.clock()) {
                Health::Recovering { next } => Some(next),
                Health::Ok | Health::Lost { .. } => None,
            }
        })
    }
}

impl Device for Wire {
    fn poll(&self, _: Instant) -> bool {
        self.recover().for_each(drop);
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
        let deadline = |(machine, step): (&Arc<Machine>, Option<Instant>)| {
            let of_card = machine.card.lock().unwrap().next_deadline();
            let at = of_card.into_iter().chain(step).min()?;
            Some(Instant::from_nanos(at.as_nanos().saturating_sub(machine.waited().as_nanos() as u64)))
        };
        self.machines.iter().zip(self.recover()).filter_map(deadline).min()
    }
}

/// The nodes of a cluster, and their world.
pub(crate) struct Cluster {
    pub world: World,
    /// Host and LITE of each node. The first node has id 1.
    pub nodes: Vec<(Arc<Host>, Lite)>,
    /// The cards of the first nodes, with their drivers.
    pub cards: Vec<(Arc<Machine>, Arc<Driver>)>,
}

/// Makes a cluster whose first nodes have cards of the given profiles. With `with_soft`, a last node has no
/// card. Each node has `memory` bytes.
pub(crate) fn cluster(profiles: &[&str], with_soft: bool, loss: u32, memory: u64) -> Cluster {
    let mut world = World::new(1);
    let hub = Hub::new();
    let (mut machines, mut drivers, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut nodes, mut soft) = (Vec::new(), None);
    let mut join = |world: &mut World, host: Arc<Host>, rnic: Arc<dyn Rnic>| {
        let (link, welcome) = hub.join(&*rnic);
        let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, Config::default()).unwrap();
        world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
        nodes.push((host, lite));
    };
    let gid = |number| Gid::from_ipv4([10, 9, 0, number]);
    for (number, profile) in (1..).zip(profiles) {
        let host = world.host(IoAddr(u64::from(number) << 32), memory);
        let profile = Profile::named(profile, MacAddr([2, 0, 0, 0, 0, number])).unwrap();
        let clock = host.clone();
        let machine = Machine::with_clock(profile, host.arena(), Box::new(move || clock.now()));
        // As on an appliance, peers reach memory by page entries.
        let remote = Remote::part(IoAddr(u64::from(number) << 32), memory);
        let driver = machine.start(&CardConfig { remote, ..CardConfig::default() }).unwrap();
        driver.set_gid(gid(number)).unwrap();
        machines.push(machine);
        drivers.push(Arc::new(driver));
        hosts.push(host);
    }
    // The subnet manager configures InfiniBand ports before the nodes exchange their addresses.
    let infiniband = |driver: &Driver| driver.attributes().links == [LinkKind::InfiniBand];
    if drivers.iter().any(|driver| infiniband(driver)) {
        train(&machines);
        for (lid, (machine, driver)) in (1..).zip(machines.iter().zip(&drivers)) {
            configure(machine, driver, lid, MTU_4096);
        }
    }
    for (host, driver) in hosts.into_iter().zip(&drivers) {
        join(&mut world, host, driver.clone());
    }
    if with_soft {
        let number = profiles.len() as u8 + 1;
        let host = world.host(IoAddr(u64::from(number) << 32), memory);
        let software = Soft::new(number, gid(number), host.arena());
        join(&mut world, host, software.rnic.clone());
        soft = Some(software);
    }
    let cards = machines.iter().cloned().zip(drivers.iter().cloned()).collect();
    let wire = Wire { machines, drivers, soft, loss, chance: Mutex::new(1) };
    world.attach_free(Arc::new(wire));
    world.run_for(Duration::from_millis(1));
    Cluster { world, nodes, cards }
}
