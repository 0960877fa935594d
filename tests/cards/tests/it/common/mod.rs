//! Machines with cards for the tests of the driver.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test file uses a part, and a test may fail by panic"
)]

pub(crate) mod lite;
pub(crate) mod nodes;
pub(crate) mod pair;
pub(crate) mod soft;
pub(crate) mod subnet;
pub(crate) mod wire;

pub(crate) use cards::{DATA, Driver, Machine, REGISTERS, SHARED};

use connectx3::device::Profile;
use mlx4::Config;
use platform::{Arena, IoAddr};
use std::sync::Arc;
use std::time::Duration;
use verbs::{Gid, MacAddr, PortState, Rnic};

/// Makes a machine whose driver has started, with the address and GID that end in `number`.
pub(crate) fn begun(profile: &str, number: u8, config: &Config) -> (Arc<Machine>, Driver) {
    let profile = Profile::named(profile, MacAddr([2, 0, 0, 0, 0, number])).unwrap();
    let machine = Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA * u64::from(number)), 8 << 20)));
    let driver = machine.start(config).unwrap();
    driver.set_gid(Gid::from_ipv4([10, 9, 0, number])).unwrap();
    (machine, driver)
}

/// Makes a machine whose link is up too.
pub(crate) fn node(profile: &str, number: u8) -> (Arc<Machine>, Driver) {
    node_with(profile, number, &Config::default())
}

/// Makes a machine with a configuration, whose link is up.
pub(crate) fn node_with(profile: &str, number: u8, config: &Config) -> (Arc<Machine>, Driver) {
    let (machine, driver) = begun(profile, number, config);
    for _ in 0..1000 {
        if driver.attributes().port_state == PortState::Active {
            return (machine, driver);
        }
        machine.advance(Duration::from_millis(10));
        machine.card.lock().unwrap().progress(&machine.bus);
        driver.progress(machine.bus.clock(), 64);
    }
    panic!("the link does not come up");
}
